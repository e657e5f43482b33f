"""What the routes under /v1 share: how a request is read, and which errors of a provider are the client's.

OpenAI's routes are in `openai_api`, Anthropic's in `anthropic_api`. Both read the body themselves, because the clients
send more fields than can be listed, and neither is in the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HttpRequest

from stentor.core.errors import InvalidRequest, ModelNotFound, ProviderFault
from stentor.core.jsontext import JsonObject
from stentor.core.validation.validation_errors import describe_union_errors
from stentor.domains.llm.service import CLIENT_ERROR_STATUSES
from stentor.web.request_context import find_header

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


def task_header(http: HttpRequest) -> str | None:
    """Return the task that the caller works on; None if the request names none."""
    return find_header(http.scope, b"x-task-id")


def session_id(http: HttpRequest, named: str | None = None) -> str | None:
    """Return the session that a request continues: the one that its body names, or of the header X-Session-Id.

    Raises InvalidRequest if they name different ones.
    """
    header = find_header(http.scope, b"x-session-id")
    # opencode sends an id of its own under this name, and again as the affinity; it keeps the conversation itself.
    if header is None or header == find_header(http.scope, b"x-session-affinity"):
        return named
    if not 0 < len(header) <= 255 or not header.isprintable() or named not in (None, header):
        reason = "the body names another session" if named is not None else "must be the id of a session"
        raise InvalidRequest(f"X-Session-Id: {reason}.")
    return header


async def read_object(http: HttpRequest) -> JsonObject:
    raw = await http.json()
    if not isinstance(raw, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return raw


def validate_body(model: type[B], raw: Any) -> B:
    """Validate a body. Raises RequestValidationError, as FastAPI does for other routes."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise RequestValidationError(describe_union_errors(error, raw)) from None


async def map_client_errors(call: Awaitable[T]) -> T:
    """Await a call, and raise InvalidRequest if the provider rejects the request with a client error, ModelNotFound if
    it does not know the model.

    The clients do not retry a 400 or 404, but they do retry the 502 of a provider error.
    """
    try:
        return await call
    except ProviderFault as fault:
        if fault.upstream_status in CLIENT_ERROR_STATUSES:
            fields = {fault.reported_param: fault.message} if fault.reported_param else None
            raise InvalidRequest(fault.message, {"openai_code": fault.reported_code, "fields": fields}) from None
        # Any other 404 comes from a wrong base address.
        if fault.upstream_status == HTTPStatus.NOT_FOUND and "model" in fault.message.lower():
            raise ModelNotFound(fault.message) from None
        raise
