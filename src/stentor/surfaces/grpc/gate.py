"""The one way to every method: who calls, whether the key's minute is used up, what the key may.

Fails closed. Methods are reached through here or not at all, and a method that does not exist needs a key too, as in
the gateway. It decides before the message is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import grpc

from stentor.auth.api_keys import KeyRing
from stentor.auth.principal import Principal
from stentor.core.errors import RateLimited, ServiceUnavailable, Unauthorized
from stentor.surfaces.grpc.calls import Call, Context, Metadata, Running
from stentor.surfaces.grpc.ending import LEAVING
from stentor.surfaces.grpc.methods import Handler, Method
from stentor.web.middleware import RateLimiter, authenticate, rate_limit_message
from stentor.web.request_context import GrpcCallDurations

UNKNOWN = "unknown"
"""The method of a call to none that there is, in metrics: callers can make up names."""
RETRY = "Retry-After"
"""Told with the refusal, like that of every error."""


class Gate(grpc.GenericRpcHandler):
    """`methods` by their whole name, such as /stentor.v1.TaskService/GetTask."""

    def __init__(
        self,
        keys: KeyRing,
        rate: RateLimiter,
        methods: Mapping[str, Method],
        times: GrpcCallDurations,
        closing: asyncio.Event,
    ) -> None:
        self._keys, self._rate, self._methods, self._times, self._closing = keys, rate, methods, times, closing
        self.running = Running()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """What answers the call; None, which is UNIMPLEMENTED, for a method that there is not."""
        name, metadata = handler_call_details.method, Metadata(handler_call_details.invocation_metadata)
        method = self._methods.get(name)
        call = Call(name.lstrip("/") if method else UNKNOWN, metadata, self._times, self.running)
        try:
            if method is None or method.permission is not None:
                self._admit(call)
            if method is None:
                return None
            if method.permission is not None:
                call.caller.require(method.permission)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a status
            return _refusing(call, error)
        return method.handler(call)

    def _admit(self, call: Call) -> None:
        """Raises ServiceUnavailable when the service leaves, Unauthorized, RateLimited."""
        if self._closing.is_set():
            raise ServiceUnavailable(LEAVING)
        found = authenticate(self._keys, call.metadata.pairs)
        if not isinstance(found, Principal):
            raise Unauthorized(f"{found[0]}. {found[1]}")
        call.principal = found
        if self._rate.per_minute:
            self._count(call, found)

    def _count(self, call: Call, principal: Principal) -> None:
        allowed, headers = self._rate.count_request(principal)
        call.trailing += tuple((name.lower(), value) for name, value in headers.items() if name != RETRY)
        if not allowed:
            refused = RateLimited(rate_limit_message(headers))
            refused.retry_after = int(headers[RETRY])
            raise refused


def _refusing(call: Call, error: Exception) -> Handler:
    """As a stream of requests, because only such a one is refused without being read."""
    return grpc.stream_unary_rpc_method_handler(partial(_refuse, call, error))


async def _refuse(call: Call, error: Exception, requests: object, context: Context) -> None:
    await call.refuse(context, error)
