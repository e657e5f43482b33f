"""What a task waits for in its journal, in words."""

from __future__ import annotations

from stentor.core.db import Tx
from stentor.domains.steps import store
from stentor.domains.steps.model import Step
from stentor.domains.steps.starts import AFTER, START
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.progress import MAX_WAITS, TaskWait

MAX_TEXT = 200
"""Characters of a question, or of the name of a signal."""


def read_waits(tx: Tx, task: Task) -> list[TaskWait]:
    """Return what a task waits for, the oldest first."""
    return [describe_wait(step) for step in store.list_open_waits(tx, task.tenant, task.task_id, MAX_WAITS)]


def describe_wait(step: Step) -> TaskWait:
    """Return an open wait in words."""
    reference = (step.reference or "")[:MAX_TEXT]
    if step.key == START:
        return TaskWait("start", "Waits for its start", step.wake_at, step.key)
    if step.key.startswith(AFTER):
        title = step.name.removeprefix("after ")
        return TaskWait("task", f"Waits for another task to complete: {title}", None, step.key, step.reference)
    if step.kind == "sleep":
        return TaskWait("sleep", "Sleeps", step.wake_at, step.key)
    if step.kind == "signal":
        return TaskWait("signal", f"Waits for the signal {reference!r}", step.wake_at, step.key)
    if step.kind == "question":
        options = f" ({', '.join(map(str, step.options))[:MAX_TEXT]})" if step.options else ""
        return TaskWait("question", f"Waits for an answer to {reference!r}{options}", step.wake_at, step.key)
    return TaskWait("child", f"Waits for its child {step.name!r}", step.wake_at, step.key, step.reference)
