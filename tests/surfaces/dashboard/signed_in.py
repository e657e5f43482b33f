"""The pages in process, over the database of a world, with somebody signed in."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.conftest import KEYS, World
from tests.surfaces.dashboard.board import LOCAL, Board


@dataclass
class Site:
    """A world and browsers without JavaScript, one for each key that signed in."""

    board: Board
    browsers: dict[str, httpx.AsyncClient] = field(default_factory=dict)

    @property
    def world(self) -> World:
        return self.board.world

    async def browser(self, name: str = "ADMIN") -> httpx.AsyncClient:
        """Signed in with this key, or already signed in under this name; it follows no redirects."""
        if name in self.browsers:
            return self.browsers[name]
        return await self.browser_of(KEYS[name].split(":")[0], name)

    async def browser_of(self, key: str, name: str = "") -> httpx.AsyncClient:
        """Signed in with a key that was made at runtime; `name` tells browsers of the same key apart."""
        name = name or key
        if name not in self.browsers:
            client = httpx.AsyncClient(transport=self.board.http._transport, base_url=LOCAL, timeout=200)
            answer = await client.post("/sign-in", data={"key": key})
            assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
            self.browsers[name] = client
        return self.browsers[name]

    async def read(self, path: str, expected: int = 200, /, key: str = "ADMIN", **params: Any) -> str:
        """The HTML of a page; `params` are its query."""
        answer = await (await self.browser(key)).get(path, params=params or None)
        assert answer.status_code == expected, answer.text
        return answer.text

    async def part(self, path: str, expected: int = 200, /, key: str = "ADMIN", **params: Any) -> str:
        """What htmx would put into the page."""
        answer = await (await self.browser(key)).get(path, params=params or None, headers={"HX-Request": "true"})
        assert answer.status_code == expected, answer.text
        return answer.text

    async def send(self, path: str, expected: int = 303, /, key: str = "ADMIN", **fields: str) -> httpx.Response:
        """Post a form with the token of the session."""
        token = await self.token(key)
        answer = await (await self.browser(key)).post(path, data={"csrf": token, **fields})
        assert answer.status_code == expected, answer.text
        return answer

    async def follow(self, path: str, key: str = "ADMIN", **fields: str) -> httpx.Response:
        """Post a form; the page to which it redirects."""
        answer = await self.send(path, key=key, **fields)
        shown = await (await self.browser(key)).get(answer.headers["location"])
        assert shown.status_code == 200, shown.text
        return shown

    async def token(self, key: str = "ADMIN") -> str:
        """The token of the session, which every form carries."""
        found = re.search(r'name="csrf" value="([^"]+)"', (await (await self.browser(key)).get("/tasks")).text)
        assert found
        return found[1]


def shown(page: str, action: str) -> dict[str, str]:
    """What the form with this action sends along of the values that its page showed."""
    _, _, form = page.partition(f'action="{action}"')
    found = re.search(r'name="shown" value="([^"]+)"', form.partition("</form>")[0])
    return {"shown": html.unescape(found[1])} if found else {}
