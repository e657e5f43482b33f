"""Grades of completed tasks: a score in [0,1], given once, that replaces the outcome in the agent's track record.

A degraded result, of which nothing was learned, counts with its grade.

A grade never changes trust. The learning itself is in `learning/service.py`, grades of chat responses are in
`modelrouting`.
"""

from __future__ import annotations

from typing import Protocol

from stentor.auth.principal import IsActive, Principal, require_active
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import Conflict, Forbidden
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning.service import EligibleOutcome, LearningService
from stentor.domains.registry import store as agents
from stentor.domains.registry.authorization import authorize_change
from stentor.domains.tasks import store
from stentor.domains.tasks.access import require_visible_task
from stentor.domains.tasks.model import Grade, Task
from stentor.domains.tasks.reading import visibility_queries


class GradeEligibility(Protocol):
    """Decides whether a grade may count as evidence: independence of the grader, and daily limits."""

    def check_outcome(
        self, tx: Tx, work: Task, agent_id: str, ended_by: str | None, *, is_worker_known: bool = True
    ) -> str | None:
        """Return why the outcome may not count, or None and count it toward the daily limit."""
        ...

    def check_grade(self, tx: Tx, work: Task, agent_id: str, graded_by: str) -> str | None:
        """Return why this grade may not count, or None and count it toward the daily limit."""
        ...


class GradeService:
    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        learning: LearningService,
        eligibility: GradeEligibility,
        is_active: IsActive,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._learning = learning
        self._eligibility = eligibility
        self._is_active = is_active

    async def find_grade(self, principal: Principal, task_id: str) -> Grade | None:
        """Return the grade of a task, None if it has none. Raises NotFound for a task that the caller may not read."""

        def read(tx: Tx) -> Grade | None:
            require_visible_task(tx, principal, task_id)
            return store.find_grade(tx, principal.tenant, task_id)

        return await self._db.read(read)

    async def grade_task(self, principal: Principal, task_id: str, value: float, comment: str | None) -> Grade:
        """Grade a completed task; `value` in [0,1]. Idempotent for the same grade and comment by the same key.

        Raises NotFound, Forbidden, and Conflict for a task that is not completed or has another grade.
        """

        def work(tx: Tx) -> Grade:
            # Two graders at once: the second one must see the first grade instead of failing on the unique index.
            tx.lock(locks.task_lock(principal.tenant, task_id))
            task = require_visible_task(tx, principal, task_id)
            _authorize_grader(tx, principal, task)
            require_active(principal, self._is_active, "grade tasks")
            grade = store.find_grade(tx, principal.tenant, task_id)
            if grade is not None:
                # A repeated request, whose first response was lost.
                if (grade.grade, grade.comment, grade.graded_by) == (value, comment, principal.name):
                    return grade
                raise Conflict(f"The task was graded {grade.grade:g} by {grade.graded_by!r}; a task is graded once.")
            if task.status != "completed" or task.assigned_agent is None:
                raise Conflict(f"The task is {task.status}; only a completed task can be graded.")
            counts = self._check_eligibility(tx, principal, task, task.assigned_agent)
            return self._apply(tx, principal, task, task.assigned_agent, value, comment, counts=counts)

        return await self._db.write(work)

    def _check_eligibility(self, tx: Tx, principal: Principal, task: Task, agent_id: str) -> bool:
        """Return whether the grade may be learned from. Raises Forbidden for one that another grader's would be."""
        counts = task.learning_eligible is True
        if task.outcome_class == "degraded_success":
            # Its class was reason enough to learn nothing, so the other reasons were not checked.
            counts = self._eligibility.check_outcome(tx, task, agent_id, None, is_worker_known=False) is None
        # Do not store such a grade without effect: a task is graded once, so no one else could grade it any more.
        if counts and (reason := self._eligibility.check_grade(tx, task, agent_id, principal.name)) is not None:
            raise Forbidden(reason)
        return counts

    def _apply(
        self,
        tx: Tx,
        principal: Principal,
        task: Task,
        agent_id: str,
        value: float,
        comment: str | None,
        *,
        counts: bool,
    ) -> Grade:
        meta = {"grade": value, "by": principal.name, "epoch": task.epoch}
        if comment is not None:
            meta["comment"] = comment
        draft = EventDraft("task_graded", "tasks", f"Graded {value:g}.", meta, agent_id=agent_id)
        head = self._runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)
        performance = 1.0 if task.performance is None else task.performance
        key = (task.tenant, task.task_id, task.epoch)
        outcome = EligibleOutcome(
            *key, agent_id, task.type, True, performance, task.duration_ms or 0, length=task.input_length
        )
        if counts and task.outcome_class == "degraded_success":
            head = self._learning.learn(tx, outcome, head)
        learned = counts and self._learning.correct_with_grade(tx, outcome, value, head) is not None
        grade = Grade(task.task_id, task.epoch, agent_id, value, comment, principal.name, tx.now, learned)
        store.insert_grade(tx, task.tenant, grade)
        return grade


def _authorize_grader(tx: Tx, principal: Principal, task: Task) -> None:
    """Raises Forbidden for a key that submitted the task or one of its ancestors, or that acts for its agent.

    Fails closed: without an agent, or with too many ancestors to check, only a person's key may grade.
    """
    agent = agents.find(tx, task.tenant, task.assigned_agent) if task.assigned_agent else None
    if agent is not None:
        names = visibility_queries.find_submitters(tx, task.tenant, task.submitted_by, task.parent_task_id)
        authorize_change(principal, "grade", agent, submitted_by=names or ())
    elif not principal.is_person:
        raise Forbidden("A key with the role agent may not grade a task without an agent. Use a person's key.")
