"""Records the outcome of an attempt in one transaction: task row, events, learning and trust, guarded by the epoch.

`LearningEligibility` decides which outcomes and grades count as evidence: none of self-dealing, and a limited number
per day. Otherwise an agent's key could submit tasks to its own agent and report success, up to the trust at which its
updates need no approver. Only keys with the role agent are limited; docs/decisions/0031 has the reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from stentor.auth.principal import RoleRegistry
from stentor.core import runlog_queries
from stentor.core.db import Prefetch, Tx
from stentor.core.errors import LeaseLost, StoreConflict
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.learning import model as learning_model
from stentor.domains.learning import store as learning
from stentor.domains.learning.service import EligibleOutcome, LearningService, learning_skipped_event
from stentor.domains.llm import store as llm_store
from stentor.domains.registry import authorization
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.model import Task, TaskClaim, TaskStatus
from stentor.domains.tasks.reading import visibility_queries
from stentor.domains.trust import model as trust_model
from stentor.domains.trust import store as trust_store
from stentor.domains.trust.model import ChangeKind
from stentor.domains.trust.service import TrustService

SHARED_KEY_REASON = "The submitter of the task or of one of its ancestors, and its worker, share a key."
log = logging.getLogger(__name__)

_EVENTS: dict[TaskStatus, EventType] = {
    "completed": "task_completed",
    "failed": "task_failed",
    "aborted": "task_aborted",
}


class TaskAttempt(Protocol):
    """The fields that recording an outcome needs; a claim and a task have them."""

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
    @property
    def input_length(self) -> int | None: ...


class OutcomeRecorder:
    """Records outcomes, exactly once per attempt: only one write passes the check of the epoch.

    `on_outcome` gets the agent and the class of each recorded outcome, except provider failures without an outage.
    """

    def __init__(
        self,
        runlog: RunLog,
        learning: LearningService,
        trust: TrustService,
        eligibility: LearningEligibility,
        on_outcome: Callable[[str, str], None],
    ) -> None:
        self._runlog = runlog
        self._learning = learning
        self._on_outcome = on_outcome
        self._trust = trust
        self._eligibility = eligibility

    def record(
        self,
        tx: Tx,
        attempt: TaskAttempt,
        agent_id: str,
        started: int,
        outcome: AttemptOutcome,
        ended_by: str | None = None,
        load: int | None = None,
    ) -> None:
        """Record an outcome. Raises LeaseLost, which undoes everything, if the task has a newer epoch.

        `started` in microseconds. `ended_by` is the key of the worker that reported the outcome, None if the service
        observed it. `load` is the number of tasks that the agent already worked on when it began, None if
        that is unknown.
        """
        tenant, task_id, epoch = attempt.tenant, attempt.task_id, attempt.epoch
        duration = max(0, (tx.now - started) // 1000)
        if outcome.is_learnable:
            outcome = _with_metered_cost(tx, attempt, started, outcome)
        eligible = _eligible_outcome(attempt, agent_id, outcome, duration, load)
        ineligible_reason = self._eligibility.check_outcome(tx, attempt, agent_id, ended_by) if eligible else None
        if ineligible_reason is not None:
            eligible = None
        event = _outcome_event(outcome, agent_id, duration, learnable=eligible is not None)
        head = self._runlog.append(tx, tenant, [event], task_id=task_id, parent=attempt.head_id)
        if eligible is not None:
            learning_head = self._try_learning(tx, eligible, attempt, head)
        else:
            learning_head = self._skip_learning(tx, attempt, outcome, head, ineligible_reason)
        # The write that checks the epoch comes last: it stores the head of the chain, which the events above extend.
        finished = store.finish(
            tx,
            tenant,
            task_id,
            epoch,
            status=outcome.status,
            outcome_class=outcome.outcome_class,
            learning_eligible=eligible is not None,
            learning_pending=learning_head is None,
            head_id=learning_head or head,
            result=outcome.result,
            error=outcome.error,
            performance=outcome.performance,
        )
        if not finished:
            raise LeaseLost("You no longer hold the lease of this task.", {"task_id": task_id, "epoch": epoch})
        queries.update_counts(
            tx, tenant, attempt.created_at, ("executing", agent_id, -1), (outcome.status, agent_id, 1)
        )
        if outcome.outcome_class != "provider_failure" or outcome.is_outage:
            tx.after_commit(lambda: self._on_outcome(agent_id, outcome.outcome_class))

    def retry_learning(self, tx: Tx, task: Task) -> None:
        """Learn from a recorded outcome for which learning failed before."""
        assert task.assigned_agent is not None
        assert task.outcome_class is not None
        # The cost is not in the row but in its event, which is the head of the task's chain until the outcome is
        # learned.
        event = runlog_queries.find_event(tx, task.tenant, task.head_id)
        cost = event.metadata.get("cost") if event else None
        outcome = AttemptOutcome(task.outcome_class, performance=task.performance, cost=cost)
        eligible = _eligible_outcome(task, task.assigned_agent, outcome, task.duration_ms or 0)
        assert eligible is not None
        head = self._learn(tx, eligible, task, task.head_id)
        store.set_head(tx, task.tenant, task.task_id, task.epoch, head)

    def list_reads(self, claim: TaskClaim, outcome: AttemptOutcome) -> list[Prefetch]:
        """Return what `record` reads of the agent of a claim, for `Database.write` with the lock of the agent."""
        if not outcome.is_learnable:
            return []
        return [
            learning.prefetch_weight(claim.agent_id, claim.type),
            trust_store.prefetch_score(claim.tenant, claim.agent_id),
            llm_store.prefetch_metered_cost(claim.tenant, claim.task_id, claim.start_time),
        ]

    def _try_learning(self, tx: Tx, eligible: EligibleOutcome, attempt: TaskAttempt, parent: str) -> str | None:
        """Return the new head, None if learning failed. Fails open: the outcome is recorded, the reconciler retries."""
        try:
            # A savepoint, so that a failure undoes the partial learning but not the outcome.
            with tx.savepoint():
                return self._learn(tx, eligible, attempt, parent)
        except StoreConflict:
            raise  # the whole transaction is run again, including the learning
        except Exception:
            log.exception("outcomes: learning failed task_id=%s", attempt.task_id)
            return None

    def _learn(self, tx: Tx, eligible: EligibleOutcome, attempt: TaskAttempt, parent: str) -> str:
        head = self._learning.learn(tx, eligible, parent)
        kind: ChangeKind = "success" if eligible.success else "failure"
        amount = trust_model.SUCCESS_REWARD if eligible.success else trust_model.FAILURE_PENALTY
        cause = f"task:{eligible.task_id}:{eligible.epoch}"
        self._trust.reinforce_in_tx(tx, eligible.tenant, eligible.agent_id, kind, amount, cause=cause)
        if eligible.success and (attempt.parent_task_id or attempt.sender_agent):
            self._strengthen_connections(tx, eligible, attempt)
        return head

    def _strengthen_connections(self, tx: Tx, eligible: EligibleOutcome, attempt: TaskAttempt) -> None:
        """Strengthen the connections from the agent of the parent task and from the sending agent."""
        others = {attempt.sender_agent}
        if attempt.parent_task_id is not None:
            ref = eligible.tenant, attempt.parent_task_id
            parent = store.find_all(tx, [ref]).get(ref)
            others.add(parent.assigned_agent if parent else None)
        delta = learning_model.weight_delta(success=True, performance=eligible.performance)
        # Sorted, so that two transactions lock the same rows in the same order.
        for other in sorted(agent_id for agent_id in others if agent_id is not None and agent_id != eligible.agent_id):
            self._learning.change_connection_in_tx(tx, eligible.tenant, other, eligible.agent_id, delta)

    def _skip_learning(
        self, tx: Tx, attempt: TaskAttempt, outcome: AttemptOutcome, parent: str, reason: str | None
    ) -> str:
        drafts = [learning_skipped_event(outcome.outcome_class, reason)]
        return self._runlog.append(tx, attempt.tenant, drafts, task_id=attempt.task_id, parent=parent)


def _outcome_event(outcome: AttemptOutcome, agent_id: str, duration: int, *, learnable: bool) -> EventDraft:
    meta: JsonObject = {
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


def _with_metered_cost(tx: Tx, attempt: TaskAttempt, started: int, outcome: AttemptOutcome) -> AttemptOutcome:
    """Return the outcome with the cost of the attempt's model calls, if the agent reported less or nothing."""
    metered = llm_store.read_metered_cost(tx, attempt.tenant, attempt.task_id, started)
    if metered is None or (outcome.cost is not None and outcome.cost >= metered):
        return outcome
    return msgspec.structs.replace(outcome, cost=metered)


