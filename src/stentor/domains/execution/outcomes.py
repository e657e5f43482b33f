"""The end of an attempt in one transaction: state, events, learning, trust. Guarded by the epoch."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from stentor.core.db import Tx
from stentor.core.errors import LeaseLost, StoreConflict
from stentor.core.live import Hub
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.execution.independence import Independence
from stentor.domains.execution.model import Outcome
from stentor.domains.learning import model as learning_model
from stentor.domains.learning.service import Learning, Lesson, skipped
from stentor.domains.tasks import listing, store
from stentor.domains.tasks.model import Status, Task
from stentor.domains.trust import model as trust_model
from stentor.domains.trust.model import ChangeKind
from stentor.domains.trust.service import Trust

log = logging.getLogger(__name__)

_EVENTS: dict[Status, EventType] = {
    "completed": "task_completed",
    "failed": "task_failed",
    "aborted": "task_aborted",
}


class Attempt(Protocol):
    """The parts of a claim or of a row that the end of an attempt needs."""

    @property
    def tenant(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def created_at(self) -> int: ...
    @property
    def head_id(self) -> str: ...
    @property
    def submitted_by(self) -> str: ...
    @property
    def parent_task_id(self) -> str | None: ...
    @property
    def sender_agent(self) -> str | None: ...


class Ending:
    """Applies outcomes; exactly once per attempt, because only one write passes the epoch's guard."""

    def __init__(self, runlog: RunLog, learning: Learning, trust: Trust, hub: Hub, independence: Independence) -> None:
        self._runlog = runlog
        self._learning = learning
        self._trust = trust
        self._hub = hub
        self._independence = independence

    def apply(
        self,
        tx: Tx,
        attempt: Attempt,
        agent_id: str,
        started: int,
        outcome: Outcome,
        ended_by: str | None = None,
    ) -> None:
        """`ended_by` is the key of the worker that reported the outcome, None when the service knows it itself.

        Raises LeaseLost, undoing everything, when the epoch is not the task's current one.
        """
        tenant, task_id, epoch = attempt.tenant, attempt.task_id, attempt.epoch
        duration = max(0, (tx.now - started) // 1000)
        lesson = _lesson(attempt, agent_id, outcome, duration)
        objection = self._independence.objection(tx, attempt, agent_id, ended_by) if lesson else None
        if objection is not None:
            lesson = None
        ended = _ended(outcome, agent_id, duration, learnable=lesson is not None)
        head = self._runlog.append(tx, tenant, [ended], task_id=task_id, parent=attempt.head_id)
        if lesson is not None:
            learned = self._learn(tx, lesson, attempt, head)
        else:
            learned = self._skip(tx, attempt, outcome, head, objection)
        won = store.finish(
            tx,
            tenant,
            task_id,
            epoch,
            status=outcome.status,
            outcome_class=outcome.outcome_class,
            learning_eligible=lesson is not None,
            learning_pending=learned is None,
            head_id=learned or head,
            result=outcome.result,
            error=outcome.error,
            performance=outcome.performance,
        )
        if not won:
            raise LeaseLost("The task is not in your hands any more.", {"task_id": task_id, "epoch": epoch})
        listing.count(tx, tenant, attempt.created_at, ("executing", agent_id, -1), (outcome.status, agent_id, 1))
        tx.after_commit(lambda: self._hub.drop_tokens(tenant, task_id))

    def learn_late(self, tx: Tx, task: Task) -> None:
        """Learn from an outcome whose lesson failed before."""
        assert task.assigned_agent is not None
        assert task.outcome_class is not None
        outcome = Outcome(task.outcome_class, performance=task.performance)
        lesson = _lesson(task, task.assigned_agent, outcome, task.duration_ms or 0)
        assert lesson is not None
        head = self._teach(tx, lesson, task, task.head_id)
        store.set_head(tx, task.tenant, task.task_id, task.epoch, head, pending=False)

    def _learn(self, tx: Tx, lesson: Lesson, attempt: Attempt, parent: str) -> str | None:
        """Fails open: the outcome stands without its lesson, which the reconciler tries again."""
        try:
            with tx.savepoint():
                return self._teach(tx, lesson, attempt, parent)
        except StoreConflict:
            raise  # the whole transaction is run again, and its lesson with it
        except Exception:
            log.exception("learning from task %s failed", attempt.task_id)
            return None

    def _teach(self, tx: Tx, lesson: Lesson, attempt: Attempt, parent: str) -> str:
        head = self._learning.learn(tx, lesson, parent)
        kind: ChangeKind = "success" if lesson.success else "failure"
        amount = trust_model.REWARD if lesson.success else trust_model.PENALTY
        cause = f"task:{lesson.task_id}:{lesson.epoch}"
        self._trust.apply(tx, lesson.tenant, lesson.agent_id, kind, amount, cause=cause)
        if lesson.success and (attempt.parent_task_id or attempt.sender_agent):
            self._connect(tx, lesson, attempt)
        return head

    def _connect(self, tx: Tx, lesson: Lesson, attempt: Attempt) -> None:
        """Whoever led to the task, as the agent of its parent or as its sender, worked well with its agent."""
        others = {attempt.sender_agent}
        if attempt.parent_task_id is not None:
            parent = store.find(tx, lesson.tenant, attempt.parent_task_id)
            others.add(parent.assigned_agent if parent else None)
        by = learning_model.delta(success=True, performance=lesson.performance)
        for other in sorted(one for one in others if one is not None and one != lesson.agent_id):
            self._learning.strengthen(tx, lesson.tenant, other, lesson.agent_id, by)

    def _skip(self, tx: Tx, attempt: Attempt, outcome: Outcome, parent: str, reason: str | None) -> str:
        drafts = [skipped(outcome.outcome_class, reason)]
        return self._runlog.append(tx, attempt.tenant, drafts, task_id=attempt.task_id, parent=parent)


def _ended(outcome: Outcome, agent_id: str, duration: int, *, learnable: bool) -> EventDraft:
    meta: dict[str, Any] = {
        "status": outcome.status,
        "outcome_class": outcome.outcome_class,
        "learning_eligible": learnable,
    }
    if outcome.error:
        meta["error"] = outcome.error
    if outcome.performance is not None:
        meta["performance"] = outcome.performance
    if outcome.cost is not None:
        meta["cost"] = outcome.cost
    message = outcome.error["message"] if outcome.error else "Completed."
    return EventDraft(_EVENTS[outcome.status], "execution", message, meta, agent_id=agent_id, duration_ms=duration)


def _lesson(attempt: Attempt, agent_id: str, outcome: Outcome, duration: int) -> Lesson | None:
    if not outcome.learnable:
        return None
    return Lesson(
        attempt.tenant,
        attempt.task_id,
        attempt.epoch,
        agent_id,
        attempt.type,
        outcome.succeeded,
        1.0 if outcome.performance is None else outcome.performance,
        duration,
        outcome.cost,
    )
