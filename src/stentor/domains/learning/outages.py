"""Outages: several failures in a row whose cause was not the agents, so that the records from before them count. Pure.

- Outage of all agents at a task type (`FailureRun`): it does not show which agent is better. The records from before
  the run of failures are kept. If the run was long enough, the success that ends it makes them count again: in memory
  at once, in the database with each agent's next outcome.
- Outage before the first success of any agent: there are no earlier records. The failures of each agent are counted,
  and removed when an agent does so well that its own failures must have been an outage.
- Outage of one agent (`OwnOutages`): its results have changed (`evidence.find_drop`), and it loses its tasks. If that
  may have been an outage, the agent is tried again with its earlier record, and a success makes this record count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from stentor.domains.learning import evidence
from stentor.domains.learning.model import Weight

MISSED_SUCCESSES = 8.0
"""Failures in a row are an outage of all agents if their records promised at least this many successes instead."""
FAILURES_OF_OTHERS = 2
"""Failures in a row that other agents must have, besides the one with the most, which may simply be broken."""
MAX_CHANCE_AT_THE_START = 0.01
"""Failures before the first success of any agent are an outage if, by the results since then, their probability is at
most this. Greater than for a later outage, because a false alarm costs only a few tries."""
MIN_OWN_FAILURES, MAX_CHANCE = 3, 0.001
"""One agent may have an outage from this many failures in a row on, if by its earlier record their probability is at
most this."""
RETRY_OUTCOMES, RETRY_GROWTH = 32, 3
"""An agent is tried again after this many outcomes of other agents, and after this many times as many as its outage has
lasted."""
MIN_OUTCOMES_BETWEEN = 50
"""An agent's outcomes between two outages. With fewer these count as one, so it is tried again later."""


