"""Use cases of learning, and the view of all weights in memory that routing reads."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx, locks
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning import model, store
from stentor.domains.learning.model import AgentConnection, HistoryEntry, SentinelAlert, TaskTypeProgress, Weight


class EligibleOutcome(msgspec.Struct, frozen=True):
    """One eligible outcome of one attempt. `performance` in (0,1] counts for successes."""

    tenant: str
    task_id: str
    epoch: int
    agent_id: str
    task_type: str
    success: bool
    performance: float
    duration_ms: int
    cost: float | None = None


class TaskTypeRecords:
    """What the agents of one tenant showed at one task type."""

    def __init__(self) -> None:
        self.weights_by_agent: dict[str, Weight] = {}
        self.progress = TaskTypeProgress()
        self.derived: dict[str, Any] = {}
        """What routing computed from them last, by agent; it checks itself whether that still holds."""
        self.derived_at = (0, 0)


RewardSums = tuple[float, float]


class LearningView:
    """Weights in memory, by tenant, task type and agent."""

    def __init__(self) -> None:
        self._by_type: dict[tuple[str, str], TaskTypeRecords] = {}
        self.sums_by_agent: dict[str, RewardSums] = {}
        """Of an agent over all its task types: sum of rewards and number of outcomes, as far as they still count."""
        self._meanwhile = ConcurrentWrites[tuple[str, str]]()

    def put(self, tenant: str, weight: Weight) -> None:
        """What this process wrote."""
        self._meanwhile.record_write((weight.task_type, weight.agent_id))
        self._keep(tenant, weight)

    def poll_query(self, since: int) -> PollQuery:
        """What changed since, for the view."""
        return self._meanwhile.start_poll(lambda tx: store.changed_since(tx, since), self._hear)

    def _hear(self, changed: list[tuple[str, Weight]], written: set[tuple[str, str]]) -> None:
        for tenant, weight in changed:
            if (weight.task_type, weight.agent_id) not in written:
                self._keep(tenant, weight)

    def _keep(self, tenant: str, weight: Weight) -> None:
        records = self._by_type.setdefault((tenant, weight.task_type), TaskTypeRecords())
        known = records.weights_by_agent.get(weight.agent_id)
        records.weights_by_agent[weight.agent_id] = weight
        records.progress = TaskTypeProgress(
            max(records.progress.tick, weight.tick), max(records.progress.changed_tick, weight.changed_tick)
        )
        rewards, outcomes = self.sums_by_agent.get(weight.agent_id, (0.0, 0.0))
        before = known.counted_rewards if known else (0.0, 0.0)
        now = weight.counted_rewards
        self.sums_by_agent[weight.agent_id] = (rewards + now[0] - before[0], outcomes + now[1] - before[1])

    def records(self, tenant: str, task_type: str) -> TaskTypeRecords:
        """Read them, do not keep or change them."""
        return self._by_type.get((tenant, task_type)) or NO_RECORDS


NO_RECORDS = TaskTypeRecords()


class LearningService:
    """`threshold` is the oscillation rate above which the sentinel opens an alert."""

    def __init__(self, db: Database, clock: Clock, runlog: RunLog, threshold: float = model.SENTINEL_THRESHOLD) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._threshold = threshold
        self._watched: set[tuple[str, str]] = set()
        self.view = LearningView()

    def learn(self, tx: Tx, lesson: EligibleOutcome, parent: str) -> str:
        """Apply one outcome inside its transaction; answers the id of the last event written.

        Applied once per (task, attempt): the unique index makes a second time fail.
        """
        tx.lock(locks.agent_lock(lesson.agent_id))
        known = store.find(tx, lesson.agent_id, lesson.task_type)
        known = known or model.initial_weight(lesson.agent_id, lesson.task_type, tx.now)
        before = known.weight_at(tx.now)
        weight = model.apply_outcome(
            known,
            success=lesson.success,
            performance=lesson.performance,
            duration_ms=lesson.duration_ms,
            now=tx.now,
            cost=lesson.cost,
            progress=self.view.records(lesson.tenant, lesson.task_type).progress,
        )
        store.put(tx, weight)
        store.insert_history(tx, lesson.tenant, lesson.task_id, lesson.epoch, weight, before, success=lesson.success)
        drafts = [_updated(lesson, before, weight), *self._watch(tx, known, weight)]
        tx.after_commit(lambda: self.view.put(lesson.tenant, weight))
        return self._runlog.append(tx, lesson.tenant, drafts, task_id=lesson.task_id, parent=parent)

    def correct_with_grade(self, tx: Tx, lesson: EligibleOutcome, grade: float, parent: str) -> str | None:
        """Let a grade take the place of what an outcome was worth, inside the grade's transaction. Answers the id of
        the event, or None when nothing was learned from the outcome.

        The unique index makes a second correction of the same attempt fail.
        """
        tx.lock(locks.agent_lock(lesson.agent_id))
        learned, sample = store.find_sample(tx, lesson.tenant, lesson.task_id, lesson.epoch)
        known = store.find(tx, lesson.agent_id, lesson.task_type) if learned else None
        if known is None:
            return None
        before = known.weight_at(tx.now)
        weight = model.apply_grade(known, sample=sample, was=lesson.performance, grade=grade, now=tx.now)
        store.put(tx, weight)
        store.insert_grade_history(tx, lesson.tenant, lesson.task_id, lesson.epoch, weight, before)
        tx.after_commit(lambda: self.view.put(lesson.tenant, weight))
        meta = _meta(lesson, "graded", before, weight) | {"grade": grade, "was": lesson.performance}
        message = f"Weight for {lesson.task_type} went from {before:.3f} to {weight.weight:.3f} after a grade."
        draft = EventDraft("learning_updated", "learning", message, meta, agent_id=lesson.agent_id)
        return self._runlog.append(tx, lesson.tenant, [draft], task_id=lesson.task_id, parent=parent)

    def _watch(self, tx: Tx, known: Weight, weight: Weight) -> list[EventDraft]:
        """The sentinel: opens and resolves alerts, and does nothing else."""
        was, now = (model.is_alarming(one.recent, self._threshold) for one in (known, weight))
        scope = (weight.agent_id, weight.task_type)
        if was == now and scope in self._watched:
            return []
        # The first time in this process the row is asked: the threshold may have been another one before.
        tx.after_commit(lambda: self._watched.add(scope))
        alert = store.find_open_alert(tx, *scope)
        if now == (alert is not None):
            return []
        rate = model.oscillation_rate(weight.recent)
        if alert is None:
            store.insert_alert(tx, weight, rate, self._threshold)
        else:
            store.resolve_alert(tx, alert.alert_id)
        word = "opened" if now else "resolved"
        meta = {"task_type": weight.task_type, "state": word, "rate": rate, "samples": len(weight.recent)}
        message = f"Oscillation alert {word} for task type {weight.task_type}."
        return [EventDraft("sentinel_alert", "learning", message, meta, agent_id=weight.agent_id)]

    async def read_weights(self, agent_id: str) -> tuple[dict[str, float], int | None]:
        """Task type to weight now, and when the last one changed."""
        known = await self._db.read(lambda tx: store.list_agent_weights(tx, agent_id))
        now = self._clock.now()
        last = max((w.updated_at for w in known), default=None)
        return {w.task_type: w.weight_at(now) for w in known}, last

    async def list_history(self, agent_id: str, limit: int) -> tuple[list[HistoryEntry], int]:
        return await self._db.read(lambda tx: store.list_history(tx, agent_id, limit))

    async def list_connections(self, tenant: str, limit: int = 10_000) -> list[AgentConnection]:
        """All connections of a tenant, with their weights as of now."""
        links = await self._db.read(lambda tx: store.list_connections(tx, tenant, limit))
        now = self._clock.now()
        return [msgspec.structs.replace(link, weight=link.weight_at(now)) for link in links]

    async def change_connection(self, tenant: str, one: str, other: str, delta: float, by: str) -> AgentConnection:
        """Move the weight between two agents; answers the connection after it."""

        def work(tx: Tx) -> AgentConnection:
            link = self.change_connection_in_tx(tx, tenant, one, other, delta)
            meta = {"connection": link.key, "delta": delta, "weight": link.weight, "by": by}
            message = f"Connection {link.key} is {link.weight:g}."
            self._runlog.append(tx, tenant, [EventDraft("connection_changed", "learning", message, meta)])
            return link

        return await self._db.write(work)

    def change_connection_in_tx(self, tx: Tx, tenant: str, one: str, other: str, delta: float) -> AgentConnection:
        """The same inside a transaction that records its own event."""
        tx.lock(locks.pair_lock(tenant, *sorted((one, other))))
        known = store.find_connection(tx, tenant, one, other)
        known = known or AgentConnection(one, other, model.INITIAL_WEIGHT, tx.now)
        weight = model.add_to_weight(known.weight_at(tx.now), delta)
        link = msgspec.structs.replace(known, weight=weight, updated_at=tx.now)
        store.put_connection(tx, tenant, link)
        return link

    async def list_alerts(self, *, open_only: bool = False, limit: int = 100) -> list[SentinelAlert]:
        return await self._db.read(lambda tx: store.list_alerts(tx, open_only=open_only, limit=limit))


def learning_skipped_event(outcome_class: str, reason: str | None = None) -> EventDraft:
    """The event of an outcome that nothing is learned from; `reason` where its class alone does not say why."""
    meta: dict[str, Any] = {"outcome_class": outcome_class, "learning_eligible": False}
    message = f"Nothing is learned from the outcome {outcome_class}."
    if reason is not None:
        meta["reason"] = reason
        message = f"{message} {reason}"
    return EventDraft("learning_skipped", "learning", message, meta)


def _updated(lesson: EligibleOutcome, before: float, weight: Weight) -> EventDraft:
    result = "success" if lesson.success else "failure"
    meta = _meta(lesson, result, before, weight)
    message = f"Weight for {lesson.task_type} went from {before:.3f} to {weight.weight:.3f} after a {result}."
    return EventDraft("learning_updated", "learning", message, meta, agent_id=lesson.agent_id)


def _meta(lesson: EligibleOutcome, result: str, before: float, weight: Weight) -> dict[str, Any]:
    rewards, outcomes = weight.counted_rewards
    return {
        "task_type": lesson.task_type,
        "result": result,
        "weight_before": before,
        "weight_after": weight.weight,
        "epoch": lesson.epoch,
        "rewards": rewards,
        "outcomes": outcomes,
        "tick": weight.tick,
        "changed": weight.changed_tick == weight.tick,
    }
