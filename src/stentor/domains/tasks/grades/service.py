"""Grading a finished task: the grade takes the place of what the outcome counted as, once."""

from __future__ import annotations

from collections.abc import Callable

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx, locks
from stentor.core.errors import Conflict
from stentor.core.runlog import Draft, RunLog
from stentor.domains.learning.service import Learning, Lesson
from stentor.domains.tasks.grades import store
from stentor.domains.tasks.grades.model import Grade
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.service import require

MayGrade = Callable[[Tx, Principal, Task], None]
"""Raises Forbidden for a caller who may not judge this task: nobody grades its own work."""


class Grades:
    def __init__(self, db: Database, runlog: RunLog, learning: Learning, may_grade: MayGrade) -> None:
        self._db = db
        self._runlog = runlog
        self._learning = learning
        self._may_grade = may_grade

    async def of(self, tenant: str, task_id: str) -> Grade | None:
        """Raises NotFound for a task that does not exist."""

        def read(tx: Tx) -> Grade | None:
            require(tx, tenant, task_id)
            return store.find(tx, tenant, task_id)

        return await self._db.read(read)

    async def grade(self, principal: Principal, task_id: str, value: float, comment: str | None) -> Grade:
        """Say what a completed task was worth, in [0,1]. The same grade by the same key again answers as before.

        Raises NotFound, Forbidden, and Conflict for a task that is not completed or has another grade.
        """

        def work(tx: Tx) -> Grade:
            tx.lock(locks.of_task(principal.tenant, task_id))
            task = require(tx, principal.tenant, task_id)
            self._may_grade(tx, principal, task)
            known = store.find(tx, principal.tenant, task_id)
            if known is not None:
                if (known.grade, known.comment, known.graded_by) == (value, comment, principal.name):
                    return known
                raise Conflict(f"The task was graded {known.grade:g} by {known.graded_by!r}; a task is graded once.")
            if task.status != "completed" or task.assigned_agent is None:
                raise Conflict(f"The task is {task.status}; only a completed task is graded.")
            return self._apply(tx, principal, task, task.assigned_agent, value, comment)

        return await self._db.write(work)

    def _apply(
        self, tx: Tx, principal: Principal, task: Task, agent_id: str, value: float, comment: str | None
    ) -> Grade:
        meta = {"grade": value, "by": principal.name, "epoch": task.epoch}
        if comment is not None:
            meta["comment"] = comment
        draft = Draft("task_graded", "tasks", f"Graded {value:g}.", meta, agent_id=agent_id)
        head = self._runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)
        performance = 1.0 if task.performance is None else task.performance
        lesson = Lesson(task.tenant, task.task_id, task.epoch, agent_id, task.type, True, performance, 0)
        learned = task.learning_eligible is True and self._learning.correct(tx, lesson, value, head) is not None
        grade = Grade(task.task_id, task.epoch, agent_id, value, comment, principal.name, tx.now, learned)
        store.insert(tx, task.tenant, grade)
        return grade
