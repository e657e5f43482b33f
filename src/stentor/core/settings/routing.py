"""Settings: how agents are ranked and who may be asked."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class RoutingSettings:
    alpha: float = setting(
        "SERVICE_HEBBIAN_ROUTING_ALPHA",
        0.2,
        "Share of an agent's evidence at a task type after its first outcome; what it says of itself has the rest.",
        kinds.number(0, 1, float),
    )
    beta: float = setting(
        "SERVICE_HEBBIAN_ROUTING_BETA", 0.0, "Share of trust in the ranking.", kinds.number(0, 1, float)
    )
    trust_floor: float = setting(
        "SERVICE_ROUTING_TRUST_FLOOR",
        0.0,
        "Agents below it are not routed to; 0 is off.",
        kinds.number(0, 1, float),
    )
    worker_offline: float = setting(
        "SERVICE_WORKER_OFFLINE_SECONDS",
        60.0,
        "A worker that was not heard of for so long is offline: others that are online get its tasks.",
        kinds.number(1, 86_400, float),
    )
    sentinel_threshold: float = setting(
        "SERVICE_SENTINEL_THRESHOLD",
        0.4,
        "Oscillation rate of an agent's last 50 outcomes above which the sentinel opens an alert.",
        kinds.number(0, 1, float),
    )
    own_authority: bool = setting(
        "SERVICE_AGENTS_OWN_AUTHORITY",
        False,
        "Keys of agents may ask only for what their agents can do, or for what they were granted.",
        kinds.flag,
    )
    daily_lessons: int = setting(
        "SERVICE_LEARNING_DAILY_LIMIT",
        20,
        "Outcomes and grades a day that one agent's key can teach one agent; 0 is no limit. Keys of people have none.",
        kinds.number(0, 1_000_000, int),
    )
