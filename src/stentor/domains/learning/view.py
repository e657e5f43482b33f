"""The records of all agents in memory, for routing: by tenant, task type and agent. `service` changes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.domains.learning import length as by_length
from stentor.domains.learning import store
from stentor.domains.learning.load import Factors, measure_effect
from stentor.domains.learning.model import TaskTypeProgress, Weight
from stentor.domains.learning.outages import FailureRun, OwnOutages, count_first_failures

MAX_RECENT_OUTCOMES = 64.0
MAX_RECENT_AT_ONE_TYPE = 16.0
"""Number of an agent's latest outcomes, in all and at one task type, that count for its other task types."""
LOAD_EFFECT_STEP = LENGTH_EFFECT_STEP = 4
"""Outcomes at a task type after which the effects of the load and of the length are measured again; as many as it has
agents if these are more, a quarter of them for the length."""


class RecentRewards(msgspec.Struct, frozen=True):
    """The newest outcomes of an agent over its task types: rewards and outcomes, in all and by task type."""

    rewards: float
    outcomes: float
    by_type: dict[str, tuple[float, float]]

    def elsewhere(self, task_type: str) -> tuple[float, float]:
        """Return rewards and outcomes at the other task types."""
        rewards, outcomes = self.by_type.get(task_type, (0.0, 0.0))
        # Never below 0, which rounding could cause.
        return max(0.0, self.rewards - rewards), max(0.0, self.outcomes - outcomes)


def sum_recent(newest_first: Iterable[Weight]) -> RecentRewards:
    """Add up the newest outcomes, given an agent's records by their last outcome."""
    total_rewards = total_outcomes = 0.0
    by_type = {}
    for weight in newest_first:
        rewards, outcomes = weight.counted_rewards
        share = min(1.0, MAX_RECENT_AT_ONE_TYPE / max(1.0, outcomes))
        by_type[weight.task_type] = rewards * share, outcomes * share
        total_rewards += rewards * share
        total_outcomes += outcomes * share
        if total_outcomes >= MAX_RECENT_OUTCOMES:
            break
    return RecentRewards(total_rewards, total_outcomes, by_type)


class TaskTypeRecords:
    """The records of the agents of one tenant at one task type."""

    def __init__(self) -> None:
        self.weights_by_agent: dict[str, Weight] = {}
        self.progress = TaskTypeProgress()
        self.well_graded = 0
        """Number of agents with a good grade among their recent outcomes: if none, only bad answers may be graded."""
        self.loaded = 0
        """Number of agents that worked on several tasks at once."""
        self._failures = FailureRun()
        self.own_outages = OwnOutages()
        self._load_effect: tuple[int, Factors | None] = (-1, None)
        self._with_lengths = 0
        """Number of agents with outcomes of several groups of lengths."""
        self._length_effect: tuple[int, by_length.Splits | None] = (-1, None)
        self.derived: dict[int | None, dict[str, Any]] = {}
        """Cache of routing by group of length and by agent; routing itself checks whether an entry is still valid."""
        self.derived_at: tuple[int, int, bool, by_length.Splits | None] = (0, 0, False, None)

    def put(self, weight: Weight) -> list[Weight]:
        """Take over a record. Return the records that changed: several if an outage of all agents is over."""
        if self._failures.is_superseded(weight):
            return []
        previous, restored = self.weights_by_agent.get(weight.agent_id), []
        if self._failures.ends_outage(weight, previous):
            restored = self._failures.restore(self.weights_by_agent, weight.agent_id)
        self._failures.count(weight, previous)
        self.own_outages.count(weight, previous)
        changed = {each.agent_id: each for each in (*restored, weight)}
        for each in changed.values():
            self._replace(each)
        if restored:
            # Changes found during the outage do not count.
            changed_tick = max(each.changed_tick for each in self.weights_by_agent.values())
            self.progress = TaskTypeProgress(self.progress.tick, changed_tick)
        for each in self._failures.forgive_first(self.weights_by_agent, weight):
            changed[each.agent_id] = each
            self._replace(each)
        return list(changed.values())

    def load(self, weights: Iterable[Weight]) -> None:
        """Take over stored records, and find an outage of all agents that began before."""
        for weight in weights:
            self._replace(weight)
        self._failures.rebuild(self.weights_by_agent.values())

    def find_first_failures(self) -> None:
        """Find the failures of before the first success again, because another process counted some."""
        self._failures.find_first(self.weights_by_agent.values())

    def _replace(self, weight: Weight) -> None:
        previous = self.weights_by_agent.get(weight.agent_id)
        self.weights_by_agent[weight.agent_id] = weight
        self.loaded += bool(weight.loads) - (previous is not None and bool(previous.loads))
        self._with_lengths += _has_lengths(weight) - (previous is not None and _has_lengths(previous))
        self.well_graded += weight.has_good_grade - (previous is not None and previous.has_good_grade)
        self.progress = TaskTypeProgress(
            max(self.progress.tick, weight.tick), max(self.progress.changed_tick, weight.changed_tick)
        )

    def before_outcome(self, stored: Weight, *, success: bool) -> tuple[Weight, TaskTypeProgress]:
        """Return the record and the progress that an outcome changes, without an outage of all that ends with it."""
        record, progress = self._failures.current(stored, success=success), self.progress
        if success and self._failures.is_outage:
            changed_tick = self._failures.changed_tick(self.weights_by_agent.values())
            progress = TaskTypeProgress(progress.tick, changed_tick)
        return record, progress

    def load_effect(self) -> Factors | None:
        """Return by which factors results are worse at higher loads; None if they do not depend on the load."""
        if not self.loaded:
            return None
        # Not after each outcome: it looks at all agents of the task type, which takes 40 ms for 1,000.
        at = self.progress.tick // max(LOAD_EFFECT_STEP, self.loaded)
        if self._load_effect[0] != at:
            effect = measure_effect(weight.load_counts for weight in self.weights_by_agent.values() if weight.loads)
            self._load_effect = at, effect
        return self._load_effect[1]

    def length_effect(self) -> by_length.Splits | None:
        """Return the odds of each split by length; None if results do not depend on the length of the input."""
        if not self._with_lengths:
            return None
        at = self.progress.tick // max(LENGTH_EFFECT_STEP, self._with_lengths // 4)
        if self._length_effect[0] != at:
            effect = by_length.measure_effect(weight.split_factors for weight in self.weights_by_agent.values())
            self._length_effect = at, effect
        return self._length_effect[1]


