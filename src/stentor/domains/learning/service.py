"""Use cases of learning: count outcomes and grades as evidence, watch for oscillation, change connections.

`view` has all records in memory for routing. Which outcomes are eligible is decided in `execution/outcomes.py`.
"""

from __future__ import annotations

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning import model, store
from stentor.domains.learning.model import AgentConnection, HistoryEntry, Weight
from stentor.domains.learning.outages import RETRY_OUTCOMES, without_outage
from stentor.domains.learning.view import LearningView


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
