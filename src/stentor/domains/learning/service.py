"""Use cases of learning: count outcomes and grades as evidence, watch for oscillation, change connections.

`LearningView` has all records in memory for routing. Which outcomes are eligible is decided in `execution/outcomes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx, locks
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning import length as by_length
from stentor.domains.learning import model, store
from stentor.domains.learning.load import Factors, measure_effect
from stentor.domains.learning.model import AgentConnection, HistoryEntry, TaskTypeProgress, Weight
from stentor.domains.learning.outages import RETRY_OUTCOMES, FailureRun, OwnOutages, without_outage


class EligibleOutcome(msgspec.Struct, frozen=True):
    """An eligible outcome of an attempt. `performance` in (0,1] is the reward of a success; `cost` in US dollars.

    `load` is the number of tasks that the agent already worked on when it began, `length` the length of the input in
    bytes; each is None if it is unknown.
    """

    tenant: str
    task_id: str
    epoch: int
    agent_id: str
    task_type: str
    success: bool
    performance: float
    duration_ms: int
    cost: float | None = None
    load: int | None = None
    length: int | None = None


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
        for tenant, weight in oldest_first:
            if (weight.task_type, weight.agent_id) not in written:
                agents.update(self._set(tenant, weight))
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


class LearningService:
    """Writes records, history and alerts. An oscillation rate above `threshold` opens an alert."""

    def __init__(self, db: Database, clock: Clock, runlog: RunLog, threshold: float) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._threshold = threshold
        self._checked_scopes: set[tuple[str, str]] = set()
        self.view = LearningView()

    def learn(self, tx: Tx, outcome: EligibleOutcome, parent: str) -> str:
        """Count an outcome as evidence, in the transaction of the outcome. Return the id of the last event written.

        Once per task and attempt: the unique index on the history makes a second call fail.
        """
        # The record is read, changed and written: another process may learn of the same agent at the same time.
        tx.lock(locks.agent_lock(outcome.agent_id))
        stored = store.find(tx, outcome.agent_id, outcome.task_type)
        stored = stored or model.initial_weight(outcome.agent_id, outcome.task_type, tx.now)
        records = self.view.records(outcome.tenant, outcome.task_type)
        record, progress = records.before_outcome(stored, success=outcome.success)
        # Only after a pause: if an agent fails many tasks at once, some may still succeed by chance.
        if outcome.success and progress.tick - record.tick >= RETRY_OUTCOMES:
            record = without_outage(record)
        before = record.weight_at(tx.now)
        weight = model.apply_outcome(
            record,
            success=outcome.success,
            performance=outcome.performance,
            duration_ms=outcome.duration_ms,
            now=tx.now,
            cost=outcome.cost,
            load=outcome.load,
            length=outcome.length,
            progress=progress,
        )
        store.put(tx, weight)
        store.insert_history(
            tx, outcome.tenant, outcome.task_id, outcome.epoch, weight, before, success=outcome.success
        )
        result = "success" if outcome.success else "failure"
        message = f"Weight for {outcome.task_type} went from {before:.3f} to {weight.weight:.3f} after a {result}."
        meta = _learning_metadata(outcome, result, before, weight)
        update = EventDraft("learning_updated", "learning", message, meta, agent_id=outcome.agent_id)
        drafts = [update, *self._watch(tx, stored, weight)]
        # After the commit only: a rollback must not leave a record in memory that the database does not have.
        tx.after_commit(lambda: self.view.put(outcome.tenant, weight))
        return self._runlog.append(tx, outcome.tenant, drafts, task_id=outcome.task_id, parent=parent)

    def correct_with_grade(self, tx: Tx, outcome: EligibleOutcome, grade: float, parent: str) -> str | None:
        """Replace the reward of an outcome by a grade, in the transaction of the grade.

        Return the id of the event, or None if nothing was learned from the outcome. Once per attempt: the unique index
        on the history makes a second call fail.
        """
        # As in `learn`: the record is read, changed and written.
        tx.lock(locks.agent_lock(outcome.agent_id))
        learned, sample = store.find_sample(tx, outcome.tenant, outcome.task_id, outcome.epoch)
        record = store.find(tx, outcome.agent_id, outcome.task_type) if learned else None
        if record is None:
            return None
        record, _ = self.view.records(outcome.tenant, outcome.task_type).before_outcome(record, success=False)
        before = record.weight_at(tx.now)
        weight = model.apply_grade(
            record, sample=sample, was=outcome.performance, grade=grade, now=tx.now, length=outcome.length
        )
        store.put(tx, weight)
        store.insert_grade_history(tx, outcome.tenant, outcome.task_id, outcome.epoch, weight, before)
        # As in `learn`: only what is committed may be in memory.
        tx.after_commit(lambda: self.view.put(outcome.tenant, weight))
        meta = _learning_metadata(outcome, "graded", before, weight) | {"grade": grade, "was": outcome.performance}
        message = f"Weight for {outcome.task_type} went from {before:.3f} to {weight.weight:.3f} after a grade."
        draft = EventDraft("learning_updated", "learning", message, meta, agent_id=outcome.agent_id)
        return self._runlog.append(tx, outcome.tenant, [draft], task_id=outcome.task_id, parent=parent)

    def _watch(self, tx: Tx, previous: Weight, weight: Weight) -> list[EventDraft]:
        """Open or resolve an oscillation alert; return its event. The sentinel changes nothing else."""
        was_alarming = model.is_alarming(previous.recent, self._threshold)
        is_alarming = model.is_alarming(weight.recent, self._threshold)
        scope = (weight.agent_id, weight.task_type)
        if was_alarming == is_alarming and scope in self._checked_scopes:
            return []
        # Read the row once in each process even without a change: the threshold may have been another one before.
        tx.after_commit(lambda: self._checked_scopes.add(scope))
        alert = store.find_open_alert(tx, *scope)
        if is_alarming == (alert is not None):
            return []
        rate = model.oscillation_rate(weight.recent)
        if alert is None:
            store.insert_alert(tx, weight, rate, self._threshold)
        else:
            store.resolve_alert(tx, alert.alert_id)
        state = "opened" if is_alarming else "resolved"
        meta = {"task_type": weight.task_type, "state": state, "rate": rate, "samples": len(weight.recent)}
        message = f"Oscillation alert {state} for task type {weight.task_type}."
        return [EventDraft("sentinel_alert", "learning", message, meta, agent_id=weight.agent_id)]

    async def read_weights(self, agent_id: str) -> tuple[dict[str, float], int | None]:
        """Return an agent's weights by task type as of now, and the time of the last change in microseconds."""
        weights = await self._db.read(lambda tx: store.list_agent_weights(tx, agent_id))
        now = self._clock.now()
        last_change = max((weight.updated_at for weight in weights), default=None)
        return {weight.task_type: weight.weight_at(now) for weight in weights}, last_change

    async def list_history(self, agent_id: str, limit: int) -> tuple[list[HistoryEntry], int]:
        """Return an agent's newest changes, newest first, and how many there are, grades included."""
        return await self._db.read(lambda tx: store.list_history(tx, agent_id, limit))

    async def list_connections(
        self, tenant: str, agent_id: str | None = None, limit: int = 10_000
    ) -> list[AgentConnection]:
        """List the connections of a tenant, or of one of its agents, with their weights as of now."""
        connections = await self._db.read(lambda tx: store.list_connections(tx, tenant, agent_id, limit))
        now = self._clock.now()
        return [msgspec.structs.replace(connection, weight=connection.weight_at(now)) for connection in connections]

    async def change_connection(self, tenant: str, agent1: str, agent2: str, delta: float, by: str) -> AgentConnection:
        """Add `delta` to the weight between two agents; return the changed connection."""

        def work(tx: Tx) -> AgentConnection:
            connection = self.change_connection_in_tx(tx, tenant, agent1, agent2, delta)
            meta = {"connection": connection.key, "delta": delta, "weight": connection.weight, "by": by}
            message = f"Connection {connection.key} is {connection.weight:g}."
            self._runlog.append(tx, tenant, [EventDraft("connection_changed", "learning", message, meta)])
            return connection

        return await self._db.write(work)

    def change_connection_in_tx(self, tx: Tx, tenant: str, agent1: str, agent2: str, delta: float) -> AgentConnection:
        """Change a connection within the caller's transaction, which records its own event."""
        # Sorted, because the pair has no order: both orders must take the same lock.
        tx.lock(locks.pair_lock(tenant, *sorted((agent1, agent2))))
        connection = store.find_connection(tx, tenant, agent1, agent2)
        connection = connection or AgentConnection(agent1, agent2, model.INITIAL_WEIGHT, tx.now)
        weight = model.add_to_weight(connection.weight_at(tx.now), delta)
        connection = msgspec.structs.replace(connection, weight=weight, updated_at=tx.now)
        store.put_connection(tx, tenant, connection)
        return connection


def learning_skipped_event(outcome_class: str, reason: str | None = None) -> EventDraft:
    """Return the event of an outcome that is not learned from; `reason` if its class does not explain it."""
    meta: JsonObject = {"outcome_class": outcome_class, "learning_eligible": False}
    message = f"Not counted for routing: the outcome is {outcome_class}."
    if reason is not None:
        meta["reason"] = reason
        message = f"{message} {reason}"
    return EventDraft("learning_skipped", "learning", message, meta)


def _learning_metadata(outcome: EligibleOutcome, result: str, before: float, weight: Weight) -> JsonObject:
    rewards, outcomes = weight.counted_rewards
    return {
        "task_type": outcome.task_type,
        "result": result,
        "weight_before": before,
        "weight_after": weight.weight,
        "epoch": outcome.epoch,
        "rewards": rewards,
        "outcomes": outcomes,
        "tick": weight.tick,
        "changed": weight.changed_tick == weight.tick,
    }
