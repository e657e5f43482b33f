"""Render errors: the contract's envelope, problem+json for clients that accept it, OpenAI's or Anthropic's under /v1/.

The error classes are in `core.errors`; each names its code and status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from stentor.core import jsontext
from stentor.core.errors import (
    BudgetExceeded,
    InvalidRequest,
    NotFound,
    ProviderFault,
    RateLimited,
    StentorError,
    drop_tracebacks,
)
from stentor.core.jsontext import JsonObject
from stentor.core.validation.validation_errors import field_errors

PROBLEM_MEDIA_TYPE = "application/problem+json"
_CODES = {
    400: "INVALID_REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    415: "INVALID_REQUEST",
    429: "RATE_LIMITED",
    503: "SERVICE_UNAVAILABLE",
}
NO_RETRY = {"X-Should-Retry": "false"}
"""What keeps OpenAI's clients from sending a request again, as they do after 409, 429 and 5xx."""
THROTTLED_TITLE = "Rate limit exceeded"
UNEXPECTED_MESSAGE = (
    "The service failed on this request. The operator can find the reason in the log by the request id."
)
OPENAI_PREFIX = "/v1/"
ANTHROPIC_PATH = "/v1/messages"
API_PREFIX = "/api/v1"
_OPENAI_ENDS = ("/chat/completions", "/responses", "/embeddings", "/models")
SPENT_TYPE = "insufficient_quota"
"""OpenAI's type for a spent budget. Codex would wait for the Retry-After of any other 429, which may be weeks."""
SOON_SECONDS = 60
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def install_error_handlers(app: FastAPI) -> None:
    """Make the application render all errors with this module."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    # Apart from _HANDLERS: fast routes use those, and leave unexpected errors to the outermost middleware.
    app.add_exception_handler(Exception, _on_unexpected)


def find_error_handler(error: Exception) -> Callable[[Request, Exception], Awaitable[Response]] | None:
    """Return the handler of an expected error; None for an unexpected one."""
    return next((handler for kind, handler in _HANDLERS.items() if isinstance(error, kind)), None)


def render_error(
    scope: Scope,
    status: int,
    code: str,
    message: str,
    details: Any = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the error response in the format that fits the path and the Accept header."""
    request_id = scope.get("state", {}).get("request_id", "")
    if is_openai_path(scope):
        return render_v1_error(scope, status, code, message, details, headers)
    if _wants_problem(scope):
        body = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": message,
        }
        body |= {"code": code, "request_id": request_id} | ({"details": details} if details else {})
        return Response(jsontext.encode(body), status, headers, PROBLEM_MEDIA_TYPE)
    error = {"code": code, "message": message, "request_id": request_id}
    if details:
        error["details"] = details
    return Response(jsontext.encode({"error": error}), status, headers, "application/json")


def render_stentor_error(scope: Scope, error: StentorError) -> Response:
    """Return the response of an error of the service."""
    headers = {"Retry-After": str(error.retry_after)} if error.status in (429, 503) else {}
    if not error.is_repeatable:
        headers = NO_RETRY | ({} if error.status == 503 else headers)
    if isinstance(error, RateLimited):
        title = "Provider rate limit exceeded" if isinstance(error, ProviderFault) else THROTTLED_TITLE
        return render_throttled(scope, error.message, headers, error.code, title, error.details)
    return render_error(scope, error.status, error.code, error.message, error.details, headers)


def render_throttled(
    scope: Scope,
    message: str,
    headers: dict[str, str],
    code: str = RateLimited.code,
    title: str = THROTTLED_TITLE,
    details: Any = None,
) -> Response:
    """Return a 429 with the contract's body. `headers` contain Retry-After in seconds; `title` names the limit."""
    if is_openai_path(scope):
        return render_v1_error(scope, 429, code, message, None, headers)
    body = {"success": False, "code": code, "error": title, "message": message}
    if details:
        body["details"] = details
    return Response(jsontext.encode(body), 429, headers, "application/json")


def render_unexpected(scope: Scope) -> Response:
    return render_error(scope, 500, StentorError.code, UNEXPECTED_MESSAGE)


def validation_error(errors: Sequence[Any]) -> InvalidRequest:
    """Convert pydantic's errors to one error: the message has the first one, the details have all."""
    details = field_errors(errors)
    first, reason = next(iter(details["fields"].items()))
    return InvalidRequest(f"{first}: {reason}", details)


