"""Wires the gRPC surface, if a port is set for it and its packages are installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stentor.bootstrap.operations import operations
from stentor.bootstrap.service import Service
from stentor.core.lazy_import import install_command
from stentor.core.settings import Settings
from stentor.domains.messaging import operations as messaging
from stentor.domains.tasks import operations as tasks
from stentor.web.operations import operations_of

if TYPE_CHECKING:
    from stentor.surfaces.grpc.server import Server
    from stentor.web.server.certificate import ServedCertificate

MISSING = "gRPC is not served: the package {} is missing. Install it: {}."
FAULTY = "gRPC is not served: in grpcio {} one request can crash the service. Install a safe version: {}."
WRONG_KEY = "gRPC clients cannot connect: gRPC needs a certificate with a key of RSA, P-256 or P-384."


async def bind(settings: Settings, warnings: list[str], tls: ServedCertificate | None) -> Server | None:
    """Bind the port for the running loop; the server answers nobody before `start`. Raises StartRefused."""
    if settings.grpc.port is None or "grpc" not in settings.process.roles:
        return None
    # gRPC's core would write failures to standard error as well; they also come as exceptions, which we log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from stentor.surfaces.grpc.server import VERSION, Server, ServerLimits, can_serve, is_version_safe
    except ModuleNotFoundError as error:
        warnings.append(MISSING.format(error.name, install_command("grpc")))
        return None
    if not is_version_safe(VERSION):
        warnings.append(FAULTY.format(VERSION, install_command("grpc")))
        return None
    if tls is not None and not can_serve(tls.loaded):
        warnings.append(WRONG_KEY)
    connections = settings.connections
    limits = ServerLimits(
        settings.server.max_body_mb * 1_000_000,
        connections.max_connections,
        connections.head_timeout,
        connections.keep_alive,
    )
    return Server.bind(settings.server.host, settings.grpc.port, limits, tls)


async def start(server: Server, service: Service) -> None:
    """Have the server answer for the service."""
    # The packages are an extra; `bind` has found them.
    from stentor.surfaces.grpc.services import LlmServicer, TaskServicer, build_gate

    kernel, context = service.kernel, service.context
    bound = operations(kernel, context)
    gate = build_gate(
        TaskServicer([bound[row.name] for row in operations_of(tasks.TaskOperations)], kernel.tasks.activity),
        [bound[row.name] for row in operations_of(messaging.MessageOperations)],
        LlmServicer(context.chat),
        context.keys,
        context.rate_limiter,
        context.stream_limit,
        kernel.health.is_ready,
        kernel.infra.hub.closing,
        context.grpc_durations,
    )
    await server.start(gate)
