"""Settings: the gRPC surface. Source: docs/decisions, 0025."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting

USUAL_PORT = 50051
"""What clients of gRPC expect."""


def port_or_none(value: str) -> int | None:
    return kinds.number(0, 65535, int)(value) if value else None


@dataclass(frozen=True)
class GrpcSettings:
    grpc_port: int | None = setting(
        "SERVICE_GRPC_PORT",
        None,
        f"Port of the gRPC surface, usually {USUAL_PORT}; 0 takes a free one, empty serves none. Extra `grpc`.",
        port_or_none,
    )
