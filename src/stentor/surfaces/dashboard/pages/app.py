"""The ASGI application of the pages: routes, the session check before every page, and error pages.

What handlers use is in `site.page`; the JSON API is a separate application with its own key (`dashboard.app`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.core.errors import ServiceUnavailable, StentorError, drop_tracebacks
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages import console, downloads, messages, provenance, schedules, sessions, webhooks
from stentor.surfaces.dashboard.pages.access import audit, keys, sign_in, single_sign_on
from stentor.surfaces.dashboard.pages.agents import agent_comparison, agent_editing, agents, governance
from stentor.surfaces.dashboard.pages.memory import memory, memory_editing
from stentor.surfaces.dashboard.pages.models import model_budgets, model_calls, model_providers, models, playground
from stentor.surfaces.dashboard.pages.overview import alerts, overview
from stentor.surfaces.dashboard.pages.tasks import (
    decisions,
    task_batches,
    task_list,
    task_runs,
    task_selection,
    tasks,
)
from stentor.surfaces.dashboard.site import assets, forms
from stentor.surfaces.dashboard.site import sessions as browser_sessions
from stentor.surfaces.dashboard.site.page import PageHandler, PageRequest, Site, encode_path
from stentor.surfaces.dashboard.site.sessions import BrowserSession, is_same_origin
from stentor.web.middleware import DefaultHeadersMiddleware
from stentor.web.sse import CALLER_CHECK

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SIGN_IN_PATH = "/sign-in"
CROSS_SITE_FORM_MESSAGE = "This form does not belong to this session, so nothing was done. Open it and submit it again."
ENDED_SESSION_MESSAGE = "Your session has ended, so nothing was done. Sign in and submit the form again."
UNSUPPORTED_FORM_MESSAGE = "Unsupported form encoding: use application/x-www-form-urlencoded."
MAX_TEXT_BYTES = 1_000_000
"""Longest form whose texts are returned: a client whose session has ended may be anybody."""
_NOT_WRITTEN = frozenset({"shown", "apiKey"})
"""Fields whose values are not returned: what the page displayed before, and a key, also with a word before it."""
COMPRESSION_LEVEL = 5
INLINE_BYTES = 32 * 1024
"""Length from which a page is compressed in a thread, as the event loop would wait for it."""
RELOAD_HTML = '<!doctype html><meta http-equiv="refresh" content="0"><title>Stentor</title>'
"""For a user who follows a link from another site: the browser withholds the SameSite=Strict cookie from the first
request, and sends it with the reload, which is same-origin.
"""
log = logging.getLogger(__name__)


def build_pages_app(site: Site) -> ASGIApp:
    """Build the application of all pages, including sign-in and the static files."""
    routes = [
        Route(SIGN_IN_PATH, _without_session(site, sign_in.show_sign_in), methods=["GET"]),
        Route(SIGN_IN_PATH, _without_session(site, sign_in.sign_in), methods=["POST"]),
        Route(single_sign_on.BEGIN_PATH, _without_session(site, single_sign_on.begin), methods=["GET"]),
        Route(single_sign_on.CALLBACK_PATH, _without_session(site, single_sign_on.finish), methods=["GET"]),
        Route("/sign-out", _with_session(site, sign_in.sign_out), methods=["POST"]),
        *(Route(path, _with_session(site, handler), methods=[method]) for method, path, handler in ROUTES),
        *assets.asset_routes(),
    ]
    handlers = {
        GatewayError: _describe_gateway_error,
        StentorError: _describe_stentor_error,
        HTTPException: _describe_http_exception,
        Exception: _describe_unexpected_error,
    }
    error_handlers = {kind: _error_handler(site, describe) for kind, describe in handlers.items()}
    app = Starlette(routes=routes, exception_handlers={**error_handlers, ClientDisconnect: _answer_nobody})
    return DefaultHeadersMiddleware(_CompressionMiddleware(app), SECURITY_HEADERS)


def _without_session(
    site: Site, handler: Callable[[Site, Request], Awaitable[Response]]
) -> Callable[..., Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        _reject_multipart(request)
        return await handler(site, request)

    return respond


def _with_session(site: Site, handler: PageHandler) -> Callable[[Request], Awaitable[Response]]:
    """Run the handler only with a valid session and, for a form, with the session's CSRF token. Fails closed."""

    async def respond(request: Request) -> Response:
        session = _find_session(site, request)
        # Also asks whether the key is still valid: a revoked key ends its sessions.
        if session is None or not await site.is_session_valid(session):
            return await _ask_to_sign_in(site, request)
        setattr(request.state, CALLER_CHECK, partial(_is_session_open, site, _session_token(request), session))
        _reject_multipart(request)
        page = PageRequest(site, request, session)
        if request.method == "POST" and not await _is_own_form(page):
            raise HTTPException(403, CROSS_SITE_FORM_MESSAGE)
        return await handler(page)

    return respond


