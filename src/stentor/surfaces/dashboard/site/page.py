"""What every page handler uses: `Site` (shared services, one per process) and `PageRequest` (one request).

Routing, the session check and error pages are in `pages.app`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import FormData, Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from stentor import __version__
from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import ServiceUnavailable
from stentor.core.ids import min_id_at
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.gateway import GatewayClient, GatewayError
from stentor.surfaces.dashboard.presenters import filters
from stentor.surfaces.dashboard.prometheus import PrometheusClient
from stentor.surfaces.dashboard.site import assets, forms
from stentor.surfaces.dashboard.site.layout import MENU, NOTICES, WARNINGS
from stentor.surfaces.dashboard.site.live_updates import CLOCK_SKEW_US, LiveUpdates
from stentor.surfaces.dashboard.site.refused_sign_ins import Record, RefusedSignIns, log_only
from stentor.surfaces.dashboard.site.sessions import (
    BrowserSession,
    LoginThrottle,
    SessionStore,
    is_bound_agent,
    mask_csrf_token,
)
from stentor.surfaces.dashboard.site.single_sign_on import SingleSignOn
from stentor.surfaces.dashboard.site.ttl_cache import TtlCache
from stentor.web.request_context import ENCODED_SLASH, decode_path_segment
from stentor.web.sse import StreamLimit

P = ParamSpec("P")
T = TypeVar("T")
PACKAGE_DIR = Path(__file__).parents[1]
HTMX_HEADER = "HX-Request"
EVENT_ID_PREFIX = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7")
CACHE_SECONDS = 5.0
"""Maximum age of a chart and of the component states, which all readers share."""
SLOW_CACHE_SECONDS = 300.0
"""Maximum age of comparisons of whole weeks."""
PLACES = ("cursor", "before", "notice")
"""Parameters of an address that are no filters: where the rows begin, and the notice of an action."""
MAX_LOOKBACK_US = 60 * SECOND
MAX_FAILED_SIGN_INS = 20
"""Failed sign-ins per minute and address. Keys are too long to be guessed; this keeps the log readable."""
RETRY_SECONDS = 2.0
"""Seconds after which a request that the rate limit refused is repeated."""


class Site:
    """The services that all pages share. `threshold` is the sentinel's; `lifetime` is a session's, in seconds.

    `record_refusals` is called at most once a minute; `single_sign_on` is None without a provider.
    """

    def __init__(
        self,
        gateway: GatewayClient,
        db: Database,
        clock: Clock,
        prometheus: PrometheusClient,
        streams: StreamLimit,
        threshold: float,
        lifetime: float,
        record_refusals: Record = log_only,
        single_sign_on: SingleSignOn | None = None,
    ) -> None:
        self.gateway = gateway
        self.db = db
        self._clock = clock
        self.prometheus = prometheus
        self.stream_limit = streams
        self.sentinel_threshold = threshold
        self.live_updates = LiveUpdates(db)
        self.sessions = SessionStore(time.monotonic, lifetime)
        self.login_throttle = LoginThrottle(MAX_FAILED_SIGN_INS, time.monotonic)
        self.refused_sign_ins = RefusedSignIns(record_refusals)
        self.templates = create_environment()
        self.single_sign_on = single_sign_on
        self._background: set[asyncio.Task[None]] = set()
        self.cache = TtlCache(CACHE_SECONDS, time.monotonic)
        self.slow_cache = TtlCache(SLOW_CACHE_SECONDS, time.monotonic)

    async def is_session_valid(self, session: BrowserSession) -> bool:
        """Return whether the session's key is still valid; the result may be `CACHE_SECONDS` old.

        Needed because pages that only query the database would otherwise still open with a revoked key, or with
        permissions that it no longer has. Fails open: an outage of the gateway must not sign everybody out.
        """

        async def refresh() -> bool:
            try:
                holder = await self.gateway.call(session.key, "whoami", {})
            except ServiceUnavailable:
                return True
            except GatewayError as error:
                return error.status not in (401, 403)  # any other rejection, such as 429, says nothing about the key
            if holder["tenant"] != session.tenant or is_bound_agent(holder):
                return False
            session.set_holder(holder)
            return True

        return bool(await self.cache.get_or_create(("key", session.csrf), refresh))

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that continues after the response, until the dashboard closes."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.refused_sign_ins.close()
        await self.live_updates.close()
        if self.single_sign_on is not None:
            await self.single_sign_on.provider.close()
        await self.gateway.close()

    def now(self) -> int:
        return self._clock.now()


class PageRequest:
    """One request of a signed-in user."""

    def __init__(self, site: Site, request: Request, session: BrowserSession) -> None:
        self.site = site
        self.request = request
        self.session = session
        self._form: FormData | None = None
        # Before any query of the page: live updates then include what changes while it is rendered.
        self.since = min_id_at(site.now() - CLOCK_SKEW_US)

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def changes_since(self) -> str:
        """The event id prefix after which the page has received no updates yet; at most a minute back."""
        since = self.query_param("since")
        oldest = min_id_at(self.site.now() - MAX_LOOKBACK_US)
        # Ids sort by time, so max and min bound what the browser sent.
        return max(oldest, min(since, self.since)) if EVENT_ID_PREFIX.fullmatch(since) else self.since

    @property
    def path(self) -> str:
        """The path of this page, encoded as in a link."""
        return encode_path(self.request)

    @property
    def first_rows(self) -> str:
        """The address of the first rows of this list, with its filters."""
        fields = [(name, value) for name, value in self.request.query_params.multi_items() if name not in PLACES]
        return f"{self.path}?{urlencode(fields)}" if fields else self.path

    def path_param(self, name: str) -> str:
        return decode_path_segment(str(self.request.path_params[name]))

    def query_param(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default).strip()

    def query_params(self, name: str) -> list[str]:
        """Return all values of a parameter that may be repeated."""
        return self.request.query_params.getlist(name)

    async def read(self, query: Callable[Concatenate[Tx, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a domain's query for the tenant of the signed-in user."""
        return await self.site.db.read(lambda tx: query(tx, self.tenant, *args, **kwargs))

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the gateway and return its output as JSON values. Empty arguments are omitted.

        Raises GatewayError, and ServiceUnavailable when no gateway responds.
        """
        # An empty form field or query parameter means "not set".
        arguments = {name: value for name, value in arguments.items() if value not in (None, "")}
        return await self.site.gateway.call(self.session.key, operation, arguments)

    async def call_patiently(self, operation: str, **arguments: Any) -> Any:
        """Call an operation as one of very many, which the gateway's rate limit may refuse: then it is repeated."""
        while True:
            try:
                return await self.call(operation, **arguments)
            except GatewayError as error:
                if error.status != 429:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def find(self, operation: str, missing: int = 404, **arguments: Any) -> JsonObject | None:
        """Call an operation; return None when the gateway responds with the status `missing`."""
        try:
            return dict(await self.call(operation, **arguments))
        except GatewayError as error:
            if error.status != missing:
                raise
            return None

    async def read_health(self) -> JsonObject:
        """Return the health report of the gateway. An unhealthy gateway sends it with an error status."""
        try:
            return dict(await self.call("health.detailed"))
        except GatewayError as error:
            if isinstance(error.data, dict) and "components" in error.data:
                return error.data
            raise

    async def form(self) -> FormData:
        """Return the fields of the form that was sent. Raises HTTPException."""
        if self._form is None:
            self._form = await forms.read_form(self.request)
        return self._form

    async def read_form(self) -> dict[str, str]:
        """Return the fields of a form; the last value wins for a repeated field."""
        form = await self.form()
        return {name: value.strip() for name, value in form.items() if isinstance(value, str)}

    async def read_field(self, name: str) -> str:
        """Return a field of a form with the white space around its text, which `read_form` removes."""
        value = (await self.form()).get(name)
        return value if isinstance(value, str) else ""

    def render(self, name: str, status: int = 200, *, block: str = "main", **values: Any) -> Response:
        """Render a complete page, or only `block` of it for a request by htmx."""
        template = self.site.templates.get_template(name)
        if block == "rows" and self.request.headers.get("X-Live"):
            block = "results"  # a live page of later rows, as without JavaScript or in a tab of its own
        values |= {"page": self, "session": self.session, "notice": NOTICES.get(self.query_param("notice"))}
        values["is_warning"] = self.query_param("notice") in WARNINGS
        values |= {"menu": [entry for entry in MENU if self.session.may(entry[3])]}
        if not self.session.may("admin"):
            values["ui"] = self.site.templates.globals["ui_without_agents"]  # the page of an agent would be refused
        now = self.site.now()
        values |= {"moment": partial(filters.format_time, now=now), "day": partial(filters.format_date, now=now)}
        values |= {"path": self.path}
        # The same URL has two contents, and the browser's back button must not show half a page.
        headers = {"Vary": HTMX_HEADER}
        csrf = self.session.csrf
        if self.request.headers.get(HTMX_HEADER):
            # Only the block is rendered, so a live update does not pay for the frame of the page.
            context = template.new_context(values)
            return ThreadedHtmlResponse(lambda: "".join(template.blocks[block](context)), csrf, status, headers)
        return ThreadedHtmlResponse(lambda: template.render(values), csrf, status, headers)

    def redirect(self, path: str, notice: str) -> Response:
        """Redirect after an action to a page that shows its result; `notice` is a key of NOTICES."""
        return RedirectResponse(f"{path}{'&' if '?' in path else '?'}notice={notice}", 303)

    def redirect_once(self, path: str, result: JsonObject) -> Response:
        """Redirect after an action to a page that shows its result once, such as a secret: see `take_result`."""
        return RedirectResponse(f"{path}?result={self.session.keep(path, result)}", 303)

    def take_result(self) -> JsonObject:
        """Return the result that `redirect_once` kept for this page; empty when it was shown before."""
        return self.session.kept.pop((self.path, self.query_param("result")), {})


