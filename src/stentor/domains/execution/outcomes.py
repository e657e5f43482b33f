"""The end of an attempt in one transaction: state, events, learning, trust. Guarded by the epoch.

Whether an outcome or a grade may teach anything: not when who asked for the work is who did it, and not too often.

Without this an agent's key could submit tasks to its own agent and praise itself, up to the trust at which its updates
are approved without a person. Only keys of role agent are held back: a person who submits tasks and runs the workers
with one key owns the machine. docs/decisions/0031 has the reasons.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from stentor.auth.principal import RoleRegistry
from stentor.core.db import Tx
from stentor.core.errors import LeaseLost, StoreConflict
from stentor.core.live import Hub
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.learning import model as learning_model
from stentor.domains.learning import store as learning
from stentor.domains.learning.service import EligibleOutcome, LearningService, learning_skipped_event
from stentor.domains.registry import authorization
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.model import Task, TaskStatus
from stentor.domains.trust import model as trust_model
from stentor.domains.trust.model import ChangeKind
from stentor.domains.trust.service import TrustService

log = logging.getLogger(__name__)

_EVENTS: dict[TaskStatus, EventType] = {
    "completed": "task_completed",
    "failed": "task_failed",
    "aborted": "task_aborted",
}


class TaskAttempt(Protocol):
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


class OutcomeRecorder:
    """Applies outcomes; exactly once per attempt, because only one write passes the epoch's guard."""

    def __init__(
        self,
        runlog: RunLog,
        learning: LearningService,
        trust: TrustService,
        hub: Hub,
        independence: LearningEligibility,
    ) -> None:
        self._runlog = runlog
        self._learning = learning
        self._trust = trust
        self._hub = hub
        self._independence = independence

    def record(
        self,
        tx: Tx,
        attempt: TaskAttempt,
        agent_id: str,
        started: int,
        outcome: AttemptOutcome,
        ended_by: str | None = None,
    ) -> None:
        """`ended_by` is the key of the worker that reported the outcome, None when the service knows it itself.

        Raises LeaseLost, undoing everything, when the epoch is not the task's current one.
        """
        tenant, task_id, epoch = attempt.tenant, attempt.task_id, attempt.epoch
        duration = max(0, (tx.now - started) // 1000)
        lesson = _lesson(attempt, agent_id, outcome, duration)
        objection = self._independence.find_objection(tx, attempt, agent_id, ended_by) if lesson else None
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
        queries.update_counts(
            tx, tenant, attempt.created_at, ("executing", agent_id, -1), (outcome.status, agent_id, 1)
        )
        tx.after_commit(lambda: self._hub.drop_tokens(tenant, task_id))

    def retry_learning(self, tx: Tx, task: Task) -> None:
        """Learn from an outcome whose lesson failed before."""
        assert task.assigned_agent is not None
        assert task.outcome_class is not None
        outcome = AttemptOutcome(task.outcome_class, performance=task.performance)
        lesson = _lesson(task, task.assigned_agent, outcome, task.duration_ms or 0)
        assert lesson is not None
        head = self._teach(tx, lesson, task, task.head_id)
        store.set_head(tx, task.tenant, task.task_id, task.epoch, head, pending=False)

    def _learn(self, tx: Tx, lesson: EligibleOutcome, attempt: TaskAttempt, parent: str) -> str | None:
        """Fails open: the outcome stands without its lesson, which the reconciler tries again."""
        try:
            with tx.savepoint():
                return self._teach(tx, lesson, attempt, parent)
        except StoreConflict:
            raise  # the whole transaction is run again, and its lesson with it
        except Exception:
            log.exception("learning from task %s failed", attempt.task_id)
            return None

    def _teach(self, tx: Tx, lesson: EligibleOutcome, attempt: TaskAttempt, parent: str) -> str:
        head = self._learning.learn(tx, lesson, parent)
        kind: ChangeKind = "success" if lesson.success else "failure"
        amount = trust_model.SUCCESS_REWARD if lesson.success else trust_model.FAILURE_PENALTY
        cause = f"task:{lesson.task_id}:{lesson.epoch}"
        self._trust.reinforce_in_tx(tx, lesson.tenant, lesson.agent_id, kind, amount, cause=cause)
        if lesson.success and (attempt.parent_task_id or attempt.sender_agent):
            self._connect(tx, lesson, attempt)
        return head

    def _connect(self, tx: Tx, lesson: EligibleOutcome, attempt: TaskAttempt) -> None:
        """Whoever led to the task, as the agent of its parent or as its sender, worked well with its agent."""
        others = {attempt.sender_agent}
        if attempt.parent_task_id is not None:
            parent = store.find(tx, lesson.tenant, attempt.parent_task_id)
            others.add(parent.assigned_agent if parent else None)
        by = learning_model.weight_delta(success=True, performance=lesson.performance)
        for other in sorted(one for one in others if one is not None and one != lesson.agent_id):
            self._learning.change_connection_in_tx(tx, lesson.tenant, other, lesson.agent_id, by)

    def _skip(self, tx: Tx, attempt: TaskAttempt, outcome: AttemptOutcome, parent: str, reason: str | None) -> str:
        drafts = [learning_skipped_event(outcome.outcome_class, reason)]
        return self._runlog.append(tx, attempt.tenant, drafts, task_id=attempt.task_id, parent=parent)


def _ended(outcome: AttemptOutcome, agent_id: str, duration: int, *, learnable: bool) -> EventDraft:
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


def _lesson(attempt: TaskAttempt, agent_id: str, outcome: AttemptOutcome, duration: int) -> EligibleOutcome | None:
    if not outcome.is_learnable:
        return None
    return EligibleOutcome(
        attempt.tenant,
        attempt.task_id,
        attempt.epoch,
        agent_id,
        attempt.type,
        outcome.is_success,
        1.0 if outcome.performance is None else outcome.performance,
        duration,
        outcome.cost,
    )


SHARED_KEY_REASON = "The submitter of the task or of one of its ancestors, and its worker, share a key."


class SubmittedWork(Protocol):
    """The parts of a claim or of a row that tell who asked for the work."""

    @property
    def tenant(self) -> str: ...
    @property
    def submitted_by(self) -> str: ...
    @property
    def parent_task_id(self) -> str | None: ...


class LearningEligibility:
    """`most` is how many outcomes and grades a day one agent's key may have one agent learn from; 0 is no limit."""

    def __init__(self, snapshot: AgentCache, roles: RoleRegistry, max_per_day: int) -> None:
        self._snapshot = snapshot
        self._roles = roles
        self._most = max_per_day

    def find_objection(self, tx: Tx, work: SubmittedWork, agent_id: str, ended_by: str | None) -> str | None:
        """Why nothing may be learned from the work; None when it may. Fails closed. Counts an outcome that may.

        `ended_by` is the key that reported the outcome, None for an agent that runs inside the service. Costs nothing
        but two look-ups in memory where all keys are people's.
        """
        if self._by_own_hand(tx, work, agent_id, ended_by):
            return SHARED_KEY_REASON
        if not self._most or self._roles.is_person(work.tenant, work.submitted_by):
            return None
        if self._counted(tx, work.tenant, agent_id, work.submitted_by):
            return None
        return f"The submitter's key has had the agent learn from {self._most} outcomes today."

    def find_grade_objection(self, tx: Tx, work: SubmittedWork, agent_id: str, graded_by: str) -> str | None:
        """Why the key may not grade the work today; None when it may. Counts a grade that may, but for the submitter's
        own: the outcome that it corrects was counted.
        """
        if not self._most or graded_by == work.submitted_by or self._roles.is_person(work.tenant, graded_by):
            return None
        if self._counted(tx, work.tenant, agent_id, graded_by):
            return None
        return f"The key {graded_by!r} has had the agent learn {self._most} times today: use a key of role admin."

    def _counted(self, tx: Tx, tenant: str, agent_id: str, name: str) -> bool:
        return learning.count_taught_today(tx, tenant, agent_id, name) <= self._most

    def _by_own_hand(self, tx: Tx, work: SubmittedWork, agent_id: str, ended_by: str | None) -> bool:
        agent = self._snapshot.get(work.tenant, agent_id)
        hands = {agent.key_name if agent else None, ended_by}
        workers = {name for name in hands if name is not None and not self._roles.is_person(work.tenant, name)}
        is_run_here = agent is not None and authorization.is_called_by_service(agent)
        if not workers and not is_run_here:
            return False
        asked = queries.find_submitters(tx, work.tenant, work.submitted_by, work.parent_task_id)
        if asked is None or asked & workers:
            return True
        # Whoever may register agents may be behind one that shows no key.
        return is_run_here and any(self._roles.is_agent_with_admin(work.tenant, name) for name in asked)
