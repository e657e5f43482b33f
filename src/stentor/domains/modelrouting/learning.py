"""Learns from requests to `auto`: records outcomes, keeps the track records in memory for decisions, applies grades.

An ungraded answer counts as a reward of 1; its grade, given once, replaces that.
"""

from __future__ import annotations

import logging
from itertools import count

import msgspec

from stentor.auth.principal import IsActive, Principal, RoleRegistry, require_active
from stentor.core.clock import DAY
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import Conflict, Forbidden, NotFound, StoreUnavailable
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning import store as learning_store
from stentor.domains.learning.model import Weight, apply_grade, apply_outcome, initial_weight
from stentor.domains.learning.outages import without_outage
from stentor.domains.learning.view import LearningView
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.modelrouting import store
from stentor.domains.modelrouting.model import MAX_CHANCE, AutoAnswer

GRADING_DAYS = 30
"""Days within which an answer may be graded."""
CLEANUP_INTERVAL = 100
"""Old answers are deleted at the first outcome of this process and then after each this many."""
ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
"""Prefixes that the routes under /v1 add to the id of an answer."""
UNGRADED_REWARD = 1.0
EMPTY_VIEW = LearningView()
log = logging.getLogger(__name__)


class ModelOutcome(msgspec.Struct, frozen=True):
    """The outcome of a request. `reward` in [0,1]; `cost` in US dollars, None if unknown.

    `usual_cost` is what a reply of the usual length would have cost. `answer_id` is the id of the call's event, None
    for a failure, which has no answer.
    """

    model: str
    kind: str
    decision_id: str
    duration_ms: int
    reward: float
    cost: float | None = None
    usual_cost: float | None = None
    answer_id: str | None = None

    @property
    def relative_cost(self) -> float | None:
        """The cost as a multiple of the usual one, which is what the record keeps: prices may change."""
        return None if self.cost is None or not self.usual_cost else self.cost / self.usual_cost


class ModelOutcomeRecorder:
    """Records outcomes. `max_per_day` limits them per model and key with the role agent; 0 means no limit."""

    def __init__(
        self, db: Database, runlog: RunLog, roles: RoleRegistry, records: ModelRecords, max_per_day: int
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._roles = roles
        self._records = records
        self._max_per_day = max_per_day
        # Begins at 0, so that a process that restarts often deletes old answers too.
        self._outcome_number = count()

    async def record(self, caller: LlmCaller, outcome: ModelOutcome) -> None:
        """Record an outcome. Fails open: without a database the caller still gets the answer, but cannot grade it."""
        should_clean_up = next(self._outcome_number) % CLEANUP_INTERVAL == 0

        def work(tx: Tx) -> None:
            weight = self._learn(tx, caller, outcome)
            if outcome.answer_id is not None:
                sample = weight.samples if weight else None
                answer = AutoAnswer(
                    outcome.answer_id, outcome.model, outcome.kind, caller.key, outcome.decision_id, sample, tx.now
                )
                store.insert_answer(tx, caller.tenant, answer)
            draft = _outcome_event(outcome, weight)
            # A failure has no answer; its outcome then hangs directly below the decision.
            parent = outcome.answer_id or outcome.decision_id
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=parent)
            if should_clean_up:
                store.delete_answers_before(tx, tx.now - GRADING_DAYS * DAY)

        try:
            # The lock serializes outcomes of one model: each is computed from the weight before it.
            await self._db.write(work, (locks.model_lock(caller.tenant, outcome.model),))
        except StoreUnavailable as error:
            log.warning("modelrouting: outcome not recorded model=%s reason=%s", outcome.model, error.message)

    def _learn(self, tx: Tx, caller: LlmCaller, outcome: ModelOutcome) -> Weight | None:
        """Return the updated weight; None if the caller's key has reached its daily limit."""
        tenant, model, kind = caller.tenant, outcome.model, outcome.kind
        if (
            self._max_per_day
            and not self._roles.is_person(tenant, caller.key)
            # The counter is shared with agents: the space keeps the name apart from their ids.
            and learning_store.increment_daily_outcomes(tx, tenant, f"model {model}", caller.key) > self._max_per_day
        ):
            return None
        previous = store.find_weight(tx, tenant, model, kind) or initial_weight(model, kind, tx.now)
        records = self._records.view_of(tenant).records(tenant, kind)
        previous, progress = records.before_outcome(previous, success=outcome.reward > 0)
        if outcome.reward > 0:
            previous = without_outage(previous, MAX_CHANCE)
        weight = apply_outcome(
            previous,
            success=outcome.reward > 0,
            performance=outcome.reward,
            duration_ms=outcome.duration_ms,
            now=tx.now,
            cost=outcome.relative_cost,
            progress=progress,
        )
        store.upsert_weight(tx, tenant, weight)
        # After the commit: decisions must not see the weight of a transaction that is rolled back.
        tx.after_commit(lambda: self._records.put(tenant, weight))
        return weight


def _outcome_event(outcome: ModelOutcome, weight: Weight | None) -> EventDraft:
    meta = {"model": outcome.model, "kind": outcome.kind, "reward": outcome.reward, "cost": outcome.cost}
    if weight is None:
        message = f"The outcome of {outcome.model} does not count: the caller's key has reached its daily limit."
        return EventDraft("learning_skipped", "modelrouting", message, meta)
    rewards, outcomes = weight.counted_rewards
    meta |= {"rewards": rewards, "outcomes": outcomes, "changed": weight.changed_tick == weight.tick}
    label = "success" if outcome.reward else "failure"
    message = f"Counted a {label} of {outcome.model} at {outcome.kind}."
    return EventDraft("learning_updated", "modelrouting", message, meta, duration_ms=outcome.duration_ms)


