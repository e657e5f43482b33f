"""The standard services of a gRPC server: health and reflection.

Public, like the gateway's health routes and OpenAPI document, because they reveal no data; all their open streams
share one small limit.
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
from stentor.surfaces.grpc.methods import BidirectionalStreamMethod, Method, ServerStreamMethod, UnaryMethod
from stentor.web.sse import StreamLimit

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"
"""The same messages under two names; tools try the newer one first."""
MAX_STREAMS = 100
HEALTH_POLL_SECONDS = 1.0
"""Between two polls of a watched status. The readiness check is cached: it runs at most once a second in total."""


class StandardServicer:
    """Health and reflection. All services have one health status, because they share one process.

    The empty service name stands for the whole server.
    """

    def __init__(self, services: Iterable[str], ready: Callable[[], Awaitable[bool]], closing: asyncio.Event) -> None:
        self._services, self._ready = (*services, HEALTH, *REFLECTION), ready
        self._streams = StreamLimit(MAX_STREAMS, closing)
        _register_reflection_v1()
        self._reflection = ReflectionServicer(self._services)

    def methods(self) -> Mapping[str, Method]:
        reflect = BidirectionalStreamMethod(None, reflection_pb2.ServerReflectionRequest, self.reflect, self._streams)
        return {
            f"/{HEALTH}/Check": UnaryMethod(None, pb.HealthCheckRequest, self.check),
            f"/{HEALTH}/Watch": ServerStreamMethod(None, pb.HealthCheckRequest, self.watch, self._streams),
            **{f"/{name}/ServerReflectionInfo": reflect for name in REFLECTION},
        }

    async def check(self, call: Call, request: Any) -> Message:
        if not self._is_known(request.service):
            raise NotFound(f"This server has no service {request.service!r}. Reflection lists its services.")
        return _health_response(await self._status())

    @asynccontextmanager
    async def watch(self, call: Call, request: Any) -> AsyncIterator[AsyncIterator[Message]]:
        async with aclosing(self._changes(is_known=self._is_known(request.service))) as responses:
            yield responses

    async def _changes(self, *, is_known: bool) -> AsyncGenerator[Message, None]:
        """Yield each new status. For an unknown service the stream stays open with SERVICE_UNKNOWN, as specified."""
        last_status = None
        while True:
            status = await self._status() if is_known else pb.HealthCheckResponse.SERVICE_UNKNOWN
            if status != last_status:
                yield _health_response(status)
            last_status = status
            await asyncio.sleep(HEALTH_POLL_SECONDS)

    @asynccontextmanager
    async def reflect(self, requests: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Message]]:
        async with aclosing(self._reflection.ServerReflectionInfo(requests, None)) as responses:
            yield responses

    def _is_known(self, service: str) -> bool:
        return service in ("", *self._services)

    async def _status(self) -> int:
        """Return the status; ready means the same as in the gateway's /health/ready."""
        if self._streams.closing.is_set() or not await self._ready():
            return int(pb.HealthCheckResponse.NOT_SERVING)
        return int(pb.HealthCheckResponse.SERVING)


def _register_reflection_v1() -> None:
    """Add a descriptor of grpc.reflection.v1 to the pool, derived from v1alpha, whose messages are the same.

    The grpcio package contains none, and a service that reflection lists must have a descriptor.
    """
    pool = descriptor_pool.Default()
    old, new = (name.rpartition(".")[0] for name in REFLECTION)
    try:
        pool.FindFileContainingSymbol(REFLECTION[1])
        return  # already added, by another server of this process or a newer grpcio
    except KeyError:
        pass
    file = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    file.name, file.package = f"{new.replace('.', '/')}/reflection.proto", new
    for message in file.message_type:
        for field in (field for field in message.field if field.type_name):
            # Types are named in full, so a copy would still refer to the messages of v1alpha.
            field.type_name = field.type_name.replace(f".{old}.", f".{new}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{old}.", f".{new}.")
            method.output_type = method.output_type.replace(f".{old}.", f".{new}.")
    pool.Add(file)


def _health_response(status: int) -> Message:
    response: Message = pb.HealthCheckResponse(status=status)
    return response