def _find_session(site: Site, request: Request) -> BrowserSession | None:
    return site.sessions.find(_session_token(request))


def _session_token(request: Request) -> str:
    is_tls = browser_sessions.is_tls_request(request)
    return browser_sessions.read_session_cookie(request.cookies, is_tls=is_tls)


async def _is_session_open(site: Site, token: str, session: BrowserSession) -> bool:
    return site.sessions.is_open(token) and await site.is_session_valid(session)


def _reject_multipart(request: Request) -> None:
    """Raise HTTPException for multipart forms: their parts declare charsets of their own, which may yield invalid
    text.
    """
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise HTTPException(415, UNSUPPORTED_FORM_MESSAGE)


async def _is_own_form(page: PageRequest) -> bool:
    if not is_same_origin(page.request):
        return False
    form = await page.form()
    # Requests of scripts have the token in a header, forms without JavaScript in a field.
    token = page.request.headers.get("x-csrf") or form.get("csrf")
    return isinstance(token, str) and browser_sessions.is_csrf_token_valid(page.session, token)


async def _ask_to_sign_in(site: Site, request: Request) -> Response:
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
        return HTMLResponse(RELOAD_HTML)
    # A partial page or an event stream cannot show the sign-in page. The page stays, with everything that was typed
    # into it, and its script says that the session has ended.
    if request.headers.get("hx-request") or request.headers.get("accept", "").startswith("text/event-stream"):
        return Response("Sign in again.", 401)
    if request.method != "GET":
        texts = await _read_texts(request)
        return sign_in.render_sign_in(site, request, ENDED_SESSION_MESSAGE, 401, _find_retry(request), texts)
    target = _address(request)
    query = "" if target == "/" else f"?next={quote(target, safe='')}"
    return RedirectResponse(SIGN_IN_PATH + query, 303)


async def _read_texts(request: Request) -> list[str]:
    """Return the texts of a form that cannot be submitted after the sign-in, so that the user can copy them."""
    length = request.headers.get("content-length", "")
    if not is_same_origin(request) or not length.isdecimal() or int(length) > MAX_TEXT_BYTES:
        return []
    try:
        fields = (await forms.read_form(request)).multi_items()
    except (HTTPException, RuntimeError):
        # RuntimeError: after an unexpected error there is no connection to read from.
        return []
    return [str(value) for name, value in fields if name not in _NOT_WRITTEN and _is_written(str(value))]


def _is_written(text: str) -> bool:
    """Return whether somebody wrote the text: names, choices and tokens need no copy.

    A text has white space, or is in a script such as Japanese that has none between words.
    """
    return len(text.split(None, 1)) > 1 or not text.isascii()


def _address(request: Request) -> str:
    return encode_path(request) + (f"?{request.url.query}" if request.url.query else "")


def _find_retry(request: Request) -> str:
    """Return the page from which a request can be repeated: for a form, the page that contains it, if known."""
    if request.method == "GET":
        return _address(request)
    _, _, page_path = request.headers.get("referer", "").partition("://")
    retry = sign_in.safe_next_path("/" + page_path.partition("/")[2])
    return "" if retry == "/" else retry


def _find_parent_page(request: Request) -> str:
    """Return the address one level up, "" if there is no page."""
    scope = {**request.scope, "path": request.url.path.rpartition("/")[0]}
    has_page = any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    return encode_path(request).rpartition("/")[0] if has_page else ""


ErrorPage = tuple[int, str, str]
"""Status, title, message."""


