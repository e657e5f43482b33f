"""The settings of an installation of several processes; `Settings` has them among its own."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting

ROLES = ("gateway", "worker", "dashboard", "vault", "notes", "mcp", "grpc")


def roles(value: str) -> tuple[str, ...]:
    """Names between commas, in our order; `all` means all of them."""
    wanted = {name.strip() for name in value.split(",") if name.strip()}
    if wanted == {"all"}:
        return ROLES
    if not wanted or not wanted <= set(ROLES):
        raise ValueError(f"must be `all`, or some of {', '.join(ROLES)}, between commas")
    return tuple(name for name in ROLES if name in wanted)


@dataclass(frozen=True)
class ScaleSettings:
    """Times in seconds."""

    roles: tuple[str, ...] = setting(
        "SERVICE_ROLES",
        ROLES,
        "What this process does: `all`, or some of gateway, worker (runs the agents that live in the service), "
        "dashboard, vault, notes, mcp and grpc, between commas. On SQLite one process is gateway and worker.",
        roles,
    )
    drain: float = setting(
        "SERVICE_DRAIN_SECONDS",
        10.0,
        "How long tasks that run inside the process may take to end when it is stopped; then others take them up.",
        kinds.number(0, 3600, float),
    )
    leave: float = setting(
        "SERVICE_LEAVE_SECONDS",
        0.0,
        "How long a process that is stopped goes on answering while /api/v1/health/ready says 503, so that a load "
        "balancer notices; a second signal ends it.",
        kinds.number(0, 600, float),
    )
    nats_url: str = setting(
        "SERVICE_NATS_URL",
        "",
        "NATS server for messages between processes, such as nats://host:4222; empty means NOTIFY of PostgreSQL.",
        kinds.text,
        secret=True,
    )
    nats_subject: str = setting(
        "SERVICE_NATS_SUBJECT", "stentor", "Subject of these messages: one for each installation.", kinds.named
    )