class FailureRun:
    """The failures since the last success of any agent at a task type."""

    def __init__(self) -> None:
        self._before: dict[str, Weight] = {}
        """The record of each failing agent before its first failure of the run."""
        self._failures: dict[str, int] = {}
        self._missed_successes = 0.0
        """How many successes the records promised where there were failures."""
        self._restored: dict[str, tuple[Weight, Weight]] = {}
        """By agent: the record in the database, and the earlier record that counts in its place."""
        self._has_succeeded = False
        """Whether any agent has had a success at the task type."""
        self._first_failures: dict[str, int] = {}
        """The failures of each agent before the first success of any, until it is clear what they were."""

    @property
    def is_outage(self) -> bool:
        """Return whether the run has failures of several agents that were better before."""
        if self._missed_successes < MISSED_SUCCESSES:
            return False
        return self._failures_of_others >= FAILURES_OF_OTHERS

    @property
    def _failures_of_others(self) -> int:
        return sum(self._failures.values()) - max(self._failures.values(), default=0)

    def ends_outage(self, weight: Weight, previous: Weight | None) -> bool:
        """Return whether an agent's new record has a success after an outage; `previous` is its record before."""
        return self.is_outage and count_trailing_failures(weight) < _count_new(weight, previous)

    def count(self, weight: Weight, previous: Weight | None) -> None:
        """Count the new outcomes of an agent."""
        self._restored.pop(weight.agent_id, None)
        new = _count_new(weight, previous)
        if not new:
            return
        failures = count_trailing_failures(weight)
        if failures < new:
            if not self._has_succeeded and self._failures_of_others >= FAILURES_OF_OTHERS:
                self._first_failures = dict(self._failures)
            self._has_succeeded = True
            self._clear()
        if failures:
            # With a success among the new outcomes the previous record is not the one before the failures.
            before = previous if previous and failures >= new else without_newest(weight, failures)
            self._add(weight, min(failures, new), before)

    def rebuild(self, weights: Iterable[Weight]) -> None:
        """Find the run in stored records. The `tick` of each numbers its last outcome among those of all agents."""
        self._clear()
        weights = list(weights)
        self._has_succeeded = any(weight.samples > weight.recent.count("F") for weight in weights)
        newest_first = sorted(weights, key=lambda weight: weight.tick, reverse=True)
        counted = 0
        for weight in newest_first:
            failures = count_trailing_failures(weight)
            # More outcomes than failures since this agent's last one: one of them was a success.
            if not failures or newest_first[0].tick - weight.tick > counted:
                break
            counted += failures
            self._add(weight, failures, without_newest(weight, failures))
        self.find_first(weights)

    def find_first(self, weights: Collection[Weight]) -> None:
        """Find the failures before the first success in records, also those of which other processes knew first."""
        if self._has_succeeded:
            self._first_failures = _failures_at_the_start(weights)

    def current(self, stored: Weight, *, success: bool = False) -> Weight:
        """Return the record that counts in place of a stored one.

        With `success`, the agent has just succeeded, which may end an outage.
        """
        if self.is_superseded(stored):
            return self._restored[stored.agent_id][1]
        return self._before_run(stored) if success and self.is_outage else stored

    def is_superseded(self, stored: Weight) -> bool:
        """Return whether an earlier record counts in place of this one."""
        known = self._restored.get(stored.agent_id)
        return known is not None and known[0] == stored

    def restore(self, weights: Mapping[str, Weight], ended_by: str) -> list[Weight]:
        """Return the records that count again, after the success of an agent that ended the outage."""
        failed = [weights[agent_id] for agent_id in self._before if agent_id != ended_by]
        restored = [self._before_run(weight) for weight in failed]
        self._restored |= {now.agent_id: (now, before) for now, before in zip(failed, restored, strict=True)}
        return restored

    def forgive_first(self, weights: Mapping[str, Weight], weight: Weight) -> list[Weight]:
        """Return the records without the failures that the task type began with, once they are known as an outage.

        That is so when an agent that had some of them has done so well since that they are improbable. The other agents
        may be as good, but with only failures in their records they would not be tried again.
        """
        own = self._first_failures.get(weight.agent_id, 0)
        since = weight.recent[_count_kept(weight, own) :]
        if not own or _chance_of_failures(own, since) > MAX_CHANCE_AT_THE_START:
            return []
        forgiven = []
        for agent_id, failures in self._first_failures.items():
            known = weights[agent_id]
            if kept := _count_kept(known, failures):
                record = _without_oldest(known, kept)
                # The database may have another record than the known one since an outage that has just ended.
                stored, _ = self._restored.get(agent_id, (known, known))
                self._restored[agent_id] = stored, record
                forgiven.append(record)
        self._first_failures = {}
        return forgiven

    def changed_tick(self, weights: Iterable[Weight]) -> int:
        """Return when the results of any agent last changed, without the failures of the run."""
        return max((self._before.get(each.agent_id, each).changed_tick for each in weights), default=0)

    def _clear(self) -> None:
        self._before.clear()
        self._failures.clear()
        self._missed_successes = 0.0

    def _add(self, weight: Weight, failures: int, before: Weight) -> None:
        before = self._before.setdefault(weight.agent_id, before)
        self._failures[weight.agent_id] = self._failures.get(weight.agent_id, 0) + failures
        self._missed_successes += failures * before.recent.count("S") / max(1, len(before.recent))

    def _before_run(self, weight: Weight) -> Weight:
        before = self._before.get(weight.agent_id)
        if before is None:
            return weight
        # The tick is the newest: the agent was tried, and its evidence is not older than the others'.
        return msgspec.structs.replace(
            before, weight=weight.weight, samples=weight.samples, tick=weight.tick, updated_at=weight.updated_at
        )


class OwnOutages:
    """When the failures in a row of each agent at a task type began. In memory only."""

    def __init__(self) -> None:
        self._first_failures: dict[str, Weight] = {}
        """The record after the first failure, or after the first that this process knows."""
        self._ended: dict[str, tuple[int, int]] = {}
        """The number of the outcome that ended an agent's last outage, and the tick at which that began."""

    def count(self, weight: Weight, previous: Weight | None) -> None:
        """Count the new outcomes of an agent; `previous` is its record before them."""
        new = _count_new(weight, previous)
        if not new:
            return
        agent_id, failures = weight.agent_id, count_trailing_failures(weight)
        if previous and failures < new and count_outage_failures(previous):
            self._ended[agent_id] = weight.samples, self._began(previous)
        if not failures:
            self._first_failures.pop(agent_id, None)
        elif failures <= new or agent_id not in self._first_failures:
            self._first_failures[agent_id] = weight

    def first_failure(self, weight: Weight) -> Weight:
        """Return the record after the first of an agent's failures in a row, the given one if that is not known."""
        return self._first_failures.get(weight.agent_id, weight)

    def is_retry_due(self, weight: Weight, age: int) -> bool:
        """Return whether an agent is to be tried again, `age` outcomes of others after its last failure."""
        if age < RETRY_OUTCOMES or not count_outage_failures(weight):
            return False
        return age >= RETRY_GROWTH * (weight.tick - self._began(weight))

    def _began(self, weight: Weight) -> int:
        first = self.first_failure(weight)
        ended_at, began = self._ended.get(weight.agent_id, (0, 0))
        return began if ended_at and first.samples - ended_at <= MIN_OUTCOMES_BETWEEN else first.tick