def encode_path(request: Request) -> str:
    """Return the path of a request, encoded again; a slash of an id stays within its segment."""
    segments = request.scope["path"].split("/")
    return "/".join(filters.quote_segment(segment.replace(ENCODED_SLASH, "/")) for segment in segments)


class ThreadedHtmlResponse(HTMLResponse):
    """An HTML response that renders in a thread. `csrf` is the session's token, which the HTML has only masked.

    Text of agents may take long to render, and would block the event loop, which the gateway may share. A live part
    that the page already shows is 304.
    """

    def __init__(self, render_html: Callable[[], str], csrf: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__("", status, headers)
        self._render_html = render_html
        self._csrf = csrf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_headers = Headers(scope=scope)
        is_live = self.status_code == 200 and "X-Live" in request_headers
        html, version = await asyncio.to_thread(self._render_masked, is_live)
        self.body = self.render(html)
        self.headers["Content-Length"] = str(len(self.body))  # the constructor saw an empty body
        if is_live:
            self.headers["ETag"] = version
            if request_headers.get("If-None-Match") == version:
                # With the other headers: the overview sets a cookie.
                self.status_code, self.body = 304, b""
                del self.headers["Content-Length"], self.headers["Content-Type"]
        await super().__call__(scope, receive, send)

    def _render_masked(self, is_live: bool) -> tuple[bytes, str]:
        html = self._render_html().encode()
        # Before the token is masked, as the mask differs in each response.
        version = f'W/"{hashlib.sha256(html).hexdigest()[:32]}"' if is_live else ""
        return html.replace(self._csrf.encode(), mask_csrf_token(self._csrf).encode()), version


def encode_query(values: Mapping[str, str | None]) -> str:
    """Return the values that are set as a query string."""
    return urlencode({name: value for name, value in values.items() if value})


PageHandler = Callable[[PageRequest], Awaitable[Response]]


def action(operation: str, address: str, notice: str, *fields: str, **fixed: Any) -> PageHandler:
    """Return the handler of a form that calls an operation with the parameters of its path, and redirects to `address`.

    The address may have names of these parameters in braces. The body of the call has these `fields` of the form, and
    what is `fixed`.
    """

    async def act(page: PageRequest) -> Response:
        named = {name: page.path_param(name) for name in page.request.path_params}
        form = await page.read_form()
        body = fixed | {name: form.get(name, "") for name in fields}
        await page.call(operation, body=body or None, **named)
        quoted = {name: filters.quote_segment(value) for name, value in named.items()}
        return page.redirect(address.format(**quoted), notice)

    return act


@cache
def create_environment() -> Environment:
    """Return the environment, which compiles a template once for the process."""
    environment = Environment(
        loader=FileSystemLoader(PACKAGE_DIR / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= filters.FILTERS
    environment.filters["attribute"] = filters.to_json_attribute
    names: dict[str, Any] = environment.globals
    names |= {
        "version": __version__,
        "static": assets.asset_url,
        "share": filters.to_percent,
        "step": filters.color_step,
    }
    macros = environment.get_template("macros.html")
    names["ui"] = macros.make_module({"links_agents": True})
    names["ui_without_agents"] = macros.make_module({"links_agents": False})
    return environment
