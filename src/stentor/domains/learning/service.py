"""Use cases of learning, and the view of all weights in memory that routing reads."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx, locks
from stentor.core.db.looks import Meanwhile, News
from stentor.core.runlog import Draft, RunLog
from stentor.domains.learning import model, store
from stentor.domains.learning.model import Alert, Connection, Entry, Weight


class Lesson(msgspec.Struct, frozen=True):
    """One eligible outcome of one attempt. `performance` in (0,1] counts for successes."""

    tenant: str
    task_id: str
    epoch: int
    agent_id: str
    task_type: str
    success: bool
    performance: float
    duration_ms: int


class LearningView:
    """Weights in memory, by task type and agent."""

    def __init__(self) -> None:
        self._by_type: dict[str, dict[str, Weight]] = {}
        self._meanwhile = Meanwhile[tuple[str, str]]()

    def put(self, weight: Weight) -> None:
        """What this process wrote."""
        self._meanwhile.wrote((weight.task_type, weight.agent_id))
        self._keep(weight)

    def news(self, since: int) -> News:
        """What changed since, for the view."""
        return self._meanwhile.look(lambda tx: store.changed_since(tx, since), self._hear)

    def _hear(self, changed: list[Weight], written: set[tuple[str, str]]) -> None:
        for weight in changed:
            if (weight.task_type, weight.agent_id) not in written:
                self._keep(weight)

    def _keep(self, weight: Weight) -> None:
        self._by_type.setdefault(weight.task_type, {})[weight.agent_id] = weight

    def of_type(self, task_type: str) -> dict[str, Weight]:
        """Agent id to its record; read it, do not keep it."""
        return self._by_type.get(task_type, {})


class Learning:
    def __init__(self, db: Database, clock: Clock, runlog: RunLog) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self.view = LearningView()

    def learn(self, tx: Tx, lesson: Lesson, parent: str) -> str:
        """Apply one outcome inside its transaction; answers the id of the last event written.

        Applied once per (task, attempt): the unique index makes a second time fail.
        """
        tx.lock(locks.of_agent(lesson.agent_id))
        known = store.find(tx, lesson.agent_id, lesson.task_type)
        known = known or model.fresh(lesson.agent_id, lesson.task_type, tx.now)
        before = known.at(tx.now)
        weight = model.learned(
            known,
            success=lesson.success,
            performance=lesson.performance,
            duration_ms=lesson.duration_ms,
            now=tx.now,
        )
        store.put(tx, weight)
        store.enter(tx, lesson.tenant, lesson.task_id, lesson.epoch, weight, before, success=lesson.success)
        drafts = [_updated(lesson, before, weight.weight), *self._watch(tx, known, weight)]
        tx.after_commit(lambda: self.view.put(weight))
        return self._runlog.append(tx, lesson.tenant, drafts, task_id=lesson.task_id, parent=parent)

    def _watch(self, tx: Tx, known: Weight, weight: Weight) -> list[Draft]:
        """The sentinel: opens and resolves alerts, and does nothing else."""
        was, now = model.alarming(known.recent), model.alarming(weight.recent)
        if was == now:
            return []
        rate = model.oscillation(weight.recent)
        if now:
            store.raise_alert(tx, weight, rate)
        elif alert := store.open_alert(tx, weight.agent_id, weight.task_type):
            store.resolve_alert(tx, alert.alert_id)
        word = "opened" if now else "resolved"
        meta = {"task_type": weight.task_type, "state": word, "rate": rate, "samples": len(weight.recent)}
        message = f"Oscillation alert {word} for task type {weight.task_type}."
        return [Draft("sentinel_alert", "learning", message, meta, agent_id=weight.agent_id)]

    async def weights(self, agent_id: str) -> tuple[dict[str, float], int | None]:
        """Task type to weight now, and when the last one changed."""
        known = await self._db.read(lambda tx: store.of_agent(tx, agent_id))
        now = self._clock.now()
        last = max((w.updated_at for w in known), default=None)
        return {w.task_type: w.at(now) for w in known}, last

    async def history(self, agent_id: str, limit: int) -> tuple[list[Entry], int]:
        return await self._db.read(lambda tx: store.history(tx, agent_id, limit))

    async def connections(self, tenant: str, limit: int = 10_000) -> list[Connection]:
        """All connections of a tenant, with their weights as of now."""
        links = await self._db.read(lambda tx: store.connections(tx, tenant, limit))
        now = self._clock.now()
        return [msgspec.structs.replace(link, weight=link.at(now)) for link in links]

    async def connect(self, tenant: str, one: str, other: str, delta: float, by: str) -> Connection:
        """Move the weight between two agents; answers the connection after it."""

        def work(tx: Tx) -> Connection:
            link = self.strengthen(tx, tenant, one, other, delta)
            meta = {"connection": link.key, "delta": delta, "weight": link.weight, "by": by}
            message = f"Connection {link.key} is {link.weight:g}."
            self._runlog.append(tx, tenant, [Draft("connection_changed", "learning", message, meta)])
            return link

        return await self._db.write(work)

    def strengthen(self, tx: Tx, tenant: str, one: str, other: str, delta: float) -> Connection:
        """The same inside a transaction that records its own event."""
        tx.lock(locks.of_pair(tenant, *sorted((one, other))))
        known = store.connection(tx, tenant, one, other)
        known = known or Connection(one, other, model.START, tx.now)
        weight = model.strengthened(known.at(tx.now), delta)
        link = msgspec.structs.replace(known, weight=weight, updated_at=tx.now)
        store.connect(tx, tenant, link)
        return link

    async def alerts(self, *, open_only: bool = False, limit: int = 100) -> list[Alert]:
        return await self._db.read(lambda tx: store.alerts(tx, open_only=open_only, limit=limit))


def skipped(outcome_class: str, reason: str | None = None) -> Draft:
    """The event of an outcome that nothing is learned from; `reason` where its class alone does not say why."""
    meta: dict[str, Any] = {"outcome_class": outcome_class, "learning_eligible": False}
    message = f"Nothing is learned from the outcome {outcome_class}."
    if reason is not None:
        meta["reason"] = reason
        message = f"{message} {reason}"
    return Draft("learning_skipped", "learning", message, meta)


def _updated(lesson: Lesson, before: float, after: float) -> Draft:
    result = "success" if lesson.success else "failure"
    meta = {
        "task_type": lesson.task_type,
        "result": result,
        "weight_before": before,
        "weight_after": after,
        "epoch": lesson.epoch,
    }
    message = f"Weight for {lesson.task_type} went from {before:.3f} to {after:.3f} after a {result}."
    return Draft("learning_updated", "learning", message, meta, agent_id=lesson.agent_id)
