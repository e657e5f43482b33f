"""What turns a function into a method: bytes in, bytes out, and every error a status.

Bytes, because grpcio would answer a message that cannot be read with a failure of the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from stentor.auth.principal import Permission
from stentor.core.errors import InvalidRequest
from stentor.surfaces.grpc.calls import Call, Context
from stentor.surfaces.grpc.ending import ended_by, held
from stentor.web.sse import StreamLimit

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Stream = AbstractAsyncContextManager[AsyncIterator[Message]]
"""Entering it finds out whether there is a stream at all; leaving it ends the work behind it."""


class Method(Protocol):
    @property
    def permission(self) -> Permission | None:
        """None: it needs no key."""
        ...

    def handler(self, call: Call) -> Handler:
        """For this one call, which was let in."""
        ...


@dataclass(frozen=True)
class Unary:
    """One message, one answer."""

    permission: Permission | None
    request: type[Message]
    work: Callable[[Call, Any], Awaitable[Message]]

    def handler(self, call: Call) -> Handler:
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, call))

    async def _answer(self, call: Call, raw: bytes, context: Context) -> bytes:
        try:
            with call.answering():
                answer = (await self.work(call, decoded(self.request, raw))).SerializeToString()
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            await call.refuse(context, error)
        context.set_trailing_metadata(call.trailing)
        call.answered()
        return answer


@dataclass(frozen=True)
class Streaming:
    """One message, and answers as long as there are some."""

    permission: Permission | None
    request: type[Message]
    work: Callable[[Call, Any], Stream]
    streams: StreamLimit

    def handler(self, call: Call) -> Handler:
        return grpc.unary_stream_rpc_method_handler(partial(self._answer, call))

    async def _answer(self, call: Call, raw: bytes, context: Context) -> None:
        try:
            await _stream(call, self.work(call, decoded(self.request, raw)), self.streams, context)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            await call.refuse(context, error)


@dataclass(frozen=True)
class Conversing:
    """Messages, each with its answer."""

    permission: Permission | None
    request: type[Message]
    work: Callable[[AsyncIterator[Any]], Stream]
    streams: StreamLimit

    def handler(self, call: Call) -> Handler:
        return grpc.stream_stream_rpc_method_handler(partial(self._answer, call))

    async def _answer(self, call: Call, raw: AsyncIterator[bytes], context: Context) -> None:
        messages = (decoded(self.request, one) async for one in raw)
        try:
            await _stream(call, self.work(messages), self.streams, context)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            await call.refuse(context, error)


async def _stream(call: Call, work: Stream, streams: StreamLimit, context: Context) -> None:
    """Raises RateLimited when the caller has too many open, ServiceUnavailable when the service leaves."""
    with call.answering(), held(streams, call.holder), ended_by(streams.closing):
        async with work as answers:
            await context.send_initial_metadata(call.trailing)
            call.answered()
            async for answer in answers:
                await context.write(answer.SerializeToString())
    context.set_trailing_metadata(call.trailing)


def decoded(kind: type[Message], raw: bytes) -> Any:
    """The message. Raises InvalidRequest for bytes that are none, and for fields that it does not have."""
    message, name = kind(), kind.DESCRIPTOR.full_name
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise InvalidRequest(f"The message is no {name}.") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise InvalidRequest(f"The message has fields that a {name} of this version does not have.")
    return message
