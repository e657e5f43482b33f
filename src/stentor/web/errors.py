"""The gateway's dialects of errors: the contract's envelope, problem+json for who accepts it, OpenAI's under /v1/."""

from __future__ import annotations

import logging
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
from stentor.core.errors import InvalidRequest, ProviderFault, RateLimited, StentorError, StoreUnavailable
from stentor.web import openai_errors

PROBLEM = "application/problem+json"
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
THROTTLED = "Rate limit exceeded"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
UNEXPECTED = "The service failed on this request. The operator finds the reason in its log under the request id."


NO_STORE = "The database cannot be used. The service's log says why."
log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Have the application render every error in this dialect."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _on_unexpected)


def handler_of(error: Exception) -> Callable[[Request, Exception], Awaitable[Response]] | None:
    """What answers an error that is foreseen; None for any other."""
    return next((handler for kind, handler in _HANDLERS.items() if isinstance(error, kind)), None)


def render(
    scope: Scope,
    status: int,
    code: str,
    message: str,
    details: Any = None,
    headers: dict[str, str] | None = None,
) -> Response:
    request_id = scope.get("state", {}).get("request_id", "")
    if openai_errors.speaks(scope):
        return openai_errors.render(status, code, message, details, headers)
    if _wants_problem(scope):
        body = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": message,
        }
        body |= {"code": code, "request_id": request_id} | ({"details": details} if details else {})
        return Response(jsontext.encode(body), status, headers, PROBLEM)
    error = {"code": code, "message": message, "request_id": request_id}
    if details:
        error["details"] = details
    return Response(jsontext.encode({"error": error}), status, headers, "application/json")


def render_error(scope: Scope, error: StentorError) -> Response:
    """A 5xx says its sentence only when it is ours to say: outages yes, corrupt records by id. What a database driver
    said of an outage is for the log: it names tables and addresses.
    """
    if isinstance(error, StoreUnavailable) and error.__cause__ is not None:
        log.warning("%s", error.message)
        return render(scope, error.status, error.code, NO_STORE, None, {"Retry-After": str(error.retry_after)})
    headers = {"Retry-After": str(error.retry_after)} if error.status in (429, 503) else None
    if isinstance(error, RateLimited) and headers:
        whose = "Provider rate limit exceeded" if isinstance(error, ProviderFault) else THROTTLED
        return throttled(scope, error.message, headers, error.code, whose, error.details)
    return render(scope, error.status, error.code, error.message, error.details, headers)


def throttled(
    scope: Scope,
    message: str,
    headers: dict[str, str],
    code: str = RateLimited.code,
    whose: str = THROTTLED,
    details: Any = None,
) -> Response:
    """429 in the body that the contract gives it; `headers` hold Retry-After in seconds. `whose` says which limit."""
    if openai_errors.speaks(scope):
        return openai_errors.render(429, code, message, None, headers)
    body = {"success": False, "code": code, "error": whose, "message": message}
    if details:
        body["details"] = details
    return Response(jsontext.encode(body), 429, headers, "application/json")


def render_unexpected(scope: Scope) -> Response:
    return render(scope, 500, StentorError.code, UNEXPECTED)


def field_errors(errors: Sequence[Any]) -> dict[str, Any]:
    """pydantic's list as `{"fields": {"metadata.priority": "reason"}}`, without the input."""
    fields = {}
    for error in errors:
        location = [str(part) for part in error["loc"]]
        where = ".".join(location[1:] if location[:1] == ["body"] and len(location) > 1 else location)
        fields[where] = str(error["msg"]).removeprefix("Value error, ")
    return {"fields": fields}


def invalid(errors: Sequence[Any]) -> InvalidRequest:
    """pydantic's list as the error that says where the first flaw is, and names all of them."""
    details = field_errors(errors)
    first, reason = next(iter(details["fields"].items()))
    return InvalidRequest(f"{first}: {reason}", details)


async def _on_stentor_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StentorError)
    return render_error(request.scope, error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return render_error(request.scope, invalid(error.errors()))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "INVALID_REQUEST")
    message = str(error.detail)
    if error.status_code == 404 and message == "Not Found":
        message = f"There is nothing at {request.method} {request.url.path}."
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods_at(request))
        message = f"{request.url.path} has no {request.method}, but {headers['Allow']}."
    return render(request.scope, error.status_code, code, message, headers=headers)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    StentorError: _on_stentor_error,
    RequestValidationError: _on_validation_error,
    HTTPException: _on_http_exception,
}


async def _on_unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this answer; RequestContext logs it."""
    return render_unexpected(request.scope)


def _methods_at(request: Request) -> list[str]:
    """Of all routes with this path: each method is a route of its own, and the router names only one."""
    routes = request.app.routes
    scopes = ({**request.scope, "method": method} for method in _METHODS)
    return [s["method"] for s in scopes if any(route.matches(s)[0] == Match.FULL for route in routes)]


def _wants_problem(scope: Scope) -> bool:
    return any(name == b"accept" and PROBLEM.encode() in value for name, value in scope["headers"])
