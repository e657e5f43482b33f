"""Builds the gRPC surface: all services behind one gate. `bootstrap/grpc.py` supplies the parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stentor.auth.api_keys import KeyRing
from stentor.surfaces.grpc.atp import AtpServicer
from stentor.surfaces.grpc.gate import Gate
from stentor.surfaces.grpc.llm import LlmServicer
from stentor.surfaces.grpc.server import VERSION, Server, ServerLimits, is_version_safe
from stentor.surfaces.grpc.standard import StandardServicer
from stentor.surfaces.grpc.tasks import TaskServicer
from stentor.web.middleware import RateLimiter
from stentor.web.request_context import GrpcCallDurations
from stentor.web.sse import StreamLimit

__all__ = [
    "VERSION",
    "AtpServicer",
    "LlmServicer",
    "Server",
    "ServerLimits",
    "TaskServicer",
    "build_gate",
    "is_version_safe",
]


def build_gate(
    tasks: TaskServicer,
    atp: AtpServicer,
    llm: LlmServicer,
    keys: KeyRing,
    rate: RateLimiter,
    streams: StreamLimit,
    ready: Callable[[], Awaitable[bool]],
    closing: asyncio.Event,
    durations: GrpcCallDurations,
) -> Gate:
    """Build the gate to all methods. Streams share the limit of the gateway, and end when `closing` is set."""
    methods = {**tasks.methods(streams), **atp.methods(), **llm.methods(streams)}
    services = sorted({name.split("/")[1] for name in methods})
    return Gate(keys, rate, {**methods, **StandardServicer(services, ready, closing).methods()}, durations, closing)
