"""How waits end, and how that queues their tasks again."""

from __future__ import annotations

from typing import Any

from stentor.core import ids
from stentor.core.db import Tx, locks
from stentor.core.runlog import RunLog
from stentor.domains.steps import model, store
from stentor.domains.steps.model import Step, StepOutcome
from stentor.domains.steps.service import ended_event
from stentor.domains.steps.starts import is_start
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks import waiting
from stentor.domains.tasks.placement import TaskQueue
from stentor.domains.tasks.service import TaskService

BATCH_SIZE = 200
"""Waits that one transaction ends."""


class WaitEndings:
    """Ends waits within the caller's transaction."""

    def __init__(self, runlog: RunLog, task_service: TaskService, dispatch: TaskQueue) -> None:
        self._runlog, self._tasks, self._dispatch = runlog, task_service, dispatch

    def end_due(self, tx: Tx) -> int:
        """End waits whose time is over, within the caller's transaction; return how many."""
        due = store.list_due(tx, BATCH_SIZE)
        for tenant, task_id, step in due:
            lock_waits(tx, tenant, task_id)
            self.end(tx, tenant, task_id, step, _timeout_outcome(tx, tenant, task_id, step), None)
        return len(due)

    def end_children(self, tx: Tx) -> int:
        """End waits for children that have ended, within the caller's transaction; return how many."""
        ended = store.list_ended_children(tx, BATCH_SIZE)
        for tenant, task_id, step in ended:
            lock_waits(tx, tenant, task_id)
            self.end(tx, tenant, task_id, step, child_outcome(tx, tenant, step), None)
        return len(ended)

    def cancel_children(self, tx: Tx) -> int:
        """Cancel the children of cancelled tasks, within the caller's transaction; return how many."""
        orphans = store.list_orphans(tx, BATCH_SIZE)
        for tenant, task_id, step in orphans:
            lock_waits(tx, tenant, task_id)
            self._tasks.cancel_child_in_tx(tx, tenant, step.reference or "", task_id)
            error = {"type": "ParentCancelled", "message": "The task was cancelled, and its child with it."}
            self.end(tx, tenant, task_id, step, StepOutcome(error=error), None)
        return len(orphans)

    def end(
        self,
        tx: Tx,
        tenant: str,
        task_id: str,
        step: Step,
        outcome: StepOutcome,
        agent_id: str | None,
        cause: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> bool:
        """End a step with its event, and queue its task if it waits; False if the step has an outcome already."""
        if not store.end(tx, tenant, task_id, step.key, outcome):
            return False
        event = ended_event(step, outcome, ids.new_id(), agent_id)
        event.metadata.update(meta or {})
        self._runlog.append(tx, tenant, [event], task_id=task_id, parent=cause or step.event_id)
        # An error ends a group at once, as the program does not wait for the others then.
        is_over = outcome.error is not None or not store.has_open_together(tx, tenant, task_id, step.together)
        if outcome.error is not None and is_start(step.key):
            self._tasks.abort_unstarted(tx, tenant, task_id, f"It comes {step.name!r}, which did not complete.")
        elif step.kind != "effect" and is_over:
            self.resume(tx, tenant, task_id, step.name, event.event_id)
        return True

    def resume(self, tx: Tx, tenant: str, task_id: str, name: str, cause: str) -> None:
        """Queue a task if it waits. `cause` is the event that ended the wait `name`."""
        waiting.resume(tx, self._runlog, self._dispatch, tenant, task_id, f"Goes on: {name} has ended.", cause)


def lock_waits(tx: Tx, tenant: str, task_id: str) -> None:
    """Exclude other writers of the task's waits, in all processes."""
    tx.lock(locks.waits_lock(tenant, task_id))


def child_outcome(tx: Tx, tenant: str, step: Step) -> StepOutcome:
    """Return the end of a child: its status with its result, or an error with its status and its error."""
    child = tasks.find(tx, tenant, step.reference or "")
    if child is None:
        return StepOutcome(error={"type": "ChildGone", "message": "The child was deleted."})
    if child.status == "completed":
        return StepOutcome.of_value({"status": child.status, "result": child.result})
    message = f"The child is {child.status}."
    error = {"type": model.CHILD_FAILED, "message": message, "status": child.status, "error": child.error}
    return StepOutcome(error=error)


def _timeout_outcome(tx: Tx, tenant: str, task_id: str, step: Step) -> StepOutcome:
    """Return how a wait ends whose time is over."""
    task = tasks.find(tx, tenant, task_id)
    # A failed or aborted task may still be retried.
    if task is None or task.status in ("completed", "cancelled"):
        return StepOutcome(error={"type": "TaskEnded", "message": "The task has ended before."})
    return model.timeout_outcome(step)
