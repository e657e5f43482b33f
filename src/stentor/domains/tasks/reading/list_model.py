"""Values of lists of tasks: the conditions, a task in a list, a page. Pure."""

from __future__ import annotations

import msgspec

from stentor.domains.tasks.model import TaskStatus, elapsed_ms


class TaskFilter(msgspec.Struct, frozen=True):
    """Conditions of a list.

    `created_after` in microseconds; `before` is the creation time and id of the last task of the previous page; `key`
    limits the list to the tasks that this key submitted or that are assigned to its agents; `session` is the id of a
    session; `ref` is the beginning or the end of an id, `parent` the id of a parent task; each of these two excludes
    the other conditions.
    """

    status: TaskStatus | None = None
    agent_id: str | None = None
    created_after: int | None = None
    before: tuple[int, str] | None = None
    key: str | None = None
    ref: str | None = None
    parent: str | None = None
    type: str | None = None
    submitted_by: str | None = None
    session: str | None = None


class TaskSummary(msgspec.Struct, frozen=True):
    """A task in a list. Times in microseconds."""

    task_id: str
    status: TaskStatus
    assigned_agent: str | None
    type: str
    created_at: int
    completed_at: int | None
    start_time: int | None
    title: str
    epoch: int
    first_started_at: int | None

    @property
    def duration_ms(self) -> int | None:
        """The duration of the last attempt; None until it has ended."""
        return elapsed_ms(self.start_time, self.completed_at)

    @property
    def total_duration_ms(self) -> int | None:
        """The time from the first start to the end, with all attempts and waits; None until it has ended."""
        return elapsed_ms(self.first_started_at or self.start_time, self.completed_at)


class TaskPage(msgspec.Struct, frozen=True):
    """A page of a list; `total` counts the matches on all pages, or is at least that many where it is not exact.

    `unindexed_events` is how many events of the run log a search for words did not cover; None without a search.
    """

    rows: list[TaskSummary]
    total: int
    has_more: bool
    total_is_exact: bool = True
    unindexed_events: int | None = None
