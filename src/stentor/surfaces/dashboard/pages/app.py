"""The application of the pages: sign-in, the session before every page, and what an error looks like.

The routes of all pages.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.core.errors import ServiceUnavailable, StentorError
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages import (
    agents,
    console,
    governance,
    memory,
    messages,
    models,
    overview,
    provenance,
    sign_in,
    tasks,
    webhooks,
)
from stentor.surfaces.dashboard.site import assets, sessions
from stentor.surfaces.dashboard.site.page import PageHandler, PageRequest, Site
from stentor.surfaces.dashboard.site.sessions import Session, is_same_origin

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
    "Cache-Control": "no-store",
}
SIGN_IN_PATH = "/sign-in"
CROSS_SITE_FORM_MESSAGE = "This form does not belong to this session. Go back, reload the page, and submit it again."
UNSUPPORTED_FORM_MESSAGE = "Forms of these pages are sent as application/x-www-form-urlencoded."
RELOAD_HTML = '<!doctype html><meta http-equiv="refresh" content="0"><title>Stentor</title>'
"""For somebody who followed a link from another site: their browser keeps a strict cookie back the first time."""
log = logging.getLogger(__name__)


def build_pages_app(site: Site) -> ASGIApp:
    routes = [
        Route(SIGN_IN_PATH, _without_session(site, sign_in.show_sign_in), methods=["GET"]),
        Route(SIGN_IN_PATH, _without_session(site, sign_in.sign_in), methods=["POST"]),
        Route("/sign-out", _with_session(site, sign_in.sign_out), methods=["POST"]),
        *(Route(path, _with_session(site, handler), methods=[method]) for method, path, handler in ROUTES),
        *assets.asset_routes(),
    ]
    handlers = {
        GatewayError: _on_refused,
        StentorError: _on_error,
        HTTPException: _on_missing,
        Exception: _on_unexpected,
    }
    app = Starlette(routes=routes, exception_handlers={kind: _error_handler(site, fn) for kind, fn in handlers.items()})
    return _SecurityHeadersMiddleware(app)


def _without_session(
    site: Site, handler: Callable[[Site, Request], Awaitable[Response]]
) -> Callable[..., Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        _urlencoded(request)
        return await handler(site, request)

    return answer


def _with_session(site: Site, handler: PageHandler) -> Callable[[Request], Awaitable[Response]]:
    """Fails closed: no session, no page; and no form that is not the session's own."""

    async def answer(request: Request) -> Response:
        session = site.sessions.find(
            sessions.read_session_cookie(request.cookies, is_tls=request.url.scheme == "https")
        )
        if session is None or not await site.is_session_valid(session):
            return _to_sign_in(request)
        _urlencoded(request)
        if request.method == "POST" and not await _is_genuine_form(request, session):
            raise HTTPException(403, CROSS_SITE_FORM_MESSAGE)
        return await handler(PageRequest(site, request, session))

    return answer


def _urlencoded(request: Request) -> None:
    """Other forms name an encoding of their own, in which texts come that are none. Raises HTTPException."""
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise HTTPException(415, UNSUPPORTED_FORM_MESSAGE)


async def _is_genuine_form(request: Request, session: Session) -> bool:
    if not is_same_origin(request):
        return False
    given = request.headers.get("x-csrf") or (await request.form()).get("csrf")
    return isinstance(given, str) and sessions.is_csrf_token_valid(session, given)


def _to_sign_in(request: Request) -> Response:
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
        return HTMLResponse(RELOAD_HTML)
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"HX-Redirect": SIGN_IN_PATH})
    if request.method != "GET" or request.headers.get("accept", "").startswith("text/event-stream"):
        return Response("Sign in again.", 401)
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    after = "" if wanted == "/" else f"?next={quote(wanted, safe='')}"
    return RedirectResponse(SIGN_IN_PATH + after, 303)


ErrorPage = tuple[int, str, str]
"""Status, headline, what to do."""


def _error_handler(
    site: Site, judged: Callable[[Request, Exception], ErrorPage]
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        status, title, message = judged(request, error)
        session = site.sessions.find(
            sessions.read_session_cookie(request.cookies, is_tls=request.url.scheme == "https")
        )
        if session is None and request.url.path == SIGN_IN_PATH:
            return PlainTextResponse(message, status)  # a redirect would lead here again
        if status == 401 or session is None:
            return _to_sign_in(request)
        page = PageRequest(site, request, session)
        found = page.render("problem.html", status, title=title, message=message)
        if request.headers.get("x-live"):
            found.headers["HX-Reswap"] = "none"  # what is there stays; the top of the page tells that it is not live
        elif request.headers.get("hx-request"):
            found.headers["HX-Retarget"], found.headers["HX-Reswap"] = "#main", "innerHTML"
        return found

    return answer


def _on_refused(request: Request, error: Exception) -> ErrorPage:
    assert isinstance(error, GatewayError)
    titles = {401: "Signed out", 403: "Your key may not do this", 404: "Not found", 409: "Conflict"}
    titles |= {429: "Too many requests", 503: "Temporarily unavailable"}
    return error.status, titles.get(error.status, "The gateway refused"), error.message


def _on_error(request: Request, error: Exception) -> ErrorPage:
    assert isinstance(error, StentorError)
    title = "The gateway is unreachable" if isinstance(error, ServiceUnavailable) else "This page cannot be shown"
    return error.status, title, error.message


def _on_missing(request: Request, error: Exception) -> ErrorPage:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return 404, "Not found", "This page does not exist."
    return error.status_code, "Refused", str(error.detail)


def _on_unexpected(request: Request, error: Exception) -> ErrorPage:
    log.error("page %s failed", request.url.path, exc_info=error)
    return 500, "This page failed", "The log of the dashboard has the reason."


class _SecurityHeadersMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_safely)


ROUTES: list[tuple[str, str, PageHandler]] = [
    *overview.ROUTES,
    *tasks.ROUTES,
    *console.ROUTES,
    *tasks.STREAM_ROUTES,
    *agents.ROUTES,
    *agents.AGENT_ROUTES,
    *governance.ROUTES,
    *governance.CHECKPOINT_ROUTES,
    *memory.ROUTES,
    *memory.NOTE_ROUTES,
    *messages.COMPOSE_ROUTES,
    *messages.ROUTES,
    *models.ROUTES,
    *models.PROVIDER_ROUTES,
    *provenance.ROUTES,
    *provenance.RUN_ROUTES,
    *webhooks.ROUTES,
    *webhooks.ACTION_ROUTES,
    *webhooks.DELIVERY_ROUTES,
]
"""Method, path, handler; every one behind the session, and every POST behind its token."""