def _has_lengths(weight: Weight) -> bool:
    return " " in weight.lengths


NO_RECORDS = TaskTypeRecords()
"""Shared by all task types without outcomes; never changed."""


class LearningView:
    """All records in memory, by tenant, task type and agent."""

    def __init__(self) -> None:
        self._by_type: dict[tuple[str, str], TaskTypeRecords] = {}
        self.recent_by_agent: dict[str, RecentRewards] = {}
        self._by_agent: dict[str, dict[str, Weight]] = {}
        """The records of each agent by task type, the one that changed last at the end."""
        self._concurrent_writes = ConcurrentWrites[tuple[str, str]]()

    def put(self, tenant: str, weight: Weight) -> None:
        """Take over a record that this process wrote."""
        # A poll that started before this write has read the older row and must not put it back.
        self._concurrent_writes.record_write((weight.task_type, weight.agent_id))
        for agent_id in self._set(tenant, weight):
            self._sum_recent(agent_id)

    def poll_query(self, since: int) -> PollQuery:
        """Return the query for records that other processes changed since `since`, in microseconds."""
        return self._concurrent_writes.start_poll(lambda tx: store.changed_since(tx, since), self._apply_changes)

    def _apply_changes(self, changed: list[tuple[str, Weight]], written: set[tuple[str, str]]) -> None:
        oldest_first = sorted(changed, key=lambda row: row[1].updated_at)
        if not self._by_type:
            self.load(oldest_first)
            return
        agents = set[str]()
        new_types = set[tuple[str, str]]()
        for tenant, weight in oldest_first:
            if (weight.task_type, weight.agent_id) not in written:
                agents.update(self._set(tenant, weight))
                if count_first_failures(weight):
                    new_types.add((tenant, weight.task_type))
        for key in new_types:
            self._by_type[key].find_first_failures()
        for agent_id in agents:
            self._sum_recent(agent_id)

    def load(self, oldest_first: Iterable[tuple[str, Weight]]) -> None:
        """Take over the stored records when the process starts, each with its tenant."""
        by_type: dict[tuple[str, str], list[Weight]] = {}
        for tenant, weight in oldest_first:
            by_type.setdefault((tenant, weight.task_type), []).append(weight)
            self._by_agent.setdefault(weight.agent_id, {})[weight.task_type] = weight
        for key, weights in by_type.items():
            self._by_type.setdefault(key, TaskTypeRecords()).load(weights)
        # Once for each agent, because each may have thousands of records.
        for agent_id in self._by_agent:
            self._sum_recent(agent_id)

    def _set(self, tenant: str, weight: Weight) -> list[str]:
        """Take over a record; return the agents whose records changed."""
        changed = self._by_type.setdefault((tenant, weight.task_type), TaskTypeRecords()).put(weight)
        for each in changed:
            own = self._by_agent.setdefault(each.agent_id, {})
            own.pop(each.task_type, None)
            own[each.task_type] = each
        return [each.agent_id for each in changed]

    def _sum_recent(self, agent_id: str) -> None:
        self.recent_by_agent[agent_id] = sum_recent(reversed(self._by_agent[agent_id].values()))

    def records(self, tenant: str, task_type: str) -> TaskTypeRecords:
        """Return the records of a task type, to be read only and not to be stored."""
        return self._by_type.get((tenant, task_type)) or NO_RECORDS
