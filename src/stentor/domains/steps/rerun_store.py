"""SQL of the steps that a task takes over from another one."""

from __future__ import annotations

from typing import NamedTuple

from stentor.core.db import Sql, Tx
from stentor.domains.steps.model import StepKind, StepState
from stentor.domains.steps.store import STORED
from stentor.domains.tasks.model import Task

_TASK = "tenant = :tenant and task_id = :task_id"
# No attempt of the new task has the number 0, so these steps can be told from its own.
_COPIED = {"epoch": "0"}
_LIST_ORDERED = Sql(f"select key, name, kind, state, event_id from task_steps where {_TASK} order by event_id")
# Failed steps are among them: they run again as after a retry. What ran within the step itself runs again with it, but
# for effects: what was sent is sent, however deep inside.
_COPIES = (
    f"insert into task_steps (tenant, task_id, {', '.join(STORED)}) "
    f"select tenant, :target, {', '.join(_COPIED.get(name, name) for name in STORED)} from task_steps "
    f"where {_TASK} and state <> 'started' "
)
_IS_INSIDE = "substr(key, 1, length(cast(:inside as text))) = :inside"
_COPY_BEFORE = Sql(f"{_COPIES} and event_id < :before and (kind = 'effect' or not {_IS_INSIDE})")
_COPY = Sql(f"{_COPIES} and key = :key on conflict do nothing")
_FORGET_POSITIONS = Sql(f"update task_steps set position = null where {_TASK}")
_RUN_AGAIN = Sql(f"update task_steps set handled = 0 where {_TASK} and key = :key")
_MOVE = Sql(f"update task_steps set event_id = :event_id where {_TASK} and key = :key")


class OrderedStep(NamedTuple):
    """What the order of the steps of a task is read from."""

    key: str
    name: str
    kind: StepKind
    state: StepState
    event_id: str


def list_ordered(tx: Tx, tenant: str, task_id: str) -> list[OrderedStep]:
    """List the steps of a task without their values, oldest first."""
    return [OrderedStep(*row) for row in tx.rows(_LIST_ORDERED, tenant=tenant, task_id=task_id)]


def copy_before(tx: Tx, task: Task, source: str, event_id: str, inside: str) -> None:
    """Copy into a new task what ended in another one and began before an event.

    Of the steps whose keys begin with `inside`, only effects.
    """
    tx.run(_COPY_BEFORE, tenant=task.tenant, task_id=source, target=task.task_id, before=event_id, inside=inside)


def copy(tx: Tx, task: Task, source: str, key: str, event_id: str) -> None:
    """Copy a step that ended, unless it is copied, and give it its place in the order by an event id."""
    tx.run(_COPY, tenant=task.tenant, task_id=source, target=task.task_id, key=key)
    tx.run(_MOVE, tenant=task.tenant, task_id=task.task_id, key=key, event_id=event_id)


def run_again(tx: Tx, task: Task, key: str) -> None:
    """Let a failed step run again, although the program went on after it."""
    tx.run(_RUN_AGAIN, tenant=task.tenant, task_id=task.task_id, key=key)


def forget_positions(tx: Tx, task: Task) -> None:
    """Forget where the program runs the steps of a task, so that it may run others there."""
    tx.run(_FORGET_POSITIONS, tenant=task.tenant, task_id=task.task_id)
