"""Hebbian deltas, decay, the sentinel's rate: pure. Source: docs/decisions, "Learning and trust"."""

from __future__ import annotations

import math
from functools import cached_property
from operator import ne

import msgspec

from stentor.core.clock import DAY
from stentor.domains.learning import evidence

INITIAL_WEIGHT, MIN_WEIGHT, FAILURE_PENALTY, DAILY_WEIGHT_DECAY = 1.0, 0.01, 0.1, 0.01
SENTINEL_WINDOW, SENTINEL_THRESHOLD = 50, 0.4
SMOOTHING_FACTOR = 0.2
"""Share of the newest duration or cost in its moving average."""


class Weight(msgspec.Struct, frozen=True, dict=True):
    """What is known of one agent at one task type.

    `recent` holds S and F, `rewards` two hexadecimal digits for each of the same outcomes, newest last. `tick` counts
    the outcomes of all agents at this task type up to this agent's last one, `changed_tick` up to the last change of
    this agent's results, `since_change` its own outcomes since a change of anybody's. `mean_cost` is in US dollars.
    """

    agent_id: str
    task_type: str
    weight: float
    mean_ms: float
    samples: int
    recent: str
    updated_at: int
    rewards: str = ""
    tick: int = 0
    since_change: int = evidence.NO_CHANGE
    changed_tick: int = 0
    mean_cost: float | None = None

    def weight_at(self, now: int) -> float:
        return decay_weight(self.weight, now - self.updated_at)

    @cached_property
    def encoded_rewards(self) -> str:
        """The rewards; from S and F where an earlier version wrote the record last."""
        return (
            self.rewards
            if evidence.is_consistent(self.rewards, self.recent)
            else evidence.rewards_from_letters(self.recent)
        )

    @cached_property
    def counted_rewards(self) -> tuple[float, float]:
        """Sum of rewards and number of outcomes, as far as they still count."""
        return evidence.sum_rewards(self.encoded_rewards, self.since_change)

    @cached_property
    def variation(self) -> float:
        """How much the rewards vary: 1 for successes and failures alone, less for grades that are alike."""
        return evidence.relative_variation(self.encoded_rewards)

    @cached_property
    def stale_rewards(self) -> tuple[float, float]:
        """The same when the results of another agent changed after this one's last outcome."""
        return evidence.sum_rewards(self.encoded_rewards, 0)


class HistoryEntry(msgspec.Struct, frozen=True):
    """One line of an agent's history."""

    timestamp: int
    task_type: str
    delta: int
    result: str
    weight_before: float
    weight_after: float


class AgentConnection(msgspec.Struct, frozen=True):
    agent1: str
    agent2: str
    weight: float
    updated_at: int

    @property
    def key(self) -> str:
        return f"{self.agent1}-{self.agent2}"

    def weight_at(self, now: int) -> float:
        return decay_weight(self.weight, now - self.updated_at)


class SentinelAlert(msgspec.Struct, frozen=True):
    """The sentinel's finding: an agent's outcomes at a task type swing to and fro."""

    alert_id: str
    agent_id: str
    task_type: str
    rate: float
    threshold: float
    samples: int
    opened_at: int
    resolved_at: int | None


def initial_weight(agent_id: str, task_type: str, now: int) -> Weight:
    return Weight(agent_id, task_type, INITIAL_WEIGHT, 0.0, 0, "", now)


def decay_weight(weight: float, idle: int) -> float:
    """The weight after `idle` microseconds: one percent of its distance to 1.0 a whole day."""
    days = max(0, idle) // DAY
    return INITIAL_WEIGHT + (weight - INITIAL_WEIGHT) * (1 - DAILY_WEIGHT_DECAY) ** days if days else weight


def weight_delta(*, success: bool, performance: float) -> float:
    """`+tanh(0.1 p)` for a success of performance p in (0,1], `-0.1` for an eligible failure."""
    return math.tanh(0.1 * performance) if success else -FAILURE_PENALTY


class TaskTypeProgress(msgspec.Struct, frozen=True):
    """Of all agents at one task type: outcomes so far, and the last of them at which somebody's results changed."""

    tick: int = 0
    changed_tick: int = 0

    def has_changed_since(self, known: Weight | None) -> bool:
        """Whether somebody's results changed after the last outcome of an agent; None for one without any."""
        return self.changed_tick > (0 if known is None else known.tick)


def apply_outcome(
    known: Weight,
    *,
    success: bool,
    performance: float,
    duration_ms: int,
    now: int,
    cost: float | None = None,
    progress: TaskTypeProgress | None = None,
) -> Weight:
    """The record after one outcome; `cost` in US dollars, None when nobody said it."""
    progress = progress or TaskTypeProgress()
    tick = max(progress.tick, known.tick) + 1
    rewards = evidence.append_reward(known.encoded_rewards, performance if success else 0.0)
    since = 0 if progress.changed_tick > known.tick else known.since_change
    since = since if since == evidence.NO_CHANGE else min(evidence.MAX_OUTCOMES, since + 1)
    dropped = None if success and performance >= 1 else evidence.find_drop(rewards, since)
    return Weight(
        known.agent_id,
        known.task_type,
        add_to_weight(known.weight_at(now), weight_delta(success=success, performance=performance)),
        float(duration_ms) if not known.samples else _moved(known.mean_ms, duration_ms),
        known.samples + 1,
        (known.recent + ("S" if success else "F"))[-SENTINEL_WINDOW:],
        now,
        rewards,
        tick,
        since if dropped is None else dropped,
        known.changed_tick if dropped is None else tick,
        known.mean_cost if cost is None else _moved(known.mean_cost, cost),
    )


def apply_grade(known: Weight, *, sample: int | None, was: float, grade: float, now: int) -> Weight:
    """The record after a grade took the place of what an outcome was worth before; `sample` is its number among the
    agent's outcomes. The weight moves by the difference, the evidence as long as it remembers the outcome.
    """
    by = weight_delta(success=grade > 0, performance=grade) - weight_delta(success=was > 0, performance=was)
    rewards = None if sample is None else evidence.replace_reward(known.encoded_rewards, known.samples - sample, grade)
    weight = add_to_weight(known.weight_at(now), by)
    return msgspec.structs.replace(known, weight=weight, updated_at=now, rewards=rewards or known.encoded_rewards)


def _moved(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + SMOOTHING_FACTOR * (newest - mean)


def add_to_weight(weight: float, by: float) -> float:
    return max(MIN_WEIGHT, round(weight + by, 12))


def oscillation_rate(recent: str) -> float:
    """Changes of sign over the number of outcomes; 0 without outcomes."""
    changes = sum(map(ne, recent, recent[1:]))
    return changes / len(recent) if recent else 0.0


def is_alarming(recent: str, threshold: float) -> bool:
    return len(recent) >= SENTINEL_WINDOW and oscillation_rate(recent) > threshold