def _error_handler(
    site: Site, describe_error: Callable[[Request, Exception], ErrorPage]
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def respond(request: Request, error: Exception) -> Response:
        status, title, message = describe_error(request, error)
        if describe_error is not _describe_unexpected_error:
            drop_tracebacks(error)
        session = _find_session(site, request)
        if session is None and request.url.path == SIGN_IN_PATH:
            return PlainTextResponse(message, status)  # a redirect to the sign-in page would loop
        if status == 401 or session is None:
            return await _ask_to_sign_in(site, request)
        if status == 405 and request.method == "GET" and (parent := _find_parent_page(request)):
            # The address of a refused form was entered again: its page is one level up.
            return RedirectResponse(parent, 303)
        # A same-origin form is the user's own, from an earlier session: going back may lose what was typed into it.
        is_foreign_form = message == CROSS_SITE_FORM_MESSAGE and is_same_origin(request)
        # The same request to an address that does not exist, or with a wrong value, fails again.
        may_pass = status in (409, 429) or status >= 500 or is_foreign_form
        retry = _find_retry(request) if may_pass else ""
        # The link back leads to an empty form.
        texts = await _read_texts(request) if request.method == "POST" else []
        page = PageRequest(site, request, session)
        response = page.render("problem.html", status, title=title, message=message, retry=retry, texts=texts)
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        if request.headers.get("x-live"):
            # A failed background reload keeps the content; the page's status says that it is not live.
            response.headers["HX-Reswap"] = "none"
        elif request.headers.get("hx-request"):
            response.headers["HX-Retarget"], response.headers["HX-Reswap"] = "#main", "innerHTML"
        return response

    return respond


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """Respond to a client that left before the end of its form. Nobody reads it; the service is not at fault."""
    return Response(status_code=400)


def _describe_gateway_error(request: Request, error: Exception) -> ErrorPage:
    assert isinstance(error, GatewayError)
    titles = {401: "Session expired", 403: "Permission denied", 404: "Not found", 409: "Conflict", 410: "Archived"}
    titles |= {429: "Too many requests", 503: "Temporarily unavailable"}
    # Who lacks a permission wants to know how to get it.
    hint = " Ask an admin of this service for it." if "needs the permission" in error.message else ""
    return error.status, titles.get(error.status, "Request rejected"), error.message + hint


def _describe_stentor_error(request: Request, error: Exception) -> ErrorPage:
    assert isinstance(error, StentorError)
    if isinstance(error, ServiceUnavailable):
        return error.status, "Gateway unreachable", error.message
    return error.status, "Request rejected" if error.status == 400 else "Cannot load this page", error.message


def _describe_http_exception(request: Request, error: Exception) -> ErrorPage:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return 404, "Not found", "No page has this address."
    return error.status_code, "Request rejected", str(error.detail)


def _describe_unexpected_error(request: Request, error: Exception) -> ErrorPage:
    log.error("pages: request failed path=%s", request.url.path, exc_info=error)
    return 500, "Internal error", "See the dashboard log for details."


class _CompressionMiddleware:
    """Compresses static files, and pages if the browser says that no other site caused the request.

    A site that could make a browser ask for a page again and again, with texts of its own in it, could guess the rest
    of the page from the lengths of the responses (BREACH).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, compresslevel=COMPRESSION_LEVEL, thread_minimum_size=INLINE_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_safe = Headers(scope=scope).get("sec-fetch-site") in ("same-origin", "none")
        app = self._compressing if is_safe or scope["path"].startswith("/static/") else self._app
        await app(scope, receive, send)


ROUTES: list[tuple[str, str, PageHandler]] = [
    *overview.ROUTES,
    *alerts.ROUTES,
    *audit.ROUTES,
    *task_selection.ROUTES,  # before the page of one task, whose path would match
    *task_batches.ROUTES,  # too
    *task_list.ROUTES,
    *tasks.ROUTES,
    *task_runs.ROUTES,
    *decisions.ROUTES,
    *downloads.ROUTES,
    *console.ROUTES,
    *agent_comparison.ROUTES,  # before the page of one agent, whose path would match
    *agent_editing.ROUTES,
    *agents.ROUTES,
    *governance.ROUTES,
    *memory.ROUTES,
    *memory_editing.ROUTES,
    *messages.ROUTES,
    *models.ROUTES,
    *model_providers.ROUTES,
    *playground.ROUTES,
    *model_budgets.ROUTES,
    *model_calls.ROUTES,
    *provenance.ROUTES,
    *schedules.ROUTES,
    *sessions.ROUTES,
    *webhooks.ROUTES,
    *keys.ROUTES,
]
"""Method, path, handler. All require a session, and every POST its CSRF token."""
