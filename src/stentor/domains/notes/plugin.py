"""The vault plugin's REST API as a client sees it. Source: facts of the vault plugin.

A self-signed certificate is accepted, because the plugin has one; it is the certificate of the configured
host alone, since no redirect is followed and nothing else is called.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from stentor.core import jsontext
from stentor.core.errors import StentorError, Timeout
from stentor.domains.notes import paths
from stentor.domains.notes.model import NoSuchNote

_MARKDOWN = {"Content-Type": "text/markdown"}
MAX_FOLDERS = 100_000


class PluginFailed(StentorError):
    """The plugin is down, refuses our key, or answers what nobody can use."""

    code, status = "VAULT_PLUGIN_FAILED", 502


class Plugin:
    """One pooled session; `verify` for a certificate that must be one of the system's authorities."""

    def __init__(self, base_url: str, key: str, *, verify: bool = False, timeout: float = 30) -> None:
        self._base = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._verify = verify
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=min(5, timeout))
        self._session: aiohttp.ClientSession | None = None

    async def read(self, path: str) -> bytes:
        """Raises NoSuchNote."""
        return (await self._call("GET", _file(path)))[1]

    async def write(self, path: str, content: bytes) -> None:
        await self._call("PUT", _file(path), content, _MARKDOWN)

    async def append(self, path: str, content: bytes) -> None:
        """Makes the note when there is none."""
        await self._call("POST", _file(path), content, _MARKDOWN)

    async def delete(self, path: str) -> None:
        """Raises NoSuchNote."""
        await self._call("DELETE", _file(path))

    async def frontmatter(self, path: str) -> dict[str, Any]:
        """Raises NoSuchNote, PluginFailed for an answer of another form."""
        accept = {"Accept": "application/vnd.olrapi.note+json"}
        found = _json((await self._call("GET", _file(path), headers=accept))[1])
        values = found.get("frontmatter") if isinstance(found, dict) else None
        if not isinstance(values, dict):
            raise PluginFailed("The vault plugin did not answer a note's frontmatter in its form.")
        return values

    async def set_frontmatter(self, path: str, key: str, value: Any) -> None:
        """Upsert one key, in the form that versions 3 to 6 take. Raises NoSuchNote."""
        instruction = {"Operation": "replace", "Target-Type": "frontmatter", "Target": quote(key, safe="")}
        version = {"Markdown-Patch-Version": "2", "Create-Target-If-Missing": "true"}
        headers = {**version, **instruction, "Content-Type": "application/json"}
        body = jsontext.encode(value)
        if value == "":
            # The one value that no body can carry beside headers.
            headers = {"Content-Type": "application/json"}
            wanted = {"targetType": "frontmatter", "target": key, "operation": "replace"}
            body = jsontext.encode({**wanted, "value": "", "createTargetIfMissing": True})
        await self._call("PATCH", _file(path), body, headers)

    async def search(self, query: str, around: int = 100) -> list[dict[str, Any]]:
        route = f"/search/simple/?query={quote(query, safe='')}&contextLength={around}"
        found = _json((await self._call("POST", route))[1])
        if not isinstance(found, list) or not all(isinstance(hit, dict) and "filename" in hit for hit in found):
            raise PluginFailed("The vault plugin did not answer a search in its form.")
        return found

    async def paths(self) -> list[str]:
        """All files, depth first by folder."""
        found: list[str] = []
        folders = [""]
        for _ in range(MAX_FOLDERS):
            if not folders:
                return sorted(found)
            folder = folders.pop()
            for name in await self._names(folder):
                (folders if name.endswith("/") else found).append(f"{folder}{name}")
        raise PluginFailed(f"The vault has more than {MAX_FOLDERS} folders, or they go round in a circle.")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _names(self, folder: str) -> list[str]:
        route = "/vault/" + "".join(f"{quote(part, safe='')}/" for part in folder.rstrip("/").split("/") if part)
        found = _json((await self._call("GET", route))[1])
        names = found.get("files") if isinstance(found, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) and name.strip("/") for name in names):
            raise PluginFailed("The vault plugin did not answer a folder in its form.")
        return names

    async def _call(
        self, method: str, route: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Raises NoSuchNote, PluginFailed, Timeout. What the plugin says goes no further: it may hold anything."""
        try:
            async with self._opened().request(
                method,
                URL(self._base + route, encoded=True),
                data=body,
                headers={**self._headers, **(headers or {})},
                allow_redirects=False,
                ssl=self._verify,
            ) as answer:
                content = await answer.read()
        except TimeoutError:
            raise Timeout("The vault plugin did not answer in time.") from None
        except aiohttp.ClientError as error:
            raise PluginFailed(f"The vault plugin cannot be reached ({type(error).__name__}).") from None
        if answer.status == 404:
            raise NoSuchNote("The vault has no such note.")
        if answer.status in (401, 403):
            raise PluginFailed("The vault plugin refused our key: check NOTES_API_KEY.")
        if not 200 <= answer.status < 300:
            raise PluginFailed(f"The vault plugin answered {answer.status}.")
        return answer.status, content

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=False)
        return self._session


def _file(path: str) -> str:
    """Segment by segment, each encoded whole. Raises InvalidPath."""
    return "/vault/" + "/".join(quote(part, safe="") for part in paths.segments(path))


def _json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PluginFailed("The vault plugin answered something that is no JSON.") from None
