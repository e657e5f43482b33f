"""What every page has: its request, who is signed in, the gateway, the rows, and the templates."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from stentor import __version__
from stentor.core.clock import SECOND
from stentor.core.ids import min_id_at
from stentor.surfaces.dashboard.prometheus import Prometheus
from stentor.surfaces.dashboard.site import assets, shown
from stentor.surfaces.dashboard.site.attempts import Attempts
from stentor.surfaces.dashboard.site.calls import Caller, Query, Refused, Reply, target
from stentor.surfaces.dashboard.site.kept import Kept
from stentor.surfaces.dashboard.site.live import Live
from stentor.surfaces.dashboard.site.rows import Rows
from stentor.surfaces.dashboard.site.sessions import Session, Sessions
from stentor.web.sse import StreamLimit

MENU = (
    ("/", "Overview", "o"),
    ("/tasks", "Tasks", "t"),
    ("/console", "Console", "c"),
    ("/agents", "Agents", "a"),
    ("/governance", "Governance", "g"),
    ("/memory", "Memory", "m"),
    ("/messages", "Messages", "e"),
    ("/models", "Models & cost", "l"),
    ("/webhooks", "Webhooks", "w"),
    ("/provenance", "Provenance", "p"),
)
"""Address, name, and the key that goes there after `g`."""
HERE = Path(__file__).parents[1]
PARTIAL = "HX-Request"
SINCE = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7")
FRESH = 5.0
"""Seconds that a chart and the state of the components may be old: many readers cost as much as one."""
EARLIER = 2 * SECOND
"""Ids are made before their rows can be read, and clocks of processes differ by so much."""
OLDEST = 60 * SECOND
ATTEMPTS = 20
"""Failed sign-ins of a minute and an address. Keys are too long to be guessed; this keeps the log readable."""
NOTICES = {
    "cancelled": "The task is cancelled.",
    "retried": "The task is queued again.",
    "approved": "Approved.",
    "rejected": "Rejected.",
    "graded": "The task is graded.",
    "suspended": "The agent is suspended: it gets no more tasks.",
    "activated": "The agent is active again.",
    "cleared": "The violations are cleared.",
    "saved": "Saved.",
    "removed": "Removed.",
    "rolled-back": "The rollback is under way.",
    "taken": "A checkpoint is taken.",
    "sent": "Sent.",
    "replayed": "It will be delivered again.",
    "pinged": "A ping was sent. Below is how it went.",
    "rotated": "A new secret is in use.",
    "enabled": "Switched on.",
    "disabled": "Switched off.",
    "signed": "All that is recorded is numbered and signed.",
}
"""What a redirect after an action may say: by name, so that no address can put words on a page."""


class Site:
    """What all pages share. `rows` are read for the tenant of whoever is signed in; `threshold` is the sentinel's."""

    def __init__(
        self,
        caller: Caller,
        rows: Rows,
        prometheus: Prometheus,
        streams: StreamLimit,
        threshold: float,
        lifetime: float,
    ) -> None:
        self.caller = caller
        self.rows = rows
        self.prometheus = prometheus
        self.streams = streams
        self.threshold = threshold
        self.live = Live(rows)
        self.sessions = Sessions(time.monotonic, lifetime)
        self.attempts = Attempts(ATTEMPTS, time.monotonic)
        self.templates = _environment()
        self.kept = Kept(FRESH, time.monotonic)

    async def still(self, session: Session) -> bool:
        """Whether the session's key is still one; pages that read rows alone ask nobody else. May be seconds old."""
        return bool(await self.kept.get(("key", session.csrf), lambda: self.caller.known(session.key, session.tenant)))

    async def close(self) -> None:
        await self.live.close()
        await self.caller.close()

    def now(self) -> int:
        return self.rows.clock.now()


class Page:
    """One request of somebody who is signed in."""

    def __init__(self, site: Site, request: Request, session: Session) -> None:
        self.site = site
        self.request = request
        self.session = session
        self.since = min_id_at(site.now() - EARLIER)

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def asked_since(self) -> str:
        """The beginning of an event's id: since when the page that asks has not heard of changes; a minute at most."""
        asked = self.query("since")
        oldest = min_id_at(self.site.now() - OLDEST)
        return max(oldest, min(asked, self.since)) if SINCE.fullmatch(asked) else self.since

    @property
    def rows(self) -> Rows:
        return self.site.rows

    def param(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default).strip()

    async def get(self, path: str, **query: Any) -> Any:
        """The data of a route of the gateway. Raises Refused."""
        return await self.call("GET", path, query)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self.call("POST", path, None, {} if body is None else body)

    async def call(self, method: str, path: str, query: Query | None = None, body: Any = None) -> Any:
        reply = await self.site.caller.call(self.session.key, method, target(path, query), body)
        return _data(reply)

    async def form(self) -> dict[str, str]:
        """The fields of a form; a repeated one counts by its last value."""
        found = await self.request.form()
        return {name: value.strip() for name, value in found.items() if isinstance(value, str)}

    def render(self, name: str, status: int = 200, *, block: str = "main", **values: Any) -> Response:
        """A whole page; the block alone for a request of htmx."""
        template = self.site.templates.get_template(name)
        values |= {"page": self, "session": self.session, "notice": NOTICES.get(self.query("notice"))}
        values |= {"moment": partial(shown.moment, now=self.site.now()), "path": self.request.url.path}
        headers = {"Vary": PARTIAL}
        if self.request.headers.get(PARTIAL):
            context = template.new_context(values)
            return Rendered(lambda: "".join(template.blocks[block](context)), status, headers)
        return Rendered(lambda: template.render(values), status, headers)

    def back(self, path: str, notice: str) -> Response:
        """After an action: to a page that shows what became of it."""
        return RedirectResponse(f"{path}{'&' if '?' in path else '?'}notice={notice}", 303)


class Rendered(HTMLResponse):
    """Made on a thread: what agents wrote may take long to render, and the gateway may live in this process."""

    def __init__(self, make: Callable[[], str], status: int, headers: Mapping[str, str]) -> None:
        super().__init__("", status, headers)
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = self.render(await asyncio.to_thread(self._make))
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


Handler = Callable[[Page], Awaitable[Response]]


def _data(reply: Reply) -> Any:
    if reply.status >= 400:
        raise Refused(reply)
    return reply.data


def _environment() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= shown.FILTERS
    made.filters["attribute"] = shown.attribute
    made.globals |= {
        "version": __version__,
        "static": assets.address,
        "share": shown.share,
        "step": shown.step,
        "menu": MENU,
    }
    made.globals["ui"] = made.get_template("macros.html").module
    return made
