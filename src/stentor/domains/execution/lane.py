"""A lane: the queued tasks of one agent, priority and submitter, as far as a process holds them in memory."""

from __future__ import annotations

import asyncio
import heapq

from stentor.domains.tasks.model import QueuedTask
from stentor.domains.tasks.store import TaskRef

Key = tuple[int, str]
"""Time of queueing and task id: the order of a lane."""
START: Key = (0, "")
"""Before every task."""
Entry = tuple[int, str, int, QueuedTask]
"""Time of queueing, task id, a number that no other entry of the task has, task."""


def key_of(queued: QueuedTask) -> Key:
    return queued.queued_at, queued.task_id


def ref_of(queued: QueuedTask) -> TaskRef:
    return queued.tenant, queued.task_id


class Lane:
    """The tasks of a lane by age: all of them, or in a truncated lane those up to `last`.

    Of a truncated lane the rest is only in the database. Everything there up to `last` is held, being claimed, or gone.
    An entry may be outdated: its task was stopped, or queued again since and has another entry.
    """

    __slots__ = ("age", "agent_id", "attempt", "entries", "has_failed", "is_truncated", "last", "priority", "submitter")

    def __init__(self, agent_id: str, priority: int, submitter: str) -> None:
        self.agent_id = agent_id
        self.priority = priority
        self.submitter = submitter
        self.entries: list[Entry] = []
        """A heap."""
        self.is_truncated = False
        self.last = START
        self.age = 0
        """Age that counts in the order of submitters: since when the oldest task waits, or earlier."""
        self.attempt: asyncio.Event | None = None
        """While the lane is being read: an event that is set at the end of this attempt, also if it fails."""
        self.has_failed = False
        """Whether the last attempt to read failed."""

    def takes(self, queued: QueuedTask) -> bool:
        """Return whether a task belongs to the part of the lane that is held."""
        return not self.is_truncated or key_of(queued) <= self.last

    def has(self, queued: QueuedTask) -> bool:
        """Return whether a task is one of this lane, held or not."""
        return (queued.agent_id, queued.priority, queued.submitted_by) == (self.agent_id, self.priority, self.submitter)

    def push(self, queued: QueuedTask) -> None:
        heapq.heappush(self.entries, (queued.queued_at, queued.task_id, id(queued), queued))

    def pop(self) -> QueuedTask:
        return heapq.heappop(self.entries)[-1]

    def truncate(self, size: int) -> list[QueuedTask]:
        """Keep only the `size` oldest entries; return the others."""
        self.entries.sort()
        removed = [entry[-1] for entry in self.entries[size:]]
        del self.entries[size:]
        self.is_truncated = True
        self.last = self.entries[-1][:2] if self.entries else START
        return removed