def count_outage_failures(weight: Weight, max_chance: float = MAX_CHANCE) -> int:
    """Return how many failures in a row an agent or a model had last; 0 if they are more probable than that."""
    failures = count_trailing_failures(weight)
    outcomes = len(weight.recent) - failures
    if failures < MIN_OWN_FAILURES:
        return 0
    if failures >= evidence.MAX_OUTCOMES:
        # They displaced all earlier outcomes.
        return failures
    return failures if _chance_of_failures(failures, weight.recent[:outcomes]) <= max_chance else 0


def _chance_of_failures(failures: int, others: str) -> float:
    """Return how probable this many failures in a row are by the letters of an agent's other outcomes."""
    failed, outcomes = others.count("F"), len(others)
    return math.prod((failed + 1 + n) / (outcomes + 2 + n) for n in range(failures))


def without_outage(weight: Weight, max_chance: float = MAX_CHANCE) -> Weight:
    """Return a record without the failures of an outage that only this agent or model has, if it ends with some."""
    failures = count_outage_failures(weight, max_chance)
    if not failures:
        return weight
    # The loads stay: where results depend on the load, the failures say so.
    return msgspec.structs.replace(
        without_newest(weight, failures),
        weight=weight.weight,
        samples=weight.samples,
        tick=weight.tick,
        loads=weight.loads,
    )


def _failures_at_the_start(weights: Collection[Weight]) -> dict[str, int]:
    """Return the failures by agent that stored records may have from before the first success of any agent.

    Nothing if only one agent has several. The order of the outcomes is not stored, so it may be too much: an agent
    without a success counts if all outcomes up to its last one can have been failures.
    """
    failures = {weight.agent_id: count_first_failures(weight) for weight in weights}
    total = sum(failures.values())
    first = {
        weight.agent_id: failures[weight.agent_id]
        for weight in weights
        if failures[weight.agent_id] and ("S" in weight.recent or weight.tick <= total)
    }
    return first if sum(first.values()) - max(first.values(), default=0) >= FAILURES_OF_OTHERS else {}


def _count_kept(weight: Weight, first_failures: int) -> int:
    """Return how many of an agent's first failures its record still has; some may have been forgiven before."""
    if weight.recent.startswith("F" * first_failures):
        return first_failures
    kept = max(0, first_failures - (weight.samples - len(weight.recent)))
    return kept if weight.recent.startswith("F" * kept) else 0


def count_first_failures(weight: Weight) -> int:
    """Return the failures before the first success of a record, forgiven ones too; 0 if they may be displaced."""
    if len(weight.recent) >= evidence.MAX_OUTCOMES and weight.samples > len(weight.recent):
        return 0
    return weight.samples - len(weight.recent.lstrip("F"))


def _count_new(weight: Weight, previous: Weight | None) -> int:
    """Return the number of new outcomes; 0 after a grade."""
    return max(0, weight.samples - (previous.samples if previous else 0))


def count_trailing_failures(weight: Weight) -> int:
    return len(weight.recent) - len(weight.recent.rstrip("F"))


def _without_oldest(weight: Weight, outcomes: int) -> Weight:
    kept = len(weight.recent) - outcomes
    return msgspec.structs.replace(
        weight,
        recent=weight.recent[outcomes:],
        rewards=weight.rewards[2 * outcomes :],
        since_change=min(weight.since_change, kept),
        loads=weight.loads[-kept:] if kept else "",
    )


def without_newest(weight: Weight, outcomes: int) -> Weight:
    """Return a record without its newest outcomes, and without a change among them."""
    # The shortest segment includes successes if the change was found at one of the first failures.
    is_changed = weight.since_change >= outcomes + evidence.MIN_SEGMENT
    return msgspec.structs.replace(
        weight,
        recent=weight.recent[:-outcomes],
        rewards=weight.rewards[: -2 * outcomes],
        since_change=weight.since_change - outcomes if is_changed else evidence.NO_CHANGE,
        changed_tick=weight.changed_tick if is_changed else 0,
        loads=weight.loads[:-outcomes],
    )
