"""The services that every gRPC server has: health and reflection. Public, like the gateway's health routes and its
description, because both say nothing of anybody's work; their open streams share one small number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from stentor.core.errors import NotFound
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.methods import Conversing, Method, Streaming, Unary
from stentor.web.sse import StreamLimit

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"
"""The same messages under two names; tools ask for the newer one first."""
MOST_STREAMS = 100
LOOK_SECONDS = 1.0
"""Between two looks at a status that is watched; the check itself runs at most once a second, whoever asks."""


class Standard:
    """All services share one state, since they share one process; the empty name is the server itself."""

    def __init__(self, services: Iterable[str], ready: Callable[[], Awaitable[bool]], closing: asyncio.Event) -> None:
        self._services, self._ready = (*services, HEALTH, *REFLECTION), ready
        self._streams = StreamLimit(MOST_STREAMS, closing)
        _describe_newer_reflection()
        self._reflection = ReflectionServicer(self._services)

    def methods(self) -> Mapping[str, Method]:
        reflect = Conversing(None, reflection_pb2.ServerReflectionRequest, self.reflect, self._streams)
        return {
            f"/{HEALTH}/Check": Unary(None, pb.HealthCheckRequest, self.check),
            f"/{HEALTH}/Watch": Streaming(None, pb.HealthCheckRequest, self.watch, self._streams),
            **{f"/{name}/ServerReflectionInfo": reflect for name in REFLECTION},
        }

    async def check(self, call: Call, request: Any) -> Message:
        if not self._known(request.service):
            raise NotFound("There is no service of this name.")
        return _state(await self._status())

    @asynccontextmanager
    async def watch(self, call: Call, request: Any) -> AsyncIterator[AsyncIterator[Message]]:
        async with aclosing(self._changes(known=self._known(request.service))) as found:
            yield found

    async def _changes(self, *, known: bool) -> AsyncGenerator[Message, None]:
        """A service that there is not stays unknown, as the protocol wants it."""
        said = None
        while True:
            status = await self._status() if known else pb.HealthCheckResponse.SERVICE_UNKNOWN
            if status != said:
                yield _state(status)
            said = status
            await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def reflect(self, requests: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Message]]:
        async with aclosing(self._reflection.ServerReflectionInfo(requests, None)) as found:
            yield found

    def _known(self, service: str) -> bool:
        return service in ("", *self._services)

    async def _status(self) -> int:
        """Like the gateway's /health/ready."""
        if self._streams.closing.is_set() or not await self._ready():
            return int(pb.HealthCheckResponse.NOT_SERVING)
        return int(pb.HealthCheckResponse.SERVING)


def _describe_newer_reflection() -> None:
    """Put a description of grpc.reflection.v1 into the pool, made from that of v1alpha, whose messages are the same:
    the package has no file of it, and a service that is listed must be described.
    """
    pool = descriptor_pool.Default()
    old, new = (name.rpartition(".")[0] for name in REFLECTION)
    try:
        pool.FindFileContainingSymbol(REFLECTION[1])
        return
    except KeyError:
        pass
    found = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    found.name, found.package = f"{new.replace('.', '/')}/reflection.proto", new
    for message in found.message_type:
        for field in (one for one in message.field if one.type_name):
            field.type_name = field.type_name.replace(f".{old}.", f".{new}.")
    for service in found.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{old}.", f".{new}.")
            method.output_type = method.output_type.replace(f".{old}.", f".{new}.")
    pool.Add(found)


def _state(status: int) -> Message:
    made: Message = pb.HealthCheckResponse(status=status)
    return made
