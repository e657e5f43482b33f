"""Track records, Hebbian weights and their decay, connections, the oscillation rate of the sentinel. Pure.

How rewards become evidence is in `evidence`. Source: docs/decisions, "Learning and trust".
"""

from __future__ import annotations

import math
from functools import cached_property

import msgspec

from stentor.core.clock import DAY
from stentor.domains.learning import evidence
from stentor.domains.learning import length as by_length
from stentor.domains.learning.load import LoadCounts, append_load, count_loads, replace_load

INITIAL_WEIGHT = 1.0
MIN_WEIGHT = 0.01
FAILURE_PENALTY = 0.1
DAILY_WEIGHT_DECAY = 0.01
SENTINEL_WINDOW = 50
SMOOTHING_FACTOR = 0.2
"""Share of the newest duration or cost in its moving average; of the durations at first more."""


# dict=True adds the instance dictionary in which cached properties store their values.
class Weight(msgspec.Struct, frozen=True, dict=True):
    """The record of one agent at one task type.

    `recent` has a letter S or F and `rewards` two hexadecimal digits for each recent outcome, newest last. `tick`
    counts the outcomes of all agents at the task type up to this agent's last one, `changed_tick` those up to the last
    change of this agent's results, `since_change` this agent's outcomes since the last change of any agent's results.
    `mean_cost` is in US dollars, in the record of a model a multiple of the usual cost. `loads` has a letter for each
    recent outcome (`learning/load.py`), none as long as the agent works on one task at a time. `lengths` has
    the outcomes by length of the input (`learning/length.py`).
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
    loads: str = ""
    lengths: str = ""

    def weight_at(self, now: int) -> float:
        """Return the weight after its decay up to `now`."""
        return decay_weight(self.weight, now - self.updated_at)

    @cached_property
    def counted_rewards(self) -> tuple[float, float]:
        """Sum of the rewards and number of outcomes, as far as they still count."""
        return evidence.sum_rewards(self.rewards, self.since_change)

    @cached_property
    def load_counts(self) -> LoadCounts:
        """Number of outcomes and of successes by group of load."""
        return count_loads(self.loads)

    # Not cached: with hundreds of agents and task types it would take more memory than everything else here.
    @property
    def length_counts(self) -> by_length.LengthCounts:
        """Outcomes by group of the length of the input."""
        return by_length.decode_counts(self.lengths)

    @cached_property
    def split_factors(self) -> by_length.Splits | None:
        """By how much the outcomes make each split by length more probable; None if they are of one group."""
        return by_length.split_factors(self.length_counts)

    @cached_property
    def variation(self) -> float:
        """Relative variation of the rewards: 1 without grades, less if the grades are alike."""
        return evidence.relative_variation(self.rewards)

    @cached_property
    def has_good_grade(self) -> bool:
        """Whether a recent outcome was graded, and as good."""
        return any(grade >= evidence.GOOD_GRADE for grade in evidence.list_grades(self.rewards))

    def estimate_rewards(self, *, stale: bool, by_grades: bool) -> tuple[float, float]:
        """Return `counted_rewards` for a decision.

        `stale`: the results of another agent changed after this one's last outcome. `by_grades`: what is not graded
        counts as what is graded.
        """
        since_change = 0 if stale else self.since_change
        if not by_grades:
            return evidence.sum_rewards(self.rewards, since_change)
        if since_change not in self._by_grades:
            ungraded = evidence.scale_ungraded(self.rewards, self.recent)
            self._by_grades[since_change] = evidence.sum_rewards(self.rewards, since_change, ungraded)
        return self._by_grades[since_change]

    @cached_property
    def _by_grades(self) -> dict[int, tuple[float, float]]:
        """Results of `estimate_rewards` by `since_change`: scaling takes several times as long as adding up."""
        return {}


class HistoryEntry(msgspec.Struct, frozen=True):
    """A change of a weight. Time in microseconds; `delta` is 1 or -1."""

    timestamp: int
    task_type: str
    delta: int
    result: str
    weight_before: float
    weight_after: float


class AgentConnection(msgspec.Struct, frozen=True):
    """The weight between two agents that worked together on a task and its subtask."""

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
    """An oscillation alert: the outcomes of an agent at a task type alternate too often. Times in microseconds."""

    alert_id: str
    agent_id: str
    task_type: str
    rate: float
    threshold: float
    samples: int
    opened_at: int
    resolved_at: int | None


def initial_weight(agent_id: str, task_type: str, now: int) -> Weight:
    """Return the record of an agent before its first outcome."""
    return Weight(agent_id, task_type, INITIAL_WEIGHT, 0.0, 0, "", now)


def decay_weight(weight: float, idle: int) -> float:
    """Return the weight after `idle` microseconds: it loses 1 % of its distance to 1.0 per whole day."""
    days = max(0, idle) // DAY
    return INITIAL_WEIGHT + (weight - INITIAL_WEIGHT) * (1 - DAILY_WEIGHT_DECAY) ** days if days else weight


def weight_delta(*, success: bool, performance: float) -> float:
    """Return `+tanh(0.1 p)` for a success of performance p in (0,1], `-0.1` for an eligible failure."""
    return math.tanh(0.1 * performance) if success else -FAILURE_PENALTY


class TaskTypeProgress(msgspec.Struct, frozen=True):
    """Counters of one task type over all agents: outcomes so far, and at which the results of an agent last changed."""

    tick: int = 0
    changed_tick: int = 0

    def has_changed_since(self, record: Weight | None) -> bool:
        """Return whether any results changed after an agent's last outcome; `record` is None without an outcome."""
        return self.changed_tick > (0 if record is None else record.tick)


