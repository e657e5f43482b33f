"""The journal with which a new task begins: what it waits for before its first attempt, and what it takes over.

It waits for a time, and for the ends of other tasks. Each is a wait in the journal that no attempt began; the task is
queued when all of them have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest, NotFound, TaskArchived
from stentor.core.runlog import RunLog
from stentor.domains.steps import reruns, store
from stentor.domains.steps.model import StepDraft, StepOutcome
from stentor.domains.steps.service import ended_event, started_event
from stentor.domains.tasks.access import require_visible_task
from stentor.domains.tasks.model import Task, TaskDraft

START = "#start"
"""Key of the wait for a time. The routes refuse this key and those that begin with `AFTER` for a worker's steps."""
AFTER = "#after/"
"""Keys of the waits for tasks begin with it."""


class StartWaits:
    """Begins the waits of new tasks, and ends those of retried ones."""

    def __init__(self, runlog: RunLog) -> None:
        self._runlog = runlog
        self.expect: Callable[[int], None] = lambda due_at: None
        """Called when a task is stored that starts or ends at a time. Set by `bootstrap/parts/tasks.py`."""

    def expect_times(self, tx: Tx, draft: TaskDraft) -> None:
        """Announce, after the commit, when a new task starts and when it is late."""
        for due_at in (draft.start_at, draft.deadline):
            if due_at is not None:
                tx.after_commit(partial(self.expect, due_at))

    def begin(self, tx: Tx, principal: Principal, task: Task, draft: TaskDraft) -> None:
        """Record what a task waits for that has just been stored. Raises InvalidRequest for an unknown task."""
        waits = [_after(tx, principal, task, task_id) for task_id in draft.after]
        if draft.start_at is not None and draft.start_at > tx.now:
            seconds = (draft.start_at - tx.now) / SECOND
            waits.append(StepDraft(START, "start", "sleep", seconds=seconds, together=START))
        for wait in waits:
            event_id = ids.new_id()
            store.insert_started(tx, task, wait, event_id)
            event = started_event(task, wait, f"Waits for its start: {wait.name}.", event_id)
            self._runlog.append(tx, task.tenant, [event], task_id=task.task_id, parent=task.head_id)

    def take_over(self, tx: Tx, principal: Principal, task: Task) -> None:
        """Copy what is recorded before the step from which the task continues. Raises NotFound, Forbidden, Conflict."""
        reruns.take_over(tx, principal, task)

    def has_open(self, tx: Tx, task: Task) -> bool:
        """Return whether a task still waits for any of these."""
        return store.has_open_together(tx, task.tenant, task.task_id, START)

    def end(self, tx: Tx, task: Task) -> None:
        """End the open waits of a task because it is retried: from now on they neither start nor abort it."""
        waits = [step for step in store.list_open(tx, task.tenant, task.task_id) if is_start(step.key)]
        outcome = StepOutcome.of_value(None)
        ended = store.end_all(tx, [(task.tenant, task.task_id, step.key, outcome) for step in waits])
        for step in waits:
            if (task.tenant, task.task_id, step.key) in ended:
                event = ended_event(step, outcome, ids.new_id(), None)
                self._runlog.append(tx, task.tenant, [event], task_id=task.task_id, parent=step.event_id)


def is_start(key: str) -> bool:
    """Return whether a wait is one before the first attempt."""
    return key == START or key.startswith(AFTER)


def _after(tx: Tx, principal: Principal, task: Task, task_id: str) -> StepDraft:
    try:
        other = require_visible_task(tx, principal, task_id)
    except TaskArchived as error:
        raise InvalidRequest(f"after: {error.message}") from None
    except NotFound:
        other = None
    # A task that waited for itself would never begin.
    if other is None or other.task_id == task.task_id:
        raise InvalidRequest(f"after: there is no other task with the id {task_id!r}.")
    return StepDraft(AFTER + task_id, f"after {other.title}"[:255], "child", reference=task_id, together=START)
