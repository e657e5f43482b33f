"""Wire types that the routes share: responses, parameters, cursors, and the errors of the OpenAPI."""

from __future__ import annotations

import base64
import binascii
import operator
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Generic, Self, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.clock import format_iso, micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import (
    UUID_PATTERN,
    check_iso8601,
    check_no_nul,
    check_not_blank,
    check_printable,
    check_utc,
)
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import GatewayRoute, get_caller, get_disconnected

T = TypeVar("T")


class JsonResponse(Response):
    """A response encoded with the fast encoder; its shape is declared as the route's response model."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return jsontext.encode(content)


class ResponseModel(BaseModel):
    """Base of all outputs: the client gets exactly what the model declares."""

    # defer_build: the serializers of routes that nobody calls would take 2 MB and a twentieth of the imports' time.
    model_config = ConfigDict(
        extra="forbid", from_attributes=True, validate_by_name=True, validate_by_alias=True, defer_build=True
    )

    @classmethod
    def of(cls, source: object = None, **fields: Any) -> Self:
        """Build it from the attributes of `source`; `fields` are those that the source lacks or has in another form."""
        for name, attribute in _attributes(cls):
            if name not in fields:
                value = getattr(source, attribute, _MISSING)
                if value is _MISSING and attribute != name:
                    value = getattr(source, name, _MISSING)
                if value is not _MISSING:
                    fields[name] = value
        return cls.model_validate(fields)

    @classmethod
    def trusted(cls, source: object, **fields: Any) -> Self:
        """Build it like `of` without validating it, which takes half the time; for long lists.

        The values must have the types that the model declares, such as a list where a list is declared.
        """
        defaults, names, read = _reader(cls, type(source))
        values = defaults.copy()
        values.update(zip(names, read(source), strict=True))
        values.update(fields)
        model = cls.__new__(cls)
        # As pydantic's `model_construct` does, which is slower than the validation.
        set_attribute = object.__setattr__
        set_attribute(model, "__dict__", values)
        set_attribute(model, "__pydantic_fields_set__", set())
        set_attribute(model, "__pydantic_extra__", None)
        set_attribute(model, "__pydantic_private__", None)
        return model


class CamelCaseModel(ResponseModel):
    """An output whose fields are camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel)


_MISSING = object()


@cache
def _attributes(model: type[BaseModel]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a model, each with the attribute of its source."""
    return tuple((name, str(field.validation_alias or name)) for name, field in model.model_fields.items())


@cache
def _reader(model: type[BaseModel], source: type) -> tuple[dict[str, Any], list[str], Callable[[Any], tuple[Any, ...]]]:
    """Return the defaults of a model, the fields whose attributes the class `source` has, and what reads those.

    The defaults are in the order of the fields, in which they are sent; None for a field without one.
    """
    defaults = {name: None if field.is_required() else field.default for name, field in model.model_fields.items()}
    found = {name: own for name, renamed in _attributes(model) for own in (name, renamed) if hasattr(source, own)}
    return defaults, list(found), operator.attrgetter(*found.values())


def _is_none(value: object) -> bool:
    return value is None


OmittedWhenNone: Any = Field(default=None, exclude_if=_is_none)
"""For an optional field of an output that is omitted instead of being null."""
OmittedWhenFalse: Any = Field(default=False, exclude_if=operator.not_)
"""For a flag of an output that is omitted unless it is true."""


class Enveloped(ResponseModel, Generic[T]):
    """The success envelope of the trust, LLM and ATP routes."""

    success: bool
    data: T


Name = Annotated[str, StringConstraints(min_length=1, max_length=255), AfterValidator(check_printable)]
VisibleName = Annotated[Name, AfterValidator(check_not_blank)]
"""The name of something that is listed: not blank."""
Text = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(check_no_nul)]
Reason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000), AfterValidator(check_no_nul)
]
"""Why a person decided so; must not be blank."""
Address = Annotated[str, StringConstraints(max_length=60, pattern=r"^[0-9A-Za-z.:%_-]*$")]
"""The network address of a client, as a surface saw it."""
GradeValue = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
GradeComment = Annotated[Text, StringConstraints(max_length=4_096)]
UuidText = Annotated[
    str,
    StringConstraints(pattern=UUID_PATTERN, to_lower=True),
    Field(json_schema_extra={"format": "uuid"}),
]
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Epoch = Annotated[int, Field(ge=1, le=2_000_000_000)]


def _micros(value: object) -> object:
    # Outputs are read back from JSON too, by clients of this service that are written in Python.
    return micros_from_datetime(datetime.fromisoformat(value)) if isinstance(value, str) else value


Timestamp = Annotated[
    int,
    BeforeValidator(_micros),
    PlainSerializer(format_iso),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-20T21:45:00.123456Z"]}),
]
"""Microseconds since 1970 inside, ISO 8601 with six decimals outside."""
EntityTag = Annotated[str | None, Field(exclude=True)]
"""For an output's `etag`: sent only as the header."""
StructFields = Annotated[JsonObject, BeforeValidator(msgspec.to_builtins)]
"""The fields of a msgspec struct as a JSON object."""

Caller = Annotated[Principal, Depends(get_caller)]
Disconnected = Annotated[Callable[[], Awaitable[bool]], Depends(get_disconnected)]
"""A function that returns whether the client has disconnected; for operations that wait."""
TaskId = Annotated[
    str, Path(description="The task's id; encode a slash in it as %2F."), AfterValidator(decode_path_segment)
]
TaskHeader = Annotated[
    str | None, Header(alias="X-Task-Id", max_length=255, description="The task that this is done for.")
]
AgentId = Annotated[str, Path(description="The agent's id."), AfterValidator(decode_path_segment)]
EntityId = Annotated[
    str,
    Path(alias="entityId", description="The entity's id; for agents, the agent's id."),
    AfterValidator(decode_path_segment),
]
Time = Annotated[AwareDatetime, Strict(strict=False), BeforeValidator(check_iso8601), AfterValidator(check_utc)]
After = Annotated[
    Annotated[AwareDatetime, BeforeValidator(check_iso8601), AfterValidator(check_utc)] | None,
    Query(description="Only entries after this time (ISO 8601 with time zone)."),
]
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="A repeated request with the same key returns the first response.",
    ),
]
Offset = Annotated[int, Query(ge=0, le=2**53, description="Number of rows to skip.")]


