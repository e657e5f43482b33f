"""Signing in with a key of the gateway, and out."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from stentor.core.errors import ServiceUnavailable
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.site.page import PageRequest, Site
from stentor.surfaces.dashboard.site.sessions import (
    HOST_SESSION_COOKIE,
    SESSION_COOKIE,
    is_https_request,
    is_same_origin,
    read_session_cookie,
)

UNKNOWN_KEY_MESSAGE = "The service does not know this key."
NO_READ_PERMISSION_MESSAGE = "This key has no read permission, which the dashboard needs."
AGENT_KEY_MESSAGE = "This is an agent's key, which sees only its own tasks. The dashboard needs the key of a person."
EMPTY_KEY_MESSAGE = "Enter a key."
CROSS_SITE_FORM_MESSAGE = "The form did not come from this page. Try again."
TOO_MANY_ATTEMPTS_MESSAGE = "Too many attempts. Wait a minute."


async def show_sign_in(site: Site, request: Request) -> Response:
    return _render_sign_in(site, request)


async def sign_in(site: Site, request: Request) -> Response:
    """The key is checked by the gateway, which says who holds it."""
    fields = await request.form()
    key = str(fields.get("key") or "").strip()
    if not is_same_origin(request):
        return _render_sign_in(site, request, CROSS_SITE_FORM_MESSAGE, 403)
    if not key:
        return _render_sign_in(site, request, EMPTY_KEY_MESSAGE, 400)
    address = request.client.host if request.client else ""
    if site.login_throttle.is_blocked(address):
        return _render_sign_in(site, request, TOO_MANY_ATTEMPTS_MESSAGE, 429)
    try:
        who = await site.gateway.call(key, "whoami", {})
    except ServiceUnavailable as error:
        return _render_sign_in(site, request, error.message, 503)
    except GatewayError as refused:
        if refused.status == 403:
            return _render_sign_in(site, request, NO_READ_PERMISSION_MESSAGE, 403)
        if refused.status == 401:
            site.login_throttle.record_failure(address)
            return _render_sign_in(site, request, UNKNOWN_KEY_MESSAGE, 401)
        # Nothing is known of the key: the gateway is busy or out of order.
        return _render_sign_in(site, request, refused.message, 429 if refused.status == 429 else 503)
    if who["role"] == "agent" and "admin" not in who["permissions"]:
        return _render_sign_in(site, request, AGENT_KEY_MESSAGE, 403)
    token = site.sessions.create(key, who["name"], who["role"], frozenset(who["permissions"]), who["tenant"])
    answer = RedirectResponse(_safe_next_path(str(fields.get("next") or "")), 303)
    tls = is_https_request(request)
    lasts = int(site.sessions.lifetime_seconds)
    name = HOST_SESSION_COOKIE if tls else SESSION_COOKIE
    answer.set_cookie(name, token, max_age=lasts, httponly=True, samesite="strict", secure=tls)
    return answer


async def sign_out(page: PageRequest) -> Response:
    page.site.sessions.delete(read_session_cookie(page.request.cookies, is_tls=page.request.url.scheme == "https"))
    answer = RedirectResponse("/sign-in", 303)
    for name in (HOST_SESSION_COOKIE, SESSION_COOKIE):
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=name == HOST_SESSION_COOKIE)
    return answer


def _render_sign_in(site: Site, request: Request, problem: str = "", status: int = 200) -> Response:
    wanted = _safe_next_path(request.query_params.get("next", ""))
    template = site.templates.get_template("sign-in.html")
    return HTMLResponse(template.render(problem=problem, wanted=wanted), status)


def _safe_next_path(path: str) -> str:
    """Where somebody was going; only ever a path of this site."""
    harmless = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    try:
        return path if harmless and not urlsplit(path).netloc else "/"
    except ValueError:
        return "/"