def apply_outcome(
    record: Weight,
    *,
    success: bool,
    performance: float,
    duration_ms: int,
    now: int,
    cost: float | None = None,
    load: int | None = 0,
    length: int | None = None,
    progress: TaskTypeProgress | None = None,
) -> Weight:
    """Return the record after one more outcome; `cost` in US dollars, None if it was not reported.

    `load` is the number of tasks that the agent already worked on when it began, `length` the length of the input in
    bytes; each is None if it is unknown.
    """
    progress = progress or TaskTypeProgress()
    # The record may be ahead of the progress in memory, and the progress ahead of the record.
    tick = max(progress.tick, record.tick) + 1
    rewards, recent, since_change = evidence.make_room(record.rewards, record.recent, record.since_change)
    rewards = evidence.append_reward(rewards, performance if success else 0.0)
    # A change of another agent's results since the last outcome counts as a change for this agent too.
    if progress.changed_tick > record.tick:
        since_change = 0
    if since_change != evidence.NO_CHANGE:
        since_change = min(evidence.MAX_OUTCOMES, since_change + 1)
    # A failure does not show how long the agent's work takes: one that fails at once is not fast, and one timeout
    # must not outweigh many quick successes. Before the first success it is all that is known.
    successes = record.recent.count("S")
    if success:
        # The plain mean of the first durations: the very first may have been a cold start.
        share = max(SMOOTHING_FACTOR, 1 / (successes + 1))
        mean_ms = record.mean_ms + share * (duration_ms - record.mean_ms)
    else:
        mean_ms = record.mean_ms if successes else max(float(duration_ms), record.mean_ms)
    # A full success cannot lower the mean, so the test is skipped.
    change = None if success and performance >= 1 else evidence.find_drop(rewards, since_change)
    return Weight(
        record.agent_id,
        record.task_type,
        add_to_weight(record.weight_at(now), weight_delta(success=success, performance=performance)),
        mean_ms,
        record.samples + 1,
        (recent + ("S" if success else "F"))[-SENTINEL_WINDOW:],
        now,
        rewards,
        tick,
        since_change if change is None else change,
        record.changed_tick if change is None else tick,
        record.mean_cost if cost is None else _moving_average(record.mean_cost, cost),
        append_load(record.loads, load, performance if success else 0.0),
        by_length.add_outcome(record.lengths, length, performance if success else 0.0, duration_ms),
    )


def apply_grade(
    record: Weight, *, sample: int | None, was: float, grade: float, now: int, length: int | None = None
) -> Weight:
    """Return the record after a grade replaced the reward `was` of an outcome.

    `sample` is the outcome's number among those of the agent, None if unknown, which leaves the evidence as it is. The
    weight changes by the difference of the deltas.
    """
    delta = weight_delta(success=grade > 0, performance=grade) - weight_delta(success=was > 0, performance=was)
    rewards = record.rewards
    changed = None if sample is None else evidence.replace_reward(rewards, record.samples - sample, grade)
    # Worse grades are as good a sign of a change as failures are.
    drop = evidence.find_drop(changed, record.since_change) if changed is not None and grade < was else None
    return msgspec.structs.replace(
        record,
        weight=add_to_weight(record.weight_at(now), delta),
        updated_at=now,
        rewards=changed or rewards,
        loads=record.loads if sample is None else replace_load(record.loads, record.samples - sample, grade),
        lengths=record.lengths if sample is None else by_length.replace_reward(record.lengths, length, was, grade),
        since_change=record.since_change if drop is None else drop,
        changed_tick=record.changed_tick if drop is None else record.tick,
    )


def add_to_weight(weight: float, delta: float) -> float:
    """Return the changed weight, at least `MIN_WEIGHT`."""
    return max(MIN_WEIGHT, round(weight + delta, 12))


def oscillation_rate(recent: str) -> float:
    """Return the number of alternations between S and F over the number of outcomes; 0 without outcomes."""
    changes = recent.count("SF") + recent.count("FS")
    return changes / len(recent) if recent else 0.0


def is_alarming(recent: str, threshold: float) -> bool:
    """Return whether a full window of outcomes oscillates more than `threshold`."""
    return len(recent) >= SENTINEL_WINDOW and oscillation_rate(recent) > threshold


def _moving_average(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + SMOOTHING_FACTOR * (newest - mean)
