"""What a task waits for, as the API, the pages and the commands say it. Pure; `notices` has what else they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from stentor.core.db import Tx
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.notices import Notice

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
