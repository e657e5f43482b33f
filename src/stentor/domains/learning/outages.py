"""Outages of all agents at a task type: their failures say nothing about which agent is better. Pure.

`FailureRun` keeps the records that the agents had before the current run of failures. When the run is long enough to be
an outage of all, the success that ends it makes those records count again, in memory at once, in the database with each
agent's next outcome. What one agent fails alone is a change of its results instead (`evidence.find_drop`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from stentor.domains.learning import evidence
from stentor.domains.learning.model import Weight

MISSED_SUCCESSES = 8.0
"""Successes that were to be expected in place of the failures in a row, from which on all agents fail."""
FAILURES_OF_OTHERS = 2
"""Failures in a row that are not of the agent with the most: it may have broken after a chance failure of another."""


class FailureRun:
    """The failures since the last success of any agent at a task type."""

    def __init__(self) -> None:
        self._before: dict[str, Weight] = {}
        """The record of each failing agent before its first failure of the run."""
        self._failures: dict[str, int] = {}
        self._missed_successes = 0.0
        """How many successes the records promised in place of the failures."""
        self._restored: dict[str, tuple[Weight, Weight]] = {}
        """The record in the database, and the earlier one that counts again in its place."""

    @property
    def is_outage(self) -> bool:
        """Return whether the run has failures of several agents that were better before."""
        if self._missed_successes < MISSED_SUCCESSES:
            return False
        return sum(self._failures.values()) - max(self._failures.values()) >= FAILURES_OF_OTHERS

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
            self._clear()
        if failures:
            # With a success among the new outcomes the previous record is not the one before the failures.
            before = previous if previous and failures >= new else without_newest(weight, failures)
            self._add(weight, min(failures, new), before)

    def rebuild(self, weights: Iterable[Weight]) -> None:
        """Find the run in stored records. The `tick` of each numbers its last outcome among those of all agents."""
        self._clear()
        newest_first = sorted(weights, key=lambda weight: weight.tick, reverse=True)
        counted = 0
        for weight in newest_first:
            failures = count_trailing_failures(weight)
            # More outcomes than failures since this agent's last one: one of them was a success.
            if not failures or newest_first[0].tick - weight.tick > counted:
                break
            counted += failures
            self._add(weight, failures, without_newest(weight, failures))

    def current(self, stored: Weight, *, success: bool = False) -> Weight:
        """Return the record that counts in place of a stored one; with `success` the agent ends an outage, if any."""
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


def _count_new(weight: Weight, previous: Weight | None) -> int:
    """Return the number of new outcomes; 0 after a grade."""
    return max(0, weight.samples - (previous.samples if previous else 0))


def count_trailing_failures(weight: Weight) -> int:
    return len(weight.recent) - len(weight.recent.rstrip("F"))


def without_newest(weight: Weight, outcomes: int) -> Weight:
    """Return a record without its newest outcomes, and without a change among them."""
    is_changed = weight.since_change > outcomes
    return msgspec.structs.replace(
        weight,
        recent=weight.recent[:-outcomes],
        rewards=weight.encoded_rewards[: -2 * outcomes],
        since_change=weight.since_change - outcomes if is_changed else evidence.NO_CHANGE,
        changed_tick=weight.changed_tick if is_changed else 0,
        loads=weight.loads[:-outcomes],
    )