def _eligible_outcome(
    attempt: TaskAttempt, agent_id: str, outcome: AttemptOutcome, duration: int, load: int | None = None
) -> EligibleOutcome | None:
    """Return the outcome as evidence, None if its class does not count. `duration` in milliseconds."""
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
        load,
        attempt.input_length,
    )


class LearningEligibility:
    """Decides whether an outcome or a grade counts as evidence.

    `max_per_day` limits the outcomes and grades per graded agent and key with the role agent; 0 means no limit.
    """

    def __init__(self, agents: AgentCache, roles: RoleRegistry, max_per_day: int) -> None:
        self._agents = agents
        self._roles = roles
        self._max_per_day = max_per_day

    def check_outcome(
        self, tx: Tx, work: TaskAttempt, agent_id: str, ended_by: str | None, *, is_worker_known: bool = True
    ) -> str | None:
        """Return why an outcome does not count as evidence, None if it does; then it counts toward the daily limit.

        Fails closed. `ended_by` is the key that reported the outcome. It is None for an agent that runs inside the
        service, and if the key is unknown by now (`is_worker_known` is then False).
        """
        if self._is_self_dealing(tx, work, agent_id, ended_by, is_worker_known=is_worker_known):
            return SHARED_KEY_REASON
        if not self._max_per_day or self._roles.is_person(work.tenant, work.submitted_by):
            return None
        if self._is_within_limit(tx, work.tenant, agent_id, work.submitted_by):
            return None
        return f"The submitter's key has reached the limit of {self._max_per_day} learned outcomes of this agent today."

    def check_grade(self, tx: Tx, work: TaskAttempt, agent_id: str, graded_by: str) -> str | None:
        """Return why the key may not grade the work today, None if it may; then the grade counts toward the limit.

        A grade of the submitter does not count: the outcome that it corrects was counted.
        """
        if not self._max_per_day or graded_by == work.submitted_by or self._roles.is_person(work.tenant, graded_by):
            return None
        if self._is_within_limit(tx, work.tenant, agent_id, graded_by):
            return None
        return (
            f"The key {graded_by!r} has reached the limit of {self._max_per_day} learned outcomes of this agent today. "
            "Use a person's key."
        )

    def _is_within_limit(self, tx: Tx, tenant: str, agent_id: str, name: str) -> bool:
        """Count one more and return whether it is within the limit."""
        return learning.increment_daily_outcomes(tx, tenant, agent_id, name) <= self._max_per_day

    def _is_self_dealing(
        self, tx: Tx, work: TaskAttempt, agent_id: str, ended_by: str | None, *, is_worker_known: bool
    ) -> bool:
        agent = self._agents.get(work.tenant, agent_id)
        keys = {agent.key_name if agent else None, ended_by}
        workers = {name for name in keys if name is not None and not self._roles.is_person(work.tenant, name)}
        shows_no_key = agent is not None and (
            authorization.is_called_by_service(agent) or (agent.key_name is None and not is_worker_known)
        )
        if not workers and not shows_no_key:
            return False
        submitters = visibility_queries.find_submitters(tx, work.tenant, work.submitted_by, work.parent_task_id)
        if submitters is None or submitters & workers:
            return True
        # For an agent without a key, any key that may register agents could be the owner.
        return shows_no_key and any(self._roles.is_agent_with_admin(work.tenant, name) for name in submitters)
