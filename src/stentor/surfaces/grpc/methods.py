"""Adapters from async functions to gRPC methods: they decode requests, encode responses and map errors to statuses.

Handlers take and return bytes, because grpcio itself answers an undecodable request with INTERNAL instead of
INVALID_ARGUMENT. Methods that are operations are built in `operations`.
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
from stentor.surfaces.grpc.calls import Call, Context, end_early, open_stream
from stentor.web.sse import StreamLimit

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
ResponseStream = AbstractAsyncContextManager[AsyncIterator[Message]]
"""Entering it raises if there can be no stream; leaving it ends the work behind the stream."""


class Method(Protocol):
    @property
    def permission(self) -> Permission | None:
        """The permission that a caller needs; None: the method is public."""
        ...

    def create_handler(self, call: Call) -> Handler:
        """Create the handler of one admitted call."""
        ...


@dataclass(frozen=True)
class UnaryMethod:
    """One request, one response."""

    permission: Permission | None
    request_type: type[Message]
    execute: Callable[[Call, Any], Awaitable[Message]]

    def create_handler(self, call: Call) -> Handler:
        return grpc.unary_unary_rpc_method_handler(partial(self._handle, call))  # pyrefly: ignore[bad-argument-type] - the types know the synchronous server only

    async def _handle(self, call: Call, data: bytes, context: Context) -> bytes:
        try:
            with call.track():
                response = (await self.execute(call, parse_request(self.request_type, data))).SerializeToString()
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await call.abort(context, error)
        # Only here: for an error `abort` sends the metadata.
        context.set_trailing_metadata(call.trailing)
        call.record()
        return response


@dataclass(frozen=True)
class ServerStreamMethod:
    """One request, a stream of responses."""

    permission: Permission | None
    request_type: type[Message]
    execute: Callable[[Call, Any], ResponseStream]
    streams: StreamLimit

    def create_handler(self, call: Call) -> Handler:
        return grpc.unary_stream_rpc_method_handler(partial(self._handle, call))  # pyrefly: ignore[bad-argument-type] - the types know the synchronous server only

    async def _handle(self, call: Call, data: bytes, context: Context) -> None:
        try:
            responses = self.execute(call, parse_request(self.request_type, data))
            await _write_stream(call, responses, self.streams, context)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await call.abort(context, error)


@dataclass(frozen=True)
class BidirectionalStreamMethod:
    """A stream of requests, a stream of responses."""

    permission: Permission | None
    request_type: type[Message]
    execute: Callable[[AsyncIterator[Any]], ResponseStream]
    streams: StreamLimit

    def create_handler(self, call: Call) -> Handler:
        return grpc.stream_stream_rpc_method_handler(partial(self._handle, call))  # pyrefly: ignore[bad-argument-type] - the types know the synchronous server only

    async def _handle(self, call: Call, chunks: AsyncIterator[bytes], context: Context) -> None:
        requests = (parse_request(self.request_type, data) async for data in chunks)
        try:
            await _write_stream(call, self.execute(requests), self.streams, context)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await call.abort(context, error)


async def _write_stream(call: Call, stream: ResponseStream, streams: StreamLimit, context: Context) -> None:
    """Send a stream. Raises RateLimited if the caller has too many open, and what `end_early` raises."""
    with call.track(), open_stream(streams, call.stream_owner), end_early(call, streams.closing):
        async with stream as responses:
            # Sent at once: a client must see that its stream has begun, even if the first response takes long.
            await context.send_initial_metadata(call.trailing)
            call.record()
            async for response in responses:
                call.require_unchanged()
                await context.write(response.SerializeToString())
    context.set_trailing_metadata(call.trailing)


def parse_request(message_type: type[Message], data: bytes) -> Any:
    """Decode a request. Raises InvalidRequest for undecodable bytes, and for unknown fields."""
    message, name = message_type(), message_type.DESCRIPTOR.full_name
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise InvalidRequest(f"The request is not a valid {name}.") from None
    # protobuf keeps unknown fields silently; a misspelled or newer field must be an error, as in JSON bodies.
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise InvalidRequest(f"The request has fields that this version of {name} does not have.")
    return message
