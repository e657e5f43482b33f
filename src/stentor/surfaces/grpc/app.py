"""Puts the surface together: its services behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stentor.auth.api_keys import KeyRing
from stentor.surfaces.grpc.atp import AtpService
from stentor.surfaces.grpc.gate import Gate
from stentor.surfaces.grpc.llm import LlmService
from stentor.surfaces.grpc.server import VERSION, Limits, Server, is_sound
from stentor.surfaces.grpc.standard import Standard
from stentor.surfaces.grpc.tasks import TaskServicer
from stentor.web.middleware import RateLimiter
from stentor.web.request_context import GrpcCallDurations
from stentor.web.sse import StreamLimit

__all__ = ["VERSION", "AtpService", "Limits", "LlmService", "Server", "TaskServicer", "build", "is_sound"]


def build(
    tasks: TaskServicer,
    atp: AtpService,
    llm: LlmService,
    keys: KeyRing,
    rate: RateLimiter,
    streams: StreamLimit,
    ready: Callable[[], Awaitable[bool]],
    closing: asyncio.Event,
    times: GrpcCallDurations,
) -> Gate:
    """What a server answers with. Streams count with those of the gateway, and end when `closing` is set."""
    methods = {**tasks.methods(streams), **atp.methods(), **llm.methods(streams)}
    services = sorted({name.split("/")[1] for name in methods})
    return Gate(keys, rate, {**methods, **Standard(services, ready, closing).methods()}, times, closing)
