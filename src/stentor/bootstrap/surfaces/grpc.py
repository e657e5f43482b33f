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
    if settings.grpc_port is None or "grpc" not in settings.roles:
        return None
    # What its core has to say of a failure comes as an exception too, and the log is ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from stentor.surfaces.grpc.app import VERSION, Server, ServerLimits, is_version_safe
    except ModuleNotFoundError as error:
        warnings.append(MISSING.format(error.name))
        return None
    if not is_version_safe(VERSION):
        warnings.append(FAULTY.format(VERSION))
        return None
    largest = settings.max_body_mb * 1_000_000
    limits = ServerLimits(largest, settings.max_connections, settings.head_timeout, settings.keep_alive)
    return Server.bind(settings.host, settings.grpc_port, limits)


async def start(server: Server, service: Service) -> None:
    """Have it answer for the service."""
    from stentor.surfaces.grpc.app import AtpServicer, LlmServicer, TaskServicer, build_gate

    kernel, shared = service.kernel, service.entrance
    gate = build_gate(
        TaskServicer(task_operations(kernel), kernel.activity),
        AtpServicer(message_operations(kernel)),
        LlmServicer(shared.talk),
        shared.keys,
        shared.rate,
        shared.streams,
        kernel.health.ready,
        kernel.hub.closing,
        shared.calls,
    )
    await server.start(gate)
