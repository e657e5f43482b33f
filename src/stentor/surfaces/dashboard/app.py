"""Assembles the ASGI application of the dashboard service: the API behind its key, the pages behind their session."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor import __version__
from stentor.auth.principal import Principal
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard import api
from stentor.surfaces.dashboard.authentication import RESPONSE_HEADERS, DashboardAuthMiddleware
from stentor.surfaces.dashboard.pages.app import SIGN_IN_PATH
from stentor.surfaces.dashboard.wire import DASHBOARD_ERROR_RESPONSES
from stentor.web import errors, openapi_document
from stentor.web.middleware import BodySizeMiddleware, DefaultHeadersMiddleware
from stentor.web.request_context import RequestContextMiddleware

MAX_BODY_BYTES = 2_000_000
"""Of requests to the API, and of a sign-in."""
FORM_EXPANSION = 3
"""How many times longer a text is in a form than in JSON, at most: a byte becomes `%E6`."""
DASHBOARD = "the dashboard"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
DESCRIPTION = (
    "Read-only view of tasks and agents from the stores of a Stentor, and streamed task execution through its gateway."
)
SECURITY: JsonObject = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}


def build_dashboard_app(
    routers: list[APIRouter], key: str | None, principal: Principal, pages: ASGIApp, max_body: int
) -> ASGIApp:
    """Build the ASGI application. All API callers act as `principal`; without `key` the API accepts local callers only.

    `pages` authenticates its own requests: a session that starts with a gateway key. `max_body` is the gateway's limit
    in bytes; a page takes the same text as a form.
    """
    app = FastAPI(
        title="Stentor dashboard service",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        redirect_slashes=False,
    )
    errors.install_error_handlers(app)
    app.include_router(api.create_health_router())
    for router in routers:
        app.include_router(router, responses=DASHBOARD_ERROR_RESPONSES)
    # Last, so that it cannot shadow a route of this service.
    app.add_api_route("/api/v1/{path:path}", _refuse_gateway_path, methods=_METHODS, include_in_schema=False)
    openapi_document.install(app, lambda schema: openapi_document.add_security(schema, SECURITY))
    public = frozenset((api.HEALTH_PATH, openapi_document.PATH))
    authenticated_api = DefaultHeadersMiddleware(DashboardAuthMiddleware(app, key, principal, public), RESPONSE_HEADERS)

    small = BodySizeMiddleware(pages, MAX_BODY_BYTES)
    large = BodySizeMiddleware(pages, FORM_EXPANSION * max_body, app_renders=True)
    limited_api = BodySizeMiddleware(authenticated_api, MAX_BODY_BYTES)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        # Before the sign-in, whose 401 would suggest to a client that its key is wrong.
        if scope["type"] == "http" and (errors.is_openai_path(scope) or scope["path"] == "/mcp"):
            error = errors.wrong_port_error(scope["path"], DASHBOARD)
            await errors.render_stentor_error(scope, error)(scope, receive, send)
            return
        # By path and not by mounting: both applications begin at the root.
        is_api = scope["type"] != "http" or scope["path"].startswith("/api/") or scope["path"] in public
        await (limited_api if is_api else small if scope["path"] == SIGN_IN_PATH else large)(scope, receive, send)

    return RequestContextMiddleware(dispatch)


def _refuse_gateway_path(path: str) -> None:
    """Tell a client of the API that it uses the wrong port."""
    raise errors.wrong_port_error(f"/api/v1/{path}", DASHBOARD)
