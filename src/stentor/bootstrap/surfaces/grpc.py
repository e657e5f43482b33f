"""Wires the gRPC surface, when a port is chosen for it and its packages are there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stentor.bootstrap.operations import message_operations, task_operations
from stentor.bootstrap.service import Service
from stentor.core.settings import Settings

if TYPE_CHECKING:
    from stentor.surfaces.grpc.server import Server

MISSING = "gRPC is not served, because the package {} is missing: pip install 'stentor[grpc]'."
FAULTY = "gRPC is not served, because anybody could end it with one call to grpcio {}: pip install 'stentor[grpc]'."


async def bind(settings: Settings, warnings: list[str]) -> Server | None:
    """A server that holds its port and answers nobody yet, for the loop that this runs in. Raises StartRefused."""
    if settings.grpc.port is None or "grpc" not in settings.process.roles:
        return None
    # What its core has to say of a failure comes as an exception too, and the log is ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from stentor.surfaces.grpc.app import VERSION, Limits, Server, is_sound
    except ModuleNotFoundError as error:
        warnings.append(MISSING.format(error.name))
        return None
    if not is_sound(VERSION):
        warnings.append(FAULTY.format(VERSION))
        return None
    largest = settings.server.max_body_mb * 1_000_000
    limits = Limits(
        largest,
        settings.connections.max_connections,
        settings.connections.head_timeout,
        settings.connections.keep_alive,
    )
    return Server.bind(settings.server.host, settings.grpc.port, limits)


async def start(server: Server, service: Service) -> None:
    """Have it answer for the service."""
    from stentor.surfaces.grpc.app import AtpService, LlmService, TaskServicer, build

    kernel, shared = service.kernel, service.context
    gate = build(
        TaskServicer(task_operations(kernel), kernel.tasks.activity),
        AtpService(message_operations(kernel)),
        LlmService(shared.chat),
        shared.keys,
        shared.rate_limiter,
        shared.stream_limit,
        kernel.health.is_ready,
        kernel.infra.hub.closing,
        shared.grpc_durations,
    )
    await server.start(gate)
