"""Sign-in with the provider: redirect to it with a code challenge, and handle the redirect back with a code."""

from __future__ import annotations

import hmac
import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stentor.core.errors import ServiceUnavailable, SignInFailed, SignInRefused
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages.access.sign_in import open_session, render_sign_in
from stentor.surfaces.dashboard.pages.overview.recent_changes import read_visit
from stentor.surfaces.dashboard.site.page import Site
from stentor.surfaces.dashboard.site.sessions import is_tls_request
from stentor.surfaces.dashboard.site.single_sign_on import (
    HOST_PENDING_COOKIE,
    PENDING_COOKIE,
    PENDING_SECONDS,
    PendingSignIn,
    SingleSignOn,
)

BEGIN_PATH, CALLBACK_PATH = "/sign-in/provider", "/sign-in/callback"
EXPIRED_MESSAGE = "This sign-in has expired, or began in another browser. Start again."
log = logging.getLogger(__name__)


async def begin(site: Site, request: Request) -> Response:
    """Send the browser to the provider, and keep in a cookie what must come back."""
    single_sign_on = _require(site)
    is_tls = is_tls_request(request)
    scheme = "https" if is_tls else "http"
    redirect_uri = f"{scheme}://{request.url.netloc}{CALLBACK_PATH}"
    pending = single_sign_on.begin(redirect_uri, request.query_params.get("next", ""))
    try:
        url = await single_sign_on.provider.authorization_url(
            redirect_uri, pending.state, pending.nonce, pending.verifier
        )
    except ServiceUnavailable as error:
        log.warning("sign_in: provider failed reason=%s", error.message)
        return render_sign_in(site, request, error.message, 503)
    response = RedirectResponse(url, 303)
    # Lax, because the redirect back comes from the provider's site: with Strict the browser would withhold the cookie.
    response.set_cookie(
        _pending_cookie(is_tls=is_tls),
        single_sign_on.seal(pending),
        max_age=PENDING_SECONDS,
        httponly=True,
        samesite="lax",
        secure=is_tls,
    )
    return response


async def finish(site: Site, request: Request) -> Response:
    """Exchange the code that the provider sent, have the gateway open a session, and set its cookie."""
    single_sign_on = _require(site)
    address = request.client.host if request.client else ""
    is_tls = is_tls_request(request)
    cookie = _pending_cookie(is_tls=is_tls)
    pending = single_sign_on.open(request.cookies.get(cookie, ""))
    # Somebody else's response, slipped into this browser, would sign its user in as somebody else.
    # As bytes, because `compare_digest` rejects texts that are not ASCII.
    state = request.query_params.get("state", "").encode("utf-8", "replace")
    if pending is None or not hmac.compare_digest(pending.state.encode(), state):
        return render_sign_in(site, request, EXPIRED_MESSAGE, 400)
    try:
        session = await _open_at_gateway(site, single_sign_on, pending, request, address)
    except (SignInFailed, ServiceUnavailable, GatewayError) as error:
        # Anybody can cause such lines, so they are limited per address and minute.
        if not site.login_throttle.is_blocked(address):
            log.warning("sign_in: failed with the provider reason=%s", error.message)
        # Not for an outage of the provider or the gateway, which is not the user's fault.
        if error.status in (401, 403):
            site.login_throttle.record_failure(address)
            # The gateway has recorded a refused account itself.
            if error.code != SignInRefused.code:
                site.refused_sign_ins.add(address)
        response = render_sign_in(site, request, error.message, error.status)
    else:
        token = site.sessions.create(session["session"], session, read_visit(request), is_personal=True)
        response = open_session(site, request, token, pending.next_path)
    # Also after a failure: state, nonce and verifier are for one attempt.
    response.delete_cookie(cookie, httponly=True, samesite="lax", secure=is_tls)
    return response


async def _open_at_gateway(
    site: Site, single_sign_on: SingleSignOn, pending: PendingSignIn, request: Request, address: str
) -> dict[str, str]:
    parameters = request.query_params
    if problem := parameters.get("error"):
        # Anybody may have written it: a line break would forge a line of the log.
        text = "".join(c for c in parameters.get("error_description") or problem if c.isprintable())
        raise SignInFailed(f"The provider did not sign you in: {text[:300]}")
    tokens = await single_sign_on.provider.exchange(parameters.get("code", ""), pending.verifier, pending.redirect_uri)
    body = {
        "id_token": tokens.id_token,
        "nonce": pending.nonce,
        "access_token": tokens.access_token,
        "address": address,
    }
    return dict(await site.gateway.call("", "people.sign_in", {"body": body}))


def _pending_cookie(*, is_tls: bool) -> str:
    return HOST_PENDING_COOKIE if is_tls else PENDING_COOKIE


def _require(site: Site) -> SingleSignOn:
    if site.single_sign_on is None:
        raise HTTPException(404, "Page not found.")
    return site.single_sign_on
