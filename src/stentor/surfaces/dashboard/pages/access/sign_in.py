"""Sign-in with a gateway key, and sign-out. `single_sign_on` is the sign-in with a provider; see `site.sessions`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from stentor.core.errors import ServiceUnavailable
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages.overview.recent_changes import read_visit
from stentor.surfaces.dashboard.site.page import PageRequest, Site
from stentor.surfaces.dashboard.site.sessions import (
    HOST_SESSION_COOKIE,
    SESSION_COOKIE,
    is_bound_agent,
    is_https_request,
    is_same_origin,
    is_tls_request,
    read_session_cookie,
)

UNKNOWN_KEY_MESSAGE = "Invalid API key, or one that has expired."
NO_READ_PERMISSION_MESSAGE = "This key has no read permission, which the dashboard needs."
AGENT_KEY_MESSAGE = "Agent keys cannot sign in: pages show the whole tenant. Use a user key."
EMPTY_KEY_MESSAGE = "Enter an API key."
CROSS_SITE_FORM_MESSAGE = "Cross-site request rejected. Reload the page and submit the form again."
log = logging.getLogger(__name__)
TOO_MANY_ATTEMPTS_MESSAGE = "Invalid API key. Many sign-ins from your address have failed."


async def show_sign_in(site: Site, request: Request) -> Response:
    return render_sign_in(site, request)


async def sign_in(site: Site, request: Request) -> Response:
    """Check the key with the gateway, create a session and set its cookie."""
    fields = await request.form()
    key = str(fields.get("key") or "").strip()
    if not is_same_origin(request):
        return render_sign_in(site, request, CROSS_SITE_FORM_MESSAGE, 403)
    if not key:
        return render_sign_in(site, request, EMPTY_KEY_MESSAGE, 400)
    address = request.client.host if request.client else ""
    try:
        holder = await site.gateway.call(key, "whoami", {})
    except ServiceUnavailable as error:
        return render_sign_in(site, request, error.message, 503)
    except GatewayError as error:
        if error.status == 403:
            site.refused_sign_ins.add(address)
            return render_sign_in(site, request, NO_READ_PERMISSION_MESSAGE, 403)
        if error.status == 401:
            site.refused_sign_ins.add(address)
            if site.login_throttle.is_blocked(address):
                return render_sign_in(site, request, TOO_MANY_ATTEMPTS_MESSAGE, 429)
            site.login_throttle.record_failure(address)
            return render_sign_in(site, request, UNKNOWN_KEY_MESSAGE, 401)
        # The key may be valid, so this is not a failed sign-in: the gateway is busy or has failed.
        return render_sign_in(site, request, error.message, 429 if error.status == 429 else 503)
    # A valid key, so it does not count for the throttle, but the audit should show who tried.
    if is_bound_agent(holder):
        site.refused_sign_ins.add(address)
        return render_sign_in(site, request, AGENT_KEY_MESSAGE, 403)
    await _record(site, key, address)
    token = site.sessions.create(key, holder, read_visit(request))
    return open_session(site, request, token, str(fields.get("next") or ""))


def open_session(site: Site, request: Request, token: str, next_path: str) -> Response:
    """Set the cookie of a new session and lead to the page that was asked for."""
    response = RedirectResponse(safe_next_path(next_path), 303)
    is_tls = is_https_request(request)
    name = HOST_SESSION_COOKIE if is_tls else SESSION_COOKIE
    max_age = int(site.sessions.lifetime_seconds)
    response.set_cookie(name, token, max_age=max_age, httponly=True, samesite="strict", secure=is_tls)
    return response


async def _record(site: Site, key: str, address: str) -> None:
    """Record the sign-in in the run log. Fails open: a busy gateway is not a reason to keep somebody out."""
    try:
        await site.gateway.call(key, "audit.sign_in", {"body": {"surface": "dashboard", "address": address}})
    except (GatewayError, ServiceUnavailable) as error:
        log.warning("sign_in: not recorded reason=%s", error.message)


async def sign_out(page: PageRequest) -> Response:
    if page.session.is_personal:
        try:
            await page.call("people.sign_out", body={"session": page.session.key})
        except (GatewayError, ServiceUnavailable) as error:
            # This process forgets the session all the same; it ends at the gateway by itself.
            log.warning("sign_out: session not ended at the gateway reason=%s", error.message)
    page.site.sessions.delete(read_session_cookie(page.request.cookies, is_tls=is_tls_request(page.request)))
    response = RedirectResponse("/sign-in", 303)
    # Both: the browser may have signed in with and without TLS.
    for name in (HOST_SESSION_COOKIE, SESSION_COOKIE):
        response.delete_cookie(name, httponly=True, samesite="strict", secure=name == HOST_SESSION_COOKIE)
    return response


def render_sign_in(
    site: Site,
    request: Request,
    problem: str = "",
    status: int = 200,
    next_path: str = "",
    texts: Sequence[str] = (),
) -> Response:
    """Return the sign-in page. `texts` are those of a form that came without a session; the page keeps them."""
    next_path = safe_next_path(next_path or request.query_params.get("next", ""))
    template = site.templates.get_template("sign-in.html")
    label = site.single_sign_on.label if site.single_sign_on else ""
    page = template.render(problem=problem, next_path=next_path, provider=label, texts=texts)
    return HTMLResponse(page, status)


def safe_next_path(path: str) -> str:
    """Return the page to open after sign-in; `/` for anything that could lead to another site."""
    # Browsers read `//host` and `/\host` as another site.
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    try:
        return path if is_local and not urlsplit(path).netloc else "/"
    except ValueError:
        return "/"
