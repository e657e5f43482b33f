"""What every page has: its request, who is signed in, the gateway, the rows, and the templates."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from stentor import __version__
from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.ids import min_id_at
from stentor.surfaces.dashboard.gateway import GatewayClient, GatewayError
from stentor.surfaces.dashboard.presenters import filters
from stentor.surfaces.dashboard.prometheus import PrometheusClient
from stentor.surfaces.dashboard.site import assets
from stentor.surfaces.dashboard.site.live_updates import LiveUpdates
from stentor.surfaces.dashboard.site.sessions import LoginThrottle, Session, SessionStore
from stentor.surfaces.dashboard.site.ttl_cache import TtlCache
from stentor.web.sse import StreamLimit

P = ParamSpec("P")
T = TypeVar("T")
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
PACKAGE_DIR = Path(__file__).parents[1]
HTMX_HEADER = "HX-Request"
EVENT_ID_PREFIX = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7")
CACHE_SECONDS = 5.0
"""Seconds that a chart and the state of the components may be old: many readers cost as much as one."""
CLOCK_SKEW_US = 2 * SECOND
"""Ids are made before their rows can be read, and clocks of processes differ by so much."""
MAX_LOOKBACK_US = 60 * SECOND
MAX_FAILED_SIGN_INS = 20
"""Failed sign-ins of a minute and an address. Keys are too long to be guessed; this keeps the log readable."""
NOTICES = {
    "cancelled": "Task cancelled.",
    "retried": "Task queued again.",
    "approved": "Approved.",
    "rejected": "Rejected.",
    "graded": "Grade saved.",
    "suspended": "Agent suspended: it gets no more tasks.",
    "activated": "Agent activated.",
    "cleared": "Violations cleared.",
    "saved": "Saved.",
    "removed": "Removed.",
    "rolled-back": "Rollback started.",
    "taken": "Checkpoint taken.",
    "sent": "Sent.",
    "replayed": "Queued for delivery.",
    "pinged": "Ping sent. The result is below.",
    "rotated": "New secret in use.",
    "enabled": "Enabled.",
    "disabled": "Disabled.",
    "signed": "All recorded events are numbered and signed.",
}
"""What a redirect after an action may say: by name, so that no address can put words on a page."""


class Site:
    """What all pages share. `threshold` is the sentinel's; `lifetime` is that of a session, in seconds."""

    def __init__(
        self,
        caller: GatewayClient,
        db: Database,
        clock: Clock,
        prometheus: PrometheusClient,
        streams: StreamLimit,
        threshold: float,
        lifetime: float,
    ) -> None:
        self.gateway = caller
        self.db = db
        self._clock = clock
        self.prometheus = prometheus
        self.stream_limit = streams
        self.sentinel_threshold = threshold
        self.live_updates = LiveUpdates(db)
        self.sessions = SessionStore(time.monotonic, lifetime)
        self.login_throttle = LoginThrottle(MAX_FAILED_SIGN_INS, time.monotonic)
        self.templates = _environment()
        self.cache = TtlCache(CACHE_SECONDS, time.monotonic)

    async def is_session_valid(self, session: Session) -> bool:
        """Whether the session's key is still one; pages that read rows alone ask nobody else. May be seconds old."""
        return bool(
            await self.cache.get_or_create(
                ("key", session.csrf), lambda: self.gateway.is_key_valid(session.key, session.tenant)
            )
        )

    async def close(self) -> None:
        await self.live_updates.close()
        await self.gateway.close()

    def now(self) -> int:
        return self._clock.now()


class PageRequest:
    """One request of somebody who is signed in."""

    def __init__(self, site: Site, request: Request, session: Session) -> None:
        self.site = site
        self.request = request
        self.session = session
        self.since = min_id_at(site.now() - CLOCK_SKEW_US)

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def changes_since(self) -> str:
        """The beginning of an event's id: since when the page that asks has not heard of changes; a minute at most."""
        asked = self.query_param("since")
        oldest = min_id_at(self.site.now() - MAX_LOOKBACK_US)
        return max(oldest, min(asked, self.since)) if EVENT_ID_PREFIX.fullmatch(asked) else self.since

    def path_param(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def query_param(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default).strip()

    async def read(self, query: Callable[Concatenate[Tx, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query of a domain for the tenant of whoever is signed in."""
        return await self.site.db.read(lambda tx: query(tx, self.tenant, *args, **kwargs))

    async def call(self, operation: str, **arguments: Any) -> Any:
        """The output of an operation of the gateway, as JSON values; empty arguments count as absent.

        Raises GatewayError, and ServiceUnavailable when no gateway answers.
        """
        given = {name: value for name, value in arguments.items() if value not in (None, "")}
        return await self.site.gateway.call(self.session.key, operation, given)

    async def read_health(self) -> dict[str, Any]:
        """The components of the gateway; an unhealthy gateway sends them with an error status."""
        try:
            return dict(await self.call("health.detailed"))
        except GatewayError as refused:
            if isinstance(refused.data, dict) and "components" in refused.data:
                return refused.data
            raise

    async def read_form(self) -> dict[str, str]:
        """The fields of a form; a repeated one counts by its last value."""
        found = await self.request.form()
        return {name: value.strip() for name, value in found.items() if isinstance(value, str)}

    def render(self, name: str, status: int = 200, *, block: str = "main", **values: Any) -> Response:
        """A whole page; the block alone for a request of htmx."""
        template = self.site.templates.get_template(name)
        values |= {"page": self, "session": self.session, "notice": NOTICES.get(self.query_param("notice"))}
        values |= {"moment": partial(filters.format_time, now=self.site.now()), "path": self.request.url.path}
        headers = {"Vary": HTMX_HEADER}
        if self.request.headers.get(HTMX_HEADER):
            context = template.new_context(values)
            return ThreadedHtmlResponse(lambda: "".join(template.blocks[block](context)), status, headers)
        return ThreadedHtmlResponse(lambda: template.render(values), status, headers)

    def redirect(self, path: str, notice: str) -> Response:
        """After an action: to a page that shows what became of it."""
        return RedirectResponse(f"{path}{'&' if '?' in path else '?'}notice={notice}", 303)


class ThreadedHtmlResponse(HTMLResponse):
    """Made on a thread: what agents wrote may take long to render, and the gateway may live in this process."""

    def __init__(self, make: Callable[[], str], status: int, headers: Mapping[str, str]) -> None:
        super().__init__("", status, headers)
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = self.render(await asyncio.to_thread(self._make))
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


PageHandler = Callable[[PageRequest], Awaitable[Response]]


def _environment() -> Environment:
    loader = FileSystemLoader(PACKAGE_DIR / "templates")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= filters.FILTERS
    made.filters["attribute"] = filters.to_json_attribute
    made.globals |= {
        "version": __version__,
        "static": assets.asset_url,
        "share": filters.to_percent,
        "step": filters.color_step,
        "menu": MENU,
    }
    made.globals["ui"] = made.get_template("macros.html").module
    return made
