"""SQL of the steps that a task takes over from another one."""

from __future__ import annotations

from typing import NamedTuple

from stentor.core.db import RowsSql, Sql, Tx
from stentor.domains.steps.model import StepKind, StepState
from stentor.domains.steps.store import STORED
from stentor.domains.tasks.model import Task

_TASK = "tenant = :tenant and task_id = :task_id"
_LIST_ORDERED = Sql(
    f"select key, name, kind, state, event_id, case when epoch = 0 then together end from task_steps where {_TASK} "
    "order by event_id"
)
# No attempt of the new task has the number 0, so these steps can be told from its own.
_COPIED = {"epoch": "0", "together": "case when epoch = 0 then together end"}
_MOVED = {"epoch": "0", "key": "given.key", "event_id": "given.event_id", "together": "given.last"}
# Failed steps are among them: they run again as after a retry. What ran within the step itself runs again with it, but
# for effects: what was sent is sent, however deep inside.
_INSERT = f"insert into task_steps (tenant, task_id, {', '.join(STORED)}) select tenant, :target, "
_IS_INSIDE = "substr(key, 1, length(cast(:inside as text))) = :inside"
_COPY_BEFORE = Sql(
    f"{_INSERT} {', '.join(_COPIED.get(name, name) for name in STORED)} from task_steps where {_TASK} "
    f"and state <> 'started' and event_id < :before and (kind = 'effect' or not {_IS_INSIDE})"
)
_COPY = RowsSql(
    ("key", "event_id", "last"),
    f"""{_INSERT} {", ".join(_MOVED.get(name, name) for name in STORED)}
    from given join task_steps on task_steps.key = given.key where {_TASK} and state <> 'started'
    on conflict (tenant, task_id, key) do update set event_id = excluded.event_id, together = excluded.together
    returning key""",
)
_FORGET_POSITIONS = Sql(f"update task_steps set position = null where {_TASK}")
_RUN_AGAIN = Sql(f"update task_steps set handled = 0 where {_TASK} and key = :key")


class OrderedStep(NamedTuple):
    """What the order of the steps of a task is read from. `last` is the event of the last run."""

    key: str
    name: str
    kind: StepKind
    state: StepState
    event_id: str
    last: str


def list_ordered(tx: Tx, tenant: str, task_id: str) -> list[OrderedStep]:
    """List the steps of a task without their values, oldest first."""
    # What the task waits for before its first attempt has the epoch 0 too, and a name there, which sorts before ids.
    rows = tx.rows(_LIST_ORDERED, tenant=tenant, task_id=task_id)
    return [OrderedStep(*row[:5], last=max(row[4], row[5] or "")) for row in rows]


def copy_before(tx: Tx, task: Task, source: str, event_id: str, inside: str) -> None:
    """Copy into a new task what ended in another one and began before an event.

    Of the steps whose keys begin with `inside`, only effects.
    """
    tx.run(_COPY_BEFORE, tenant=task.tenant, task_id=source, target=task.task_id, before=event_id, inside=inside)


def copy(tx: Tx, task: Task, source: str, steps: list[tuple[str, str, str]]) -> None:
    """Copy steps that ended, unless they are copied, and give them their place in the order.

    Each by its key, the event id that is its place, and that of its last run.
    """
    tx.rows_for(_COPY, steps, tenant=task.tenant, task_id=source, target=task.task_id)


def run_again(tx: Tx, task: Task, key: str) -> None:
    """Let a failed step run again, although the program continued after it."""
    tx.run(_RUN_AGAIN, tenant=task.tenant, task_id=task.task_id, key=key)


def forget_positions(tx: Tx, task: Task) -> None:
    """Forget where the program runs the steps of a task, so that it may run others there."""
    tx.run(_FORGET_POSITIONS, tenant=task.tenant, task_id=task.task_id)
