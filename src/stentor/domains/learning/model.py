"""Hebbian deltas, decay, the sentinel's rate: pure. Source: docs/decisions, "Learning and trust"."""

from __future__ import annotations

import math
from operator import ne

import msgspec

from stentor.core.clock import DAY

START, FLOOR, PENALTY, DAILY_RETURN = 1.0, 0.01, 0.1, 0.01
SENTINEL_WINDOW, SENTINEL_THRESHOLD = 50, 0.4
DURATION_SHARE = 0.2
"""Share of the newest duration in the moving average."""


class Weight(msgspec.Struct, frozen=True):
    """What is known of one agent at one task type. `recent` holds S and F, newest last."""

    agent_id: str
    task_type: str
    weight: float
    mean_ms: float
    samples: int
    recent: str
    updated_at: int

    def at(self, now: int) -> float:
        return returned(self.weight, now - self.updated_at)


class Entry(msgspec.Struct, frozen=True):
    """One line of an agent's history."""

    timestamp: int
    task_type: str
    delta: int
    result: str
    weight_before: float
    weight_after: float


class Connection(msgspec.Struct, frozen=True):
    agent1: str
    agent2: str
    weight: float
    updated_at: int

    @property
    def key(self) -> str:
        return f"{self.agent1}-{self.agent2}"

    def at(self, now: int) -> float:
        return returned(self.weight, now - self.updated_at)


class Alert(msgspec.Struct, frozen=True):
    """The sentinel's finding: an agent's outcomes at a task type swing to and fro."""

    alert_id: str
    agent_id: str
    task_type: str
    rate: float
    threshold: float
    samples: int
    opened_at: int
    resolved_at: int | None


def fresh(agent_id: str, task_type: str, now: int) -> Weight:
    return Weight(agent_id, task_type, START, 0.0, 0, "", now)


def returned(weight: float, idle: int) -> float:
    """The weight after `idle` microseconds: one percent of its distance to 1.0 a whole day."""
    days = max(0, idle) // DAY
    return START + (weight - START) * (1 - DAILY_RETURN) ** days if days else weight


def delta(*, success: bool, performance: float) -> float:
    """`+tanh(0.1 p)` for a success of performance p in (0,1], `-0.1` for an eligible failure."""
    return math.tanh(0.1 * performance) if success else -PENALTY


def learned(known: Weight, *, success: bool, performance: float, duration_ms: int, now: int) -> Weight:
    """The record after one outcome."""
    before = known.at(now)
    mean = duration_ms if not known.samples else known.mean_ms + DURATION_SHARE * (duration_ms - known.mean_ms)
    return Weight(
        known.agent_id,
        known.task_type,
        strengthened(before, delta(success=success, performance=performance)),
        float(mean),
        known.samples + 1,
        (known.recent + ("S" if success else "F"))[-SENTINEL_WINDOW:],
        now,
    )


def strengthened(weight: float, by: float) -> float:
    return max(FLOOR, round(weight + by, 12))


def oscillation(recent: str) -> float:
    """Changes of sign over the number of outcomes; 0 without outcomes."""
    changes = sum(map(ne, recent, recent[1:]))
    return changes / len(recent) if recent else 0.0


def alarming(recent: str, threshold: float) -> bool:
    return len(recent) >= SENTINEL_WINDOW and oscillation(recent) > threshold
