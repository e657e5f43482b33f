"""Settings: how tasks are worked on."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class TaskSettings:
    max_attempts: int = setting(
        "SERVICE_TASK_MAX_ATTEMPTS",
        5,
        "Claims of one task before a lost lease fails it.",
        kinds.number(1, 100, int),
    )
    lease: int = setting(
        "SERVICE_LEASE_SECONDS",
        60,
        "How long work inside the service stays with its process without a sign of life, before another process that "
        "shares the database takes it up.",
        kinds.number(3, 3600, int),
    )
    concurrency: int = setting(
        "SERVICE_AGENT_CONCURRENCY",
        32,
        "Tasks that one agent runs at a time inside the service.",
        kinds.number(1, 1000, int),
    )
    builtin_agents: bool = setting(
        "SERVICE_BUILTIN_AGENTS", True, "Register the agents that need no set-up at start.", kinds.flag
    )
