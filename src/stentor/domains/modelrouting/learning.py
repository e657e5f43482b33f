"""What the outcome of a request to `auto` teaches, and where it is written.

What the models of each tenant showed, in memory, as the decisions read it.

Grading an answer of `auto`: the grade takes the place of the 1 that an ungraded answer counts as, once.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import msgspec

from stentor.auth.principal import Principal, RoleRegistry
from stentor.core.clock import DAY
from stentor.core.db import Database, Tx, locks
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import Conflict, Forbidden, NotFound, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning import store as lessons
from stentor.domains.learning.model import Weight, apply_grade, apply_outcome, initial_weight
from stentor.domains.learning.service import LearningView
from stentor.domains.llm.call_guard import LlmCaller
from stentor.domains.modelrouting import store
from stentor.domains.modelrouting.model import AutoAnswer

GRADING_DAYS = 30
"""How long an answer may be graded."""
CLEANUP_INTERVAL = 100
"""Outcomes of this process after which old answers are deleted, and at its first one."""
log = logging.getLogger(__name__)


class ModelOutcome(msgspec.Struct, frozen=True):
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


class ModelOutcomeRecorder:
    """`most` is how many outcomes a day one agent's key may have one model learn from; 0 is no limit."""

    def __init__(self, db: Database, runlog: RunLog, roles: RoleRegistry, records: ModelRecords, most: int) -> None:
        self._db = db
        self._runlog = runlog
        self._roles = roles
        self._records = records
        self._most = most
        self._seen = count()

    async def record(self, caller: LlmCaller, outcome: ModelOutcome) -> None:
        """Fails open: an answer that came is given, and cannot be graded when this could not be written."""
        sweep = next(self._seen) % CLEANUP_INTERVAL == 0

        def work(tx: Tx) -> None:
            weight = self._taught(tx, caller, outcome)
            if outcome.answer_id is not None:
                sample = weight.samples if weight else None
                known = (outcome.answer_id, outcome.model, outcome.kind, caller.key, outcome.decision_id)
                store.insert_answer(tx, caller.tenant, AutoAnswer(*known, sample, tx.now))
            draft = _outcome_event(outcome, weight)
            parent = outcome.answer_id or outcome.decision_id
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=parent)
            if sweep:
                store.delete_answers_before(tx, tx.now - GRADING_DAYS * DAY)

        try:
            await self._db.write(work, (locks.model_lock(caller.tenant, outcome.model),))
        except StoreUnavailable as error:
            log.warning("modelrouting: outcome not recorded model=%s reason=%s", outcome.model, error.message)

    def _taught(self, tx: Tx, caller: LlmCaller, outcome: ModelOutcome) -> Weight | None:
        """The record with the outcome; None where the caller has taught enough today."""
        tenant, model, kind = caller.tenant, outcome.model, outcome.kind
        if (
            self._most
            and not self._roles.is_person(tenant, caller.key)
            and lessons.count_taught_today(tx, tenant, f"model {model}", caller.key) > self._most
        ):
            return None
        known = store.find_weight(tx, tenant, model, kind) or initial_weight(model, kind, tx.now)
        weight = apply_outcome(
            known,
            success=outcome.reward > 0,
            performance=outcome.reward,
            duration_ms=outcome.duration_ms,
            now=tx.now,
            cost=outcome.cost,
            progress=self._records.view_of(tenant).records(tenant, kind).progress,
        )
        store.upsert_weight(tx, tenant, weight)
        tx.after_commit(lambda: self._records.put(tenant, weight))
        return weight


def _outcome_event(outcome: ModelOutcome, weight: Weight | None) -> EventDraft:
    meta = {"model": outcome.model, "kind": outcome.kind, "reward": outcome.reward, "cost": outcome.cost}
    if weight is None:
        message = f"Nothing is learned about {outcome.model}: the caller's key had it learn enough today."
        return EventDraft("learning_skipped", "modelrouting", message, meta)
    rewards, outcomes = weight.counted_rewards
    meta |= {"rewards": rewards, "outcomes": outcomes, "changed": weight.changed_tick == weight.tick}
    word = "success" if outcome.reward else "failure"
    message = f"{outcome.model} has a {word} more at {outcome.kind}."
    return EventDraft("learning_updated", "modelrouting", message, meta, duration_ms=outcome.duration_ms)


