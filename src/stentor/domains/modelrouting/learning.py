"""What the outcome of a request to `auto` teaches, and where it is written."""

from __future__ import annotations

import logging
from itertools import count

import msgspec

from stentor.auth.principal import RoleRegistry
from stentor.core.clock import DAY
from stentor.core.db import Database, Tx, locks
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning import store as lessons
from stentor.domains.learning.model import Weight, apply_outcome, initial_weight
from stentor.domains.llm.gate import Caller
from stentor.domains.modelrouting import store
from stentor.domains.modelrouting.model import Answer
from stentor.domains.modelrouting.records import Records

KEPT_DAYS = 30
"""How long an answer may be graded."""
SWEEP = 100
"""Outcomes of this process after which old answers are deleted, and at its first one."""
log = logging.getLogger(__name__)


class Outcome(msgspec.Struct, frozen=True):
    """How a model did at a request. `answer_id` is the event of the call; None for a failure, which has no answer.

    `cost` is in US dollars, None where it is not known.
    """

    model: str
    kind: str
    decision_id: str
    duration_ms: int
    reward: float
    cost: float | None = None
    answer_id: str | None = None


class Teacher:
    """`most` is how many outcomes a day one agent's key may have one model learn from; 0 is no limit."""

    def __init__(self, db: Database, runlog: RunLog, roles: RoleRegistry, records: Records, most: int) -> None:
        self._db = db
        self._runlog = runlog
        self._roles = roles
        self._records = records
        self._most = most
        self._seen = count()

    async def learn(self, caller: Caller, outcome: Outcome) -> None:
        """Fails open: an answer that came is given, and cannot be graded when this could not be written."""
        sweep = next(self._seen) % SWEEP == 0

        def work(tx: Tx) -> None:
            weight = self._taught(tx, caller, outcome)
            if outcome.answer_id is not None:
                sample = weight.samples if weight else None
                known = (outcome.answer_id, outcome.model, outcome.kind, caller.key, outcome.decision_id)
                store.insert(tx, caller.tenant, Answer(*known, sample, tx.now))
            draft = _event(outcome, weight)
            parent = outcome.answer_id or outcome.decision_id
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=parent)
            if sweep:
                store.forget(tx, tx.now - KEPT_DAYS * DAY)

        try:
            await self._db.write(work, (locks.model_lock(caller.tenant, outcome.model),))
        except StoreUnavailable as error:
            log.warning("modelrouting: outcome not recorded model=%s reason=%s", outcome.model, error.message)

    def _taught(self, tx: Tx, caller: Caller, outcome: Outcome) -> Weight | None:
        """The record with the outcome; None where the caller has taught enough today."""
        tenant, model, kind = caller.tenant, outcome.model, outcome.kind
        if (
            self._most
            and not self._roles.is_person(tenant, caller.key)
            and lessons.count_taught_today(tx, tenant, f"model {model}", caller.key) > self._most
        ):
            return None
        known = store.find(tx, tenant, model, kind) or initial_weight(model, kind, tx.now)
        weight = apply_outcome(
            known,
            success=outcome.reward > 0,
            performance=outcome.reward,
            duration_ms=outcome.duration_ms,
            now=tx.now,
            cost=outcome.cost,
            progress=self._records.of(tenant).records(tenant, kind).progress,
        )
        store.put(tx, tenant, weight)
        tx.after_commit(lambda: self._records.put(tenant, weight))
        return weight


def _event(outcome: Outcome, weight: Weight | None) -> EventDraft:
    meta = {"model": outcome.model, "kind": outcome.kind, "reward": outcome.reward, "cost": outcome.cost}
    if weight is None:
        message = f"Nothing is learned about {outcome.model}: the caller's key had it learn enough today."
        return EventDraft("learning_skipped", "modelrouting", message, meta)
    rewards, outcomes = weight.counted_rewards
    meta |= {"rewards": rewards, "outcomes": outcomes, "changed": weight.changed_tick == weight.tick}
    word = "success" if outcome.reward else "failure"
    message = f"{outcome.model} has a {word} more at {outcome.kind}."
    return EventDraft("learning_updated", "modelrouting", message, meta, duration_ms=outcome.duration_ms)