async def _on_stentor_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StentorError)
    drop_tracebacks(error)
    return render_stentor_error(request.scope, error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    drop_tracebacks(error)
    return render_stentor_error(request.scope, validation_error(error.errors()))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    drop_tracebacks(error)
    code = _CODES.get(error.status_code, "INVALID_REQUEST")
    message = str(error.detail)
    # Starlette's own text: no route matched. A 404 that a route raises has another message.
    if error.status_code == 404 and message == "Not Found":
        route = f"{request.method} {request.url.path}"
        error = NotFound(f"No route {route}. {_suggest_base_url(request.url.path)}", {"route": route})
        return render_stentor_error(request.scope, error)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods_at(request))
        message = f"{request.url.path} does not support {request.method}. Allowed: {headers['Allow']}."
    return render_error(request.scope, error.status_code, code, message, headers=headers)


def _suggest_base_url(path: str) -> str:
    """Return a hint about the base URL, for a request with an unknown path."""
    if path.endswith(_OPENAI_ENDS) and not path.startswith(OPENAI_PREFIX):
        return "The base address of OpenAI clients ends with /v1, right after the port."
    if path.startswith(f"/v1{ANTHROPIC_PATH}"):
        return "The base address of Anthropic's clients ends before /v1, right after the port."
    if path.startswith(API_PREFIX * 2):
        return "The address of the service ends before /api/v1."
    return "/openapi.json lists the routes of the API, which begin with /api/v1."


def wrong_port_error(path: str, what: str) -> NotFound:
    """Return the error for a client of the gateway at the port of `what`."""
    message = f"No route {path} here: this is {what}. The API is on the gateway's port, by default 8080."
    return NotFound(message, {"route": path})


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    StentorError: _on_stentor_error,
    RequestValidationError: _on_validation_error,
    HTTPException: _on_http_exception,
}


async def _on_unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this response; RequestContextMiddleware logs it."""
    return render_unexpected(request.scope)


def _methods_at(request: Request) -> list[str]:
    """Return the methods of all routes with this path; each method is a route of its own, the router knows only one."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    scopes = ({**request.scope, "method": method} for method in _METHODS)
    return [s["method"] for s in scopes if any(route.matches(s)[0] == Match.FULL for route in routes)]


def _wants_problem(scope: Scope) -> bool:
    return any(name == b"accept" and PROBLEM_MEDIA_TYPE.encode() in value for name, value in scope["headers"])


def is_openai_path(scope: Scope) -> bool:
    """Return whether the path belongs to the API of OpenAI's or of Anthropic's clients."""
    return str(scope.get("path", "")).startswith(OPENAI_PREFIX)


def render_v1_error(
    scope: Scope, status: int, code: str, message: str, details: Any, headers: dict[str, str] | None
) -> Response:
    """Return the error in the format of the clients that the path is for."""
    if scope["path"] == ANTHROPIC_PATH or scope["path"].startswith(f"{ANTHROPIC_PATH}/"):
        body = anthropic_error_body(status, code, message, scope.get("state", {}).get("request_id", ""))
    else:
        body = openai_error_body(status, code, message, details)
        if code == BudgetExceeded.code and int((headers or {}).get("Retry-After", "0")) > SOON_SECONDS:
            body["error"]["type"] = SPENT_TYPE
    return Response(jsontext.encode(body), status, headers, "application/json")


def anthropic_error_body(status: int, code: str, message: str, request_id: str) -> JsonObject:
    """Return the error in Anthropic's format, with the service's own code beside Anthropic's type."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message, "code": code.lower()}
    return {"type": "error", "error": error, "request_id": request_id or None}


def openai_error_body(status: int, code: str, message: str, details: Any = None) -> JsonObject:
    """Return the error in OpenAI's format; `param` is the first invalid field, if any.

    `openai_code` in the details replaces the code: clients know that of a provider, such as context_length_exceeded.
    """
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = details if isinstance(details, dict) else {}
    fields = details.get("fields")
    param = next(iter(fields)) if fields else None
    code = details.get("openai_code") or code
    return {"error": {"message": message, "type": kind, "param": param, "code": code.lower()}}
