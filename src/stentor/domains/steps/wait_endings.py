"""How waits end, and how that queues their tasks again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stentor.core import ids
from stentor.core.db import Tx
from stentor.core.db.locks import locks
from stentor.core.errors import CorruptRecord
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLog
from stentor.domains.steps import model, store
from stentor.domains.steps.model import Step, StepOutcome
from stentor.domains.steps.service import ended_event
from stentor.domains.steps.starts import is_start
from stentor.domains.steps.store import OpenStep
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.queues import waiting
from stentor.domains.tasks.queues.waiting import ResumeCause
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.store import TaskRef
from stentor.domains.tasks.submission.placement import TaskQueue, TaskRouter

BATCH_SIZE = 128
"""Waits that one transaction ends: what others write waits for it."""


class Ending(msgspec.Struct, frozen=True):
    """The end of a step. `cause` is the event that ended it, `agent_id` and `meta` are for its own event."""

    tenant: str
    task_id: str
    step: Step
    outcome: StepOutcome
    agent_id: str | None = None
    cause: str | None = None
    meta: JsonObject = {}


class WaitEndings:
    """Ends waits within the caller's transaction."""

    def __init__(self, runlog: RunLog, task_service: TaskService, router: TaskRouter, dispatch: TaskQueue) -> None:
        self._runlog, self._tasks, self._router, self._dispatch = runlog, task_service, router, dispatch

    def abort_late(self, tx: Tx, late: list[TaskRef]) -> None:
        """Abort tasks whose deadline has passed."""
        self._tasks.abort_late(tx, late)

    def end_due(self, tx: Tx, due: list[OpenStep]) -> None:
        """End waits whose time is over. Hold their locks."""
        found = tasks.find_all(tx, ((tenant, task_id) for tenant, task_id, _ in due))
        self.end_all(
            tx,
            [
                Ending(tenant, task_id, step, _timeout_outcome(found.get((tenant, task_id)), step))
                for tenant, task_id, step in due
            ],
        )

    def end_children(self, tx: Tx, ended: list[OpenStep]) -> None:
        """End waits for children that have ended. Hold their locks."""
        endings = [Ending(tenant, task_id, step, child_outcome(tx, tenant, step)) for tenant, task_id, step in ended]
        self.end_all(tx, endings)

    def end_orphans(self, tx: Tx, orphans: list[OpenStep]) -> None:
        """End waits for children of tasks that were cancelled. Hold their locks."""
        outcome = StepOutcome(error={"type": "ParentCancelled", "message": "The task was cancelled."})
        self.end_all(tx, [Ending(tenant, task_id, step, outcome) for tenant, task_id, step in orphans])

    def cancel_subtasks(self, tx: Tx, parents: Mapping[TaskRef, str]) -> None:
        """Cancel tasks, given with their parents, because those were cancelled. Hold their locks."""
        self._tasks.cancel_subtasks(tx, parents)

    def end(self, tx: Tx, ending: Ending) -> bool:
        """End a step with its event, and queue its task if it waits; False if the step has an outcome already."""
        return bool(self.end_all(tx, [ending]))

    def end_all(self, tx: Tx, endings: list[Ending]) -> int:
        """End many steps with their events, and queue their tasks if they wait; return how many had no outcome."""
        drafts = [(end.tenant, end.task_id, end.step.key, end.outcome) for end in endings]
        new = store.end_all(tx, drafts)
        causes: dict[tuple[str, str], ResumeCause] = {}
        for end in endings:
            if (end.tenant, end.task_id, end.step.key) in new:
                event_id = self._record(tx, end)
                if self._is_over(tx, end):
                    causes[end.tenant, end.task_id] = _goes_on(end.step.name), event_id
        if causes:
            self._resume_all(tx, causes)
        return len(new)

    def resume(self, tx: Tx, tenant: str, task_id: str, name: str, cause: str) -> None:
        """Queue a task if it waits. `cause` is the event that ended the wait `name`."""
        self._resume_all(tx, {(tenant, task_id): (_goes_on(name), cause)})

    def _resume_all(self, tx: Tx, causes: dict[tuple[str, str], ResumeCause]) -> None:
        waiting.resume_all(tx, self._runlog, self._router, self._dispatch, causes)

    def _record(self, tx: Tx, end: Ending) -> str:
        event = ended_event(end.step, end.outcome, ids.new_id(), end.agent_id)
        event.metadata.update(end.meta)
        self._runlog.append(tx, end.tenant, [event], task_id=end.task_id, parent=end.cause or end.step.event_id)
        return event.event_id

    def _is_over(self, tx: Tx, end: Ending) -> bool:
        """Return whether the task continues now that this step has ended."""
        step = end.step
        if end.outcome.error is not None and is_start(step.key):
            message = f"Not started: the task {step.name.removeprefix('after ')!r}, which must complete first, did not."
            self._tasks.abort_unstarted(tx, end.tenant, end.task_id, message)
            return False
        # A person has resolved it; the task continues when it is retried.
        if step.kind == "effect":
            return False
        # An error ends a group at once, as the program does not wait for the others then.
        if end.outcome.error is not None or step.together is None:
            return True
        return not store.has_open_together(tx, end.tenant, end.task_id, step.together)


def _goes_on(name: str) -> str:
    return f"Resumes: {name} has ended."


def lock_waits(tx: Tx, tenant: str, task_id: str) -> None:
    """Exclude other writers of the task's waits, in all processes."""
    tx.lock(locks.waits_lock(tenant, task_id))


def child_outcome(tx: Tx, tenant: str, step: Step) -> StepOutcome:
    """Return the end of a child: its status with its result, or an error with its status and its error."""
    try:
        child = tasks.find(tx, tenant, step.reference or "")
    except CorruptRecord as error:
        return StepOutcome(error={"type": model.CHILD_FAILED, "message": error.message})
    if child is None:
        return StepOutcome(error={"type": "ChildGone", "message": "The child was deleted."})
    if child.status == "completed":
        return StepOutcome.of_value({"status": child.status, "result": child.result})
    message = f"The child is {child.status}."
    error = {"type": model.CHILD_FAILED, "message": message, "status": child.status, "error": child.error}
    return StepOutcome(error=error)


def _timeout_outcome(task: Task | None, step: Step) -> StepOutcome:
    """Return how a wait ends whose time is over."""
    # A failed or aborted task may still be retried.
    if task is None or task.status in ("completed", "cancelled"):
        return StepOutcome(error={"type": "TaskEnded", "message": "The task had already ended."})
    return model.timeout_outcome(step)