def encode_cursor(*parts: Any) -> str:
    """Return an opaque `next_cursor` that contains the parts."""
    return base64.urlsafe_b64encode(jsontext.encode(list(parts))).decode().rstrip("=")


def decode_cursor(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """Return the parts of a cursor, which must have these types. Raises InvalidRequest."""
    try:
        parts = jsontext.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, InvalidRequest):
        # InvalidRequest too: its text is about a body, and the error below about the cursor.
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds) or not all(map(_storable, parts)):
        raise InvalidRequest("The cursor was not issued by this service: pass `next_cursor` of a page.")
    return tuple(parts)


def _storable(part: Any) -> bool:
    """Return whether both databases can compare the value: a 64-bit integer, or a text without NUL."""
    return "\0" not in part if isinstance(part, str) else -(2**63) <= part < 2**63


def next_link(request: Request, cursor: str | None) -> dict[str, str]:
    """Return the Link header to the next page, if there is one."""
    if cursor is None:
        return {}
    url = request.url.include_query_params(cursor=cursor).remove_query_params("offset")
    # The decoded path has the stand-in of an encoded slash, and characters that no header may have.
    segments = (decode_path_segment(part) for part in request.scope["path"].split("/"))
    path = "/".join(quote(segment, safe="") for segment in segments)
    return {"Link": f'<{path}?{url.query}>; rel="next"'}


class ErrorBody(ResponseModel):
    code: str
    message: str
    details: JsonObject | None = None
    request_id: str


class ErrorAnswer(ResponseModel):
    """The error envelope."""

    error: ErrorBody


class KeyRefused(ResponseModel):
    """The response to a missing or wrong key."""

    success: bool
    error: str
    message: str


class Throttled(ResponseModel):
    """The response to a request beyond the rate limit."""

    success: bool
    code: str
    error: str
    message: str
    details: JsonObject | None = None


def response_doc(model: type[BaseModel], description: str, **more: Any) -> JsonObject:
    """Return an entry for `responses` that refers to a schema by name.

    With the model itself FastAPI would build a validator for every route.
    """
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"content": {"application/json": {"schema": schema}}, "description": description, **more}


def error_schemas() -> JsonObject:
    """Return the schemas of the error bodies by name, for the OpenAPI."""
    models: list[Any] = [(model, "serialization") for model in (ErrorAnswer, KeyRefused, Throttled)]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")
    return dict(schema["$defs"])


RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 0}}}
API_PREFIX = "/api/v1"
COMMON_ERROR_RESPONSES: dict[int | str, JsonObject] = {
    400: response_doc(ErrorAnswer, "Malformed request"),
    401: response_doc(KeyRefused, "Missing or wrong key"),
    403: response_doc(ErrorAnswer, "The key lacks a permission"),
    413: response_doc(ErrorAnswer, "The body is too large"),
    415: response_doc(ErrorAnswer, "The body is not JSON"),
    429: response_doc(Throttled, "Rate limit exceeded", headers=RETRY_AFTER),
    503: response_doc(ErrorAnswer, "The store or the run log cannot be written", headers=RETRY_AFTER),
}


def api_router(prefix: str = "", **options: Any) -> APIRouter:
    """Return a router below /api/v1 whose routes document the errors common to all operations."""
    return APIRouter(prefix=API_PREFIX + prefix, route_class=GatewayRoute, responses=COMMON_ERROR_RESPONSES, **options)


_ERROR_DESCRIPTIONS = {
    404: "No such record",
    409: "The current state does not allow it",
    410: "It was archived",
    412: "The condition of If-Match or If-None-Match is not met",
    422: "It cannot be done",
    500: "A record cannot be read",
    501: "Not implemented in this version",
    502: "The other service failed",
    504: "The other service timed out",
}


def error_responses(*statuses: int) -> dict[int | str, JsonObject]:
    """Return `responses` for the errors of a route beyond the common ones."""
    return {status: response_doc(ErrorAnswer, _ERROR_DESCRIPTIONS[status]) for status in statuses}
