"""The only way to every method: authenticates the caller, applies the rate limit, checks the permission.

Fails closed: a method that is not registered here cannot be called, and a call to an unknown method needs a key too,
as in the HTTP gateway. The decision falls before the request message is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import grpc

from stentor.auth.api_keys import KeyRing
from stentor.auth.principal import Principal
from stentor.core.errors import RateLimited, ServiceUnavailable, Unauthorized
from stentor.surfaces.grpc.calls import STOPPING_MESSAGE, ActiveCalls, Call, Context, Metadata
from stentor.surfaces.grpc.methods import Handler, Method
from stentor.web.middleware import RateLimiter, authenticate, rate_limit_message
from stentor.web.request_context import GrpcCallDurations

UNKNOWN_METHOD = "unknown"
"""The label of unknown methods in metrics; with the requested names callers could create any number of series."""
RETRY_HEADER = "Retry-After"


class Gate(grpc.GenericRpcHandler):
    """Admits calls to methods. `methods` is keyed by full names such as /stentor.v1.TaskService/GetTask."""

    def __init__(
        self,
        keys: KeyRing,
        rate: RateLimiter,
        methods: Mapping[str, Method],
        durations: GrpcCallDurations,
        closing: asyncio.Event,
    ) -> None:
        self._keys = keys
        self._rate = rate
        self._methods = methods
        self._durations = durations
        self._closing = closing
        self.active = ActiveCalls()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call; None, which grpcio answers with UNIMPLEMENTED, for an unknown method."""
        name, metadata = handler_call_details.method, Metadata(handler_call_details.invocation_metadata)
        method = self._methods.get(name)
        call = Call(name.lstrip("/") if method else UNKNOWN_METHOD, metadata, self._durations, self.active)
        try:
            # Before the answer that a method is unknown: without a key nobody can probe for methods.
            if method is None or method.permission is not None:
                self._admit(call)
            if method is None:
                return None
            if method.permission is not None:
                call.caller.require(method.permission)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            return _rejecting_handler(call, error)
        return method.create_handler(call)

    def _admit(self, call: Call) -> None:
        """Authenticate and count the call. Raises ServiceUnavailable, Unauthorized, RateLimited."""
        if self._closing.is_set():
            raise ServiceUnavailable(STOPPING_MESSAGE)
        principal = authenticate(self._keys, call.metadata.pairs)
        if not isinstance(principal, Principal):
            raise Unauthorized(f"{principal[0]}. {principal[1]}")
        call.principal = principal
        call.find_caller = partial(authenticate, self._keys, call.metadata.pairs)
        if self._rate.per_minute:
            self._count(call, principal)

    def _count(self, call: Call, principal: Principal) -> None:
        allowed, headers = self._rate.count_request(principal)
        # Retry-After is left out: the error metadata already contains it.
        call.trailing += tuple((name.lower(), value) for name, value in headers.items() if name != RETRY_HEADER)
        if not allowed:
            error = RateLimited(rate_limit_message(headers))
            error.retry_after = int(headers[RETRY_HEADER])
            raise error


def _rejecting_handler(call: Call, error: Exception) -> Handler:
    # A handler of a request stream, because only that one can abort without reading the request.
    return grpc.stream_unary_rpc_method_handler(partial(_reject, call, error))  # pyrefly: ignore[bad-argument-type] - the types know the synchronous server only


async def _reject(call: Call, error: Exception, requests: object, context: Context) -> None:
    await call.abort(context, error)
