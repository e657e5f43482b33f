"""What a task waits for, and whether its attempt may be lost, as the API, the pages and the commands say it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Tx
from stentor.core.runlog import RunLogEvent
from stentor.domains.tasks.model import Task

WaitingFor = Literal["start", "task", "sleep", "signal", "question", "child", "limit", "agent", "approval"]
MAX_WAITS = 20
"""Waits of a task that are listed, the oldest."""


class TaskWait(msgspec.Struct, frozen=True):
    """One thing that a task waits for. `text` says what, as the beginning of a sentence; it ends at `until`
    (microseconds) by itself, if ever. `key` is its step in the journal, `other_task_id` the task that it waits for.
    """

    kind: WaitingFor
    text: str
    until: int | None = None
    key: str | None = None
    other_task_id: str | None = None


WaitReader = Callable[[Tx, Task], list[TaskWait]]
"""Returns the first MAX_WAITS open waits in the journal of a task."""


class TaskState(msgspec.Struct, frozen=True):
    """A task, the notice about it if there is one, and what it waits for."""

    task: Task
    notice: str | None
    waits_for: list[TaskWait]


def describe_silence(task: Task, now: int) -> str | None:
    """Return that the agent of an executing task has been silent for more than half of its lease, else None.

    `now` in microseconds. Workers send a heartbeat in each third of the lease.
    """
    if task.status != "executing" or task.heartbeat_at is None or task.lease_until is None:
        return None
    silence = now - task.heartbeat_at
    if 2 * silence <= task.lease_until - task.heartbeat_at:
        return None
    moment = format_iso(task.lease_until)[11:19]
    return f"No heartbeat for {silence // SECOND} s. Without one, the task goes back to the queue at {moment} UTC."


def describe_lost_attempt(task: Task, event: RunLogEvent) -> str | None:
    """Return that a task is queued again because its attempt was lost, else None; `event` is the latest of the task."""
    if event.event_type != "task_requeued":
        return None
    advice = " If its worker ended, start it again." if task.runtime_kind == "worker" else ""
    return f"{event.message} The task is queued for another attempt.{advice}"