class ModelRecords:
    """One view a tenant, because two tenants may have a model of the same name."""

    def __init__(self) -> None:
        self._of: dict[str, LearningView] = {}
        self._meanwhile = ConcurrentWrites[tuple[str, str, str]]()

    def view_of(self, tenant: str) -> LearningView:
        return self._of.get(tenant) or EMPTY_VIEW

    def put(self, tenant: str, weight: Weight) -> None:
        """What this process wrote."""
        self._meanwhile.record_write((tenant, weight.task_type, weight.agent_id))
        self._keep(tenant, weight)

    def poll_query(self, since: int) -> PollQuery:
        """What changed since, for the view."""
        return self._meanwhile.start_poll(lambda tx: store.weights_changed_since(tx, since), self._hear)

    def _hear(self, changed: list[tuple[str, Weight]], written: set[tuple[str, str, str]]) -> None:
        for tenant, weight in changed:
            if (tenant, weight.task_type, weight.agent_id) not in written:
                self._keep(tenant, weight)

    def _keep(self, tenant: str, weight: Weight) -> None:
        self._of.setdefault(tenant, LearningView()).put(tenant, weight)


EMPTY_VIEW = LearningView()


ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""What OpenAI's routes put before the id of an answer."""
UNGRADED_REWARD = 1.0


class AnswerGrader:
    def __init__(self, db: Database, runlog: RunLog, records: ModelRecords) -> None:
        self._db = db
        self._runlog = runlog
        self._records = records

    async def get(self, principal: Principal, answer_id: str) -> tuple[AutoAnswer, dict[str, Any]]:
        """An answer, and the decision that led to it as it stands in the run log. Raises NotFound."""

        def read(tx: Tx) -> tuple[AutoAnswer, dict[str, Any]]:
            answer = _require_visible_answer(tx, principal, answer_id)
            return answer, store.read_event_metadata(tx, principal.tenant, answer.decision_id) or {}

        return await self._db.read(read)

    async def grade(self, principal: Principal, answer_id: str, value: float, comment: str | None) -> AutoAnswer:
        """Say what an answer was worth, in [0,1]. The same grade by the same key again answers as before.

        Raises NotFound, Forbidden, and Conflict for an answer that has another grade.
        """

        def work(tx: Tx) -> AutoAnswer:
            answer = _require_visible_answer(tx, principal, answer_id)
            # An agent's key that judged what others asked for could have them sent to a model of its own.
            if principal.role != "admin" and answer.key_name != principal.name:
                raise Forbidden(f"The key {principal.name!r} has the role agent, so it grades answers to itself only.")
            if answer.grade is not None:
                if (answer.grade, answer.comment, answer.graded_by) == (value, comment, principal.name):
                    return answer
                raise Conflict(
                    f"The answer was graded {answer.grade:g} by {answer.graded_by!r}; an answer is graded once."
                )
            by = {"grade": value, "comment": comment, "graded_by": principal.name, "graded_at": tx.now}
            done = msgspec.structs.replace(answer, **by)
            store.store_grade(tx, principal.tenant, done)
            self._apply(tx, principal.tenant, done, value)
            return done

        return await self._db.write(work)

    def _apply(self, tx: Tx, tenant: str, answer: AutoAnswer, value: float) -> None:
        meta = {"grade": value, "by": answer.graded_by, "model": answer.model, "kind": answer.kind}
        if answer.comment is not None:
            meta["comment"] = answer.comment
        drafts = [EventDraft("answer_graded", "modelrouting", f"Graded {value:g}.", meta)]
        tx.lock(locks.model_lock(tenant, answer.model))
        known = store.find_weight(tx, tenant, answer.model, answer.kind) if answer.is_learned else None
        if known is not None:
            weight = apply_grade(known, sample=answer.sample, was=UNGRADED_REWARD, grade=value, now=tx.now)
            store.upsert_weight(tx, tenant, weight)
            tx.after_commit(lambda: self._records.put(tenant, weight))
            rewards, outcomes = weight.counted_rewards
            known_now = {"model": answer.model, "kind": answer.kind, "rewards": rewards, "outcomes": outcomes}
            message = f"{answer.model} has a grade instead of a success at {answer.kind}."
            drafts.append(EventDraft("learning_updated", "modelrouting", message, known_now))
        self._runlog.append(tx, tenant, drafts, parent=answer.answer_id)


def _require_visible_answer(tx: Tx, principal: Principal, answer_id: str) -> AutoAnswer:
    """Raises NotFound, the same for an answer that the caller does not see as for none."""
    plain = answer_id
    for prefix in ID_PREFIXES:
        plain = plain.removeprefix(prefix)
    answer = store.find_answer(tx, principal.tenant, plain)
    if answer is None or (principal.is_bound_agent and answer.key_name != principal.name):
        raise NotFound(
            f"No answer of the model auto has this id. Answers that ended can be graded for {GRADING_DAYS} days."
        )
    return answer
