"""Signing in with a key of the gateway, and out."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from stentor.core.errors import ServiceUnavailable
from stentor.surfaces.dashboard.site.calls import Refused, target
from stentor.surfaces.dashboard.site.origin import encrypted, same_origin
from stentor.surfaces.dashboard.site.page import Page, Site
from stentor.surfaces.dashboard.site.sessions import COOKIE, HOST_COOKIE, presented

WRONG = "This key is not one that the service knows."
BLIND = "This key may not read, and pages are for reading."
MACHINE = "This is the key of an agent. Pages show all of a tenant, and an agent's key sees its own tasks."
EMPTY = "Give a key."
FOREIGN = "The form did not come from this page. Try again."
MANY = "Too many attempts. Wait a minute."


async def form(site: Site, request: Request) -> Response:
    return _form(site, request)


async def enter(site: Site, request: Request) -> Response:
    """The key is checked by the gateway, which says who holds it."""
    fields = await request.form()
    key = str(fields.get("key") or "").strip()
    if not same_origin(request):
        return _form(site, request, FOREIGN, 403)
    if not key:
        return _form(site, request, EMPTY, 400)
    address = request.client.host if request.client else ""
    if site.attempts.full(address):
        return _form(site, request, MANY, 429)
    try:
        reply = await site.caller.call(key, "GET", target("/whoami"))
    except ServiceUnavailable as error:
        return _form(site, request, error.message, 503)
    if reply.status == 403:
        return _form(site, request, BLIND, 403)
    if reply.status == 401:
        site.attempts.count(address)
        return _form(site, request, WRONG, 401)
    if reply.status != 200 or not isinstance(reply.data, dict):
        # Nothing is known of the key: the gateway is busy or out of order.
        return _form(site, request, Refused(reply).message, 429 if reply.status == 429 else 503)
    who = reply.data
    if who["role"] == "agent" and "admin" not in who["permissions"]:
        return _form(site, request, MACHINE, 403)
    token = site.sessions.open(key, who["name"], who["role"], frozenset(who["permissions"]), who["tenant"])
    answer = RedirectResponse(_wanted(str(fields.get("next") or "")), 303)
    tls = encrypted(request)
    lasts = int(site.sessions.lifetime)
    name = HOST_COOKIE if tls else COOKIE
    answer.set_cookie(name, token, max_age=lasts, httponly=True, samesite="strict", secure=tls)
    return answer


async def leave(page: Page) -> Response:
    page.site.sessions.end(presented(page.request.cookies, tls=page.request.url.scheme == "https"))
    answer = RedirectResponse("/sign-in", 303)
    for name in (HOST_COOKIE, COOKIE):
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=name == HOST_COOKIE)
    return answer


def _form(site: Site, request: Request, problem: str = "", status: int = 200) -> Response:
    wanted = _wanted(request.query_params.get("next", ""))
    template = site.templates.get_template("sign-in.html")
    return HTMLResponse(template.render(problem=problem, wanted=wanted), status)


def _wanted(path: str) -> str:
    """Where somebody was going; only ever a path of this site."""
    harmless = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    try:
        return path if harmless and not urlsplit(path).netloc else "/"
    except ValueError:
        return "/"
