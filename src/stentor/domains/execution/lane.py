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
Entry = tuple[int, str, str, QueuedTask]
"""Time of queueing, task id, newest event id, task."""


def key_of(queued: QueuedTask) -> Key:
    return queued.queued_at, queued.task_id


def ref_of(queued: QueuedTask) -> TaskRef:
    return queued.tenant, queued.task_id


class Lane:
    """The tasks of a lane by age: all of them, or in a truncated lane those up to `last`.

    Of a truncated lane the rest is only in the database. Everything there up to `last` is held, being claimed, or gone.
    """

    __slots__ = ("agent_id", "attempt", "entries", "has_failed", "is_truncated", "last", "priority", "submitter")

    def __init__(self, agent_id: str, priority: int, submitter: str) -> None:
        self.agent_id = agent_id
        self.priority = priority
        self.submitter = submitter
        self.entries: list[Entry] = []
        """A heap."""
        self.is_truncated = False
        self.last = START
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
        heapq.heappush(self.entries, (queued.queued_at, queued.task_id, queued.head_id, queued))

    def pop(self) -> QueuedTask:
        return heapq.heappop(self.entries)[-1]

    def truncate(self, size: int) -> list[QueuedTask]:
        """Hold only the `size` oldest tasks; return the others."""
        self.entries.sort()
        removed = [entry[-1] for entry in self.entries[size:]]
        del self.entries[size:]
        self.is_truncated = True
        self.last = self.entries[-1][:2] if self.entries else START
        return removed

    def drop(self, refs: set[TaskRef]) -> int:
        """Remove tasks; return how many there were."""
        kept = [entry for entry in self.entries if ref_of(entry[-1]) not in refs]
        dropped = len(self.entries) - len(kept)
        if dropped:
            heapq.heapify(kept)
            self.entries = kept
        return dropped
