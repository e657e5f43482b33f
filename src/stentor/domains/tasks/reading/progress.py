"""What a task waits for, and notices about it, as the API, the pages and the commands say it. Pure.

A program compares the code of a notice; its text is for people and may change.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal

import msgspec

from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Tx
from stentor.core.runlog import RunLogEvent
from stentor.domains.registry.model import InactiveStatus, describe_remedy
from stentor.domains.tasks.model import Task, TaskLimit

NoticeCode = Literal[
    "NO_WORKER_ONLINE",
    "ENDPOINT_UNREACHABLE",
    "MODEL_UNSERVED",
    "AGENT_ARCHIVED",
    "AGENT_SUSPENDED",
    "AGENT_QUARANTINED",
    "LIMIT_REACHED",
    "AGENT_SILENT",
    "ATTEMPT_LOST",
    "SESSION_UNUSED",
    "CANCELLING_SUBTASKS",
]


_INACTIVE: dict[InactiveStatus, NoticeCode] = {
    "archived": "AGENT_ARCHIVED",
    "suspended": "AGENT_SUSPENDED",
    "quarantined": "AGENT_QUARANTINED",
}


class Notice(msgspec.Struct, frozen=True):
    """What the reader of a task should know of it."""

    code: NoticeCode
    text: str


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
    notice: Notice | None
    waits_for: list[TaskWait]


def notice_fields(notice: Notice | None) -> dict[str, str | None]:
    """Return a notice as the fields `notice` and `notice_code` of a response."""
    text, code = (None, None) if notice is None else (notice.text, notice.code)
    return {"notice": text, "notice_code": code}


def describe_offline(runtime_kind: str | None, agent_name: str) -> Notice:
    """Return the notice of a task whose agent is not online, or has not connected yet."""
    if runtime_kind == "llm":
        # It gets the task all the same.
        show = f"`stentor agent show {shlex.quote(agent_name)}` says what to do"
        text = f"no provider serves the model of {agent_name}, so it fails the task; {show}"
        return Notice("MODEL_UNSERVED", text)
    if runtime_kind == "http":
        return Notice("ENDPOINT_UNREACHABLE", f"the endpoint of {agent_name} does not answer; it is tried again")
    return Notice("NO_WORKER_ONLINE", "no worker online")


def describe_inactive(agent_name: str, status: InactiveStatus) -> Notice:
    """Return the notice of a task whose agent gets no tasks."""
    return Notice(_INACTIVE[status], f"its agent {agent_name} is {status}{describe_remedy(status, agent_name)}")


def describe_unused_session(runtime_kind: str | None, agent_name: str | None, session: str | None) -> Notice | None:
    """Return that the agent of a task does not continue its session, None for one that may, or without a session."""
    if session is None or runtime_kind != "builtin":
        return None
    text = f"{agent_name} is a builtin agent, which neither reads nor extends the session {session!r}"
    return Notice("SESSION_UNUSED", text)


def describe_cancel(left: int) -> Notice | None:
    """Return that subtasks of a cancelled task are still to be cancelled, at most `left`; None for 0."""
    if not left:
        return None
    return Notice("CANCELLING_SUBTASKS", f"Its subtasks are being cancelled: {left:,} left, without theirs.")


def describe_limit(limit: TaskLimit, used: int) -> Notice | None:
    """Return what a queued task waits for if `used` tasks take all slots of its limit, else None."""
    if used < limit.max:
        return None
    use = "run" if limit.per_seconds is None else f"started in {limit.per_seconds} s"
    text = f"Waits for a free slot: {used} of {limit.max} tasks with the key {limit.key!r} {use}."
    return Notice("LIMIT_REACHED", text)


def describe_silence(task: Task, now: int) -> Notice | None:
    """Return that the agent of an executing task has been silent for more than half of its lease, else None.

    `now` in microseconds. Workers send a heartbeat in each third of the lease.
    """
    if task.status != "executing" or task.heartbeat_at is None or task.lease_until is None:
        return None
    silence = now - task.heartbeat_at
    if 2 * silence <= task.lease_until - task.heartbeat_at:
        return None
    moment = format_iso(task.lease_until)[11:19]
    text = f"No heartbeat for {silence // SECOND} s. Without one, the task goes back to the queue at {moment} UTC."
    return Notice("AGENT_SILENT", text)


def describe_lost_attempt(task: Task, event: RunLogEvent) -> Notice | None:
    """Return that a task is queued again because its attempt was lost, else None; `event` is the latest of the task."""
    if event.event_type != "task_requeued":
        return None
    advice = " If its worker ended, start it again." if task.runtime_kind == "worker" else ""
    return Notice("ATTEMPT_LOST", f"{event.message} The task is queued for another attempt.{advice}")
