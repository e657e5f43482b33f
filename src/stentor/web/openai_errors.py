"""Errors as OpenAI's clients read them, on the routes that speak OpenAI's dialect."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from stentor.core import jsontext

PREFIX = "/v1/"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def speaks(scope: Scope) -> bool:
    """Whether the path is one of that dialect."""
    return str(scope.get("path", "")).startswith(PREFIX)


def render(status: int, code: str, message: str, details: Any, headers: dict[str, str] | None) -> Response:
    return Response(jsontext.encode(body(status, code, message, details)), status, headers, "application/json")


def body(status: int, code: str, message: str, details: Any = None) -> dict[str, Any]:
    """`param` is the first field that is wrong, when there is one."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    fields = details.get("fields") if isinstance(details, dict) else None
    param = next(iter(fields)) if fields else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code.lower()}}
