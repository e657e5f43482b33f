"""Routes that deny by default: strict JSON bodies, and a permission for every operation.

The permission is `x-permission` in the OpenAPI; without one a route needs `read`, `write` or `delete` according to its
method. Source: docs/decisions, "HTTP everywhere".
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self, get_args

from fastapi import HTTPException
from fastapi._compat import ModelField
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, compile_path, get_route_path
from starlette.types import Scope

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, Unauthorized
from stentor.core.jsontext import JsonObject
from stentor.core.validation.unknown_fields import explain_unknown_fields
from stentor.core.validation.validation_errors import list_errors
from stentor.web.request_context import find_header
from stentor.web.sse import CALLER_CHECK

PERMISSION_BY_METHOD = {"GET": "read", "HEAD": "read", "DELETE": "delete"}
PUBLIC = "public"
_INTEGER = re.compile("-?[0-9]+")
# Reentrant: building a route reads attributes of it, which come here again.
_BUILD_LOCK = threading.RLock()
INLINE_DECODE_BYTES = 64 * 1024
"""Bodies below this size are decoded inline: that is faster than a thread."""


class RequestModel(BaseModel):
    """Base of all request bodies: unknown fields and wrong types are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def example_config(**fields: Any) -> ConfigDict:
    """Return a `model_config` with an example body for the OpenAPI; tests use it as their valid body."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class StrictRequest(Request):
    """A request that only accepts JSON bodies."""

    async def body(self) -> bytes:
        """Return the body. Raises ClientDisconnect, and HTTPException 415 for a content type other than JSON.

        Replaces the base class's version, which costs a generator per request.
        """
        if not hasattr(self, "_body"):
            chunks, more = [], True
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunks.append(message.get("body", b""))
                more = message.get("more_body", False)
            self._stream_consumed, self._body = True, b"".join(chunks)
            kind = find_header(self.scope, b"content-type")
            if self._body and kind and not is_json(kind):
                raise HTTPException(415, "The body must be JSON: send it with Content-Type: application/json.")
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        try:
            if len(body) < INLINE_DECODE_BYTES:
                return jsontext.decode(body)
            return await asyncio.to_thread(jsontext.decode, body)
        except InvalidRequest as error:
            # Of all exceptions in its body parsing, FastAPI only keeps its own.
            if (find_header(self.scope, b"content-encoding") or "identity").lower() != "identity":
                raise HTTPException(415, "A body with Content-Encoding is not decoded: send it uncompressed.") from None
            raise HTTPException(400, error.message) from None


def is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


class GatewayRoute(APIRoute):
    """A route with a permission that is built lazily.

    Only what routing needs is built at startup. The rest takes a hundred times as long and is built on first use, by a
    request or the OpenAPI.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = options.get("methods") or ["GET"]
        extra = dict(options.get("openapi_extra") or {})
        permission = extra.setdefault("x-permission", PERMISSION_BY_METHOD.get(next(iter(methods)), "write"))
        self.endpoint = endpoint
        self._prepare(path, methods, permission, lambda: {"endpoint": endpoint, **options, "openapi_extra": extra})

    @classmethod
    def described_later(cls, method: str, path: str, permission: str, describe: Callable[[], JsonObject]) -> Self:
        """Return a route whose endpoint and options, too, are made at its first use, by `describe`."""
        route = cls.__new__(cls)
        route._prepare(path, [method], permission, describe)
        return route

    def _prepare(self, path: str, methods: Iterable[str], permission: str, describe: Callable[[], JsonObject]) -> None:
        self.permission, self.path, self.methods = permission, path, {method.upper() for method in methods}  # pyrefly: ignore[bad-override-mutable-attribute] - Starlette's may be None, these never are
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._describe: Callable[[], JsonObject] | None = describe

    def __getattr__(self, name: str) -> Any:
        # Only called for attributes that do not exist yet: build the route, then look again.
        with _BUILD_LOCK:
            if (describe := self.__dict__.get("_describe")) is not None:
                # First, so that an attribute that FastAPI reads while it builds does not build again.
                self._describe = None
                super().__init__(self.path, **describe())
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # Nearly all routes that are tried have another path, and FastAPI takes several more steps to find that out.
        if scope["type"] != "http" or not self.path_regex.match(get_route_path(scope)):
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        permission = self.permission
        for field in self.dependant.body_params:
            _limit_errors(field)
        for field in self.dependant.query_params:
            if _is_integer(field.field_info.annotation):
                _require_digits(field)

        async def handle(request: Request) -> Response:
            if permission != PUBLIC:
                get_principal(request).require(permission)
            try:
                return await inner(StrictRequest(request.scope, request.receive))
            except RequestValidationError as error:
                body_type = self.body_field.field_info.annotation if self.body_field else None
                raise RequestValidationError(explain_unknown_fields(error.errors(), body_type)) from None

        return handle


def _limit_errors(field: ModelField) -> None:
    """Have FastAPI list the errors of a body with `list_errors`; by itself it lists all."""
    adapter = field._type_adapter

    def validate(value: Any, values: Any = None, *, loc: tuple[int | str, ...] = ()) -> tuple[Any, list[Any]]:
        try:
            return adapter.validate_python(value, from_attributes=True), []
        except ValidationError as error:
            return None, list_errors(error, *loc)

    field.validate = validate  # pyrefly: ignore[method-assign] - FastAPI has no other place for it


def _is_integer(hint: Any) -> bool:
    return hint is int or any(map(_is_integer, get_args(hint)))


def _require_digits(field: ModelField) -> None:
    """Have FastAPI read a number in the query only from digits; pydantic also reads `1_0`, ` 5` and `5.0`."""
    validate_number = field.validate

    def validate(value: Any, values: Any = None, *, loc: tuple[int | str, ...] = ()) -> tuple[Any, list[Any]]:
        if isinstance(value, str) and not _INTEGER.fullmatch(value):
            return None, [{"type": "int_parsing", "loc": loc, "msg": "Input should be a valid integer", "input": value}]
        return validate_number(value, values, loc=loc)

    field.validate = validate  # pyrefly: ignore[method-assign] - as in _limit_errors


def requires_permission(permission: str) -> JsonObject:
    """Return an `openapi_extra` with the permission of a route, where the default for its method does not fit."""
    return {"x-permission": permission}


def get_principal(request: Request) -> Principal:
    """Return the authenticated caller. Raises Unauthorized if no middleware authenticated the request."""
    principal = request.scope.get("state", {}).get("principal")
    if not isinstance(principal, Principal):
        raise Unauthorized("Authentication required.")
    return principal


async def get_caller(request: Request) -> Principal:
    """Return the authenticated caller. A coroutine, because FastAPI would run `get_principal` in a thread."""
    return get_principal(request)


async def get_disconnected(request: Request) -> Callable[[], Coroutine[Any, Any, bool]]:
    """Return a function that returns whether the client has disconnected, or its key has ended or changed."""
    is_unchanged = request.scope.get("state", {}).get(CALLER_CHECK)

    async def is_gone() -> bool:
        return (is_unchanged is not None and not await is_unchanged()) or await request.is_disconnected()

    return is_gone