class ModelRecords:
    """The track records in memory. One view per tenant, because two tenants may have a model of the same name."""

    def __init__(self) -> None:
        self._views: dict[str, LearningView] = {}
        self._concurrent_writes = ConcurrentWrites[tuple[str, str, str]]()

    def view_of(self, tenant: str) -> LearningView:
        """Return the view of a tenant, an empty one for a tenant without records."""
        return self._views.get(tenant) or EMPTY_VIEW

    def put(self, tenant: str, weight: Weight) -> None:
        """Store a weight that this process wrote to the database."""
        self._concurrent_writes.record_write((tenant, weight.task_type, weight.agent_id))
        self._store(tenant, weight)

    def poll_query(self, since: int) -> PollQuery:
        """Return the poll for the weights that changed since a time in microseconds."""
        return self._concurrent_writes.start_poll(
            lambda tx: store.weights_changed_since(tx, since), self._apply_changes
        )

    def _apply_changes(self, changed: list[tuple[str, Weight]], written: set[tuple[str, str, str]]) -> None:
        if not self._views:
            by_tenant: dict[str, list[tuple[str, Weight]]] = {}
            for row in sorted(changed, key=lambda row: row[1].updated_at):
                by_tenant.setdefault(row[0], []).append(row)
            for tenant, oldest_first in by_tenant.items():
                self._views[tenant] = view = LearningView()
                view.load(oldest_first)
            return
        for tenant, weight in changed:
            # A poll that began before a local write must not overwrite it.
            if (tenant, weight.task_type, weight.agent_id) not in written:
                self._store(tenant, weight)

    def _store(self, tenant: str, weight: Weight) -> None:
        self._views.setdefault(tenant, LearningView()).put(tenant, weight)


class AnswerGrader:
    """Reads and grades answers of `auto`."""

    def __init__(self, db: Database, runlog: RunLog, records: ModelRecords, is_active: IsActive) -> None:
        self._db = db
        self._runlog = runlog
        self._records = records
        self._is_active = is_active

    async def get(self, principal: Principal, answer_id: str) -> tuple[AutoAnswer, JsonObject]:
        """Return an answer and the metadata of the event of its decision. Raises NotFound."""

        def read(tx: Tx) -> tuple[AutoAnswer, JsonObject]:
            answer = _require_visible_answer(tx, principal, answer_id)
            return answer, store.read_event_metadata(tx, principal.tenant, answer.decision_id) or {}

        return await self._db.read(read)

    async def grade(self, principal: Principal, answer_id: str, value: float, comment: str | None) -> AutoAnswer:
        """Grade an answer with a value in [0,1]. Repeating the same grade with the same key changes nothing.

        Raises NotFound, Forbidden, and Conflict for an answer that has another grade.
        """

        def work(tx: Tx) -> AutoAnswer:
            answer = _require_visible_answer(tx, principal, answer_id)
            # Otherwise an agent's key could grade others' answers so that their requests go to its own model.
            if not principal.is_person and answer.key_name != principal.name:
                raise Forbidden(
                    f"The key {principal.name!r} has the role agent, so it may grade only answers to itself."
                )
            require_active(principal, self._is_active, "grade answers")
            if answer.grade is not None:
                if (answer.grade, answer.comment, answer.graded_by) == (value, comment, principal.name):
                    return answer
                raise Conflict(
                    f"The answer was graded {answer.grade:g} by {answer.graded_by!r}; it can be graded only once."
                )
            grade = {"grade": value, "comment": comment, "graded_by": principal.name, "graded_at": tx.now}
            graded = msgspec.structs.replace(answer, **grade)
            store.store_grade(tx, principal.tenant, graded)
            self._apply(tx, principal.tenant, graded, value)
            return graded

        return await self._db.write(work)

    def _apply(self, tx: Tx, tenant: str, answer: AutoAnswer, value: float) -> None:
        meta = {"grade": value, "by": answer.graded_by, "model": answer.model, "kind": answer.kind}
        if answer.comment is not None:
            meta["comment"] = answer.comment
        drafts = [EventDraft("answer_graded", "modelrouting", f"Graded {value:g}.", meta)]
        # Only now, because the answer tells the model.
        tx.lock(locks.model_lock(tenant, answer.model))
        previous = store.find_weight(tx, tenant, answer.model, answer.kind) if answer.is_learned else None
        if previous is not None:
            previous, _ = (
                self._records.view_of(tenant).records(tenant, answer.kind).before_outcome(previous, success=False)
            )
            weight = apply_grade(previous, sample=answer.sample, was=UNGRADED_REWARD, grade=value, now=tx.now)
            store.upsert_weight(tx, tenant, weight)
            # As in `_learn`: only what is committed may be in memory.
            tx.after_commit(lambda: self._records.put(tenant, weight))
            rewards, outcomes = weight.counted_rewards
            totals = {"model": answer.model, "kind": answer.kind, "rewards": rewards, "outcomes": outcomes}
            message = f"Replaced a success of {answer.model} at {answer.kind} by its grade."
            drafts.append(EventDraft("learning_updated", "modelrouting", message, totals))
        self._runlog.append(tx, tenant, drafts, parent=answer.answer_id)


def _require_visible_answer(tx: Tx, principal: Principal, answer_id: str) -> AutoAnswer:
    """Return an answer. Raises the same NotFound for an unknown answer and for one that the caller may not read."""
    plain_id = answer_id
    for prefix in ID_PREFIXES:
        plain_id = plain_id.removeprefix(prefix)
    answer = store.find_answer(tx, principal.tenant, plain_id)
    if answer is None or (principal.is_bound_agent and answer.key_name != principal.name):
        raise NotFound(
            f"No answer of the model auto has this id. Complete answers can be graded for {GRADING_DAYS} days."
        )
    return answer
