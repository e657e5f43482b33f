"""Routes that deny by default: strict JSON in, and a permission for every operation.

The permission stands in the OpenAPI as `x-permission`; without a word of its own a route needs
`read`, `write` or `delete` after its method. Source: docs/decisions, "HTTP everywhere".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, Unauthorized

PERMISSION_BY_METHOD = {"GET": "read", "HEAD": "read", "DELETE": "delete"}
PUBLIC = "public"
_MAKING = threading.RLock()
INLINE_DECODE_BYTES = 64 * 1024
"""Bytes of a body that are decoded in less time than a thread takes."""


class RequestModel(BaseModel):
    """Base of all request bodies: unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def example_config(**fields: Any) -> ConfigDict:
    """For `model_config` of a body: what the OpenAPI shows, and what the tests vary."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class StrictRequest(Request):
    async def body(self) -> bytes:
        """As the base class has it, without a generator for each. Raises ClientDisconnect, HTTPException for a body
        that says it is no JSON.
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
            kind = self.headers.get("content-type")
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
            # FastAPI lets only its own exception pass through its body parsing.
            raise HTTPException(400, error.message) from None


def is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


class GatewayRoute(APIRoute):
    """Knows at once what it takes to be found. The rest, which takes a hundred times as long, is made when it is asked
    for the first time: by a request, or by the OpenAPI.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = options.get("methods") or ["GET"]
        extra = dict(options.get("openapi_extra") or {})
        self.permission = extra.setdefault("x-permission", PERMISSION_BY_METHOD.get(next(iter(methods)), "write"))
        self.path, self.endpoint, self.methods = path, endpoint, {method.upper() for method in methods}
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._rest: dict[str, Any] | None = {**options, "openapi_extra": extra}

    def __getattr__(self, name: str) -> Any:
        """What is not there yet."""
        with _MAKING:
            if (rest := self.__dict__.get("_rest")) is not None:
                self._rest = None
                super().__init__(self.path, self.endpoint, **rest)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        permission = self.permission

        async def handle(request: Request) -> Response:
            if permission != PUBLIC:
                get_principal(request).require(permission)
            return await inner(StrictRequest(request.scope, request.receive))

        return handle


def requires_permission(permission: str) -> dict[str, Any]:
    """For `openapi_extra`: what a route needs when its method does not say it."""
    return {"x-permission": permission}


def get_principal(request: Request) -> Principal:
    """The authenticated caller. Fails closed when nothing authenticated it."""
    principal = request.scope.get("state", {}).get("principal")
    if not isinstance(principal, Principal):
        raise Unauthorized("Authentication required.")
    return principal


async def get_caller(request: Request) -> Principal:
    """`principal_of` as a dependency; a coroutine, because others are sent to a thread and back."""
    return get_principal(request)


async def get_disconnected(request: Request) -> Callable[[], Coroutine[Any, Any, bool]]:
    return request.is_disconnected
