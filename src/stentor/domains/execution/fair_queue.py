"""The queue of one agent in memory: strictly by priority, in a priority submitters take turns, each by age.

On PostgreSQL the trigger `take_task_turn` gives the same order to the rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from stentor.domains.tasks.model import QueuedTask

Entry = tuple[int, str, QueuedTask]
"""Time of queueing, task id, task."""


class SubmitterTurns:
    """Tasks of one priority: start-time fair queueing with one turn for each task.

    A submitter without a backlog gets the current turn, so it comes after at most one task of each other submitter, and
    one that was idle has saved up nothing.
    """

    def __init__(self) -> None:
        self._queues: dict[str, list[Entry]] = {}
        self._turns: list[tuple[int, int, str]] = []
        """Turn, age of the oldest task and name of each submitter with tasks; a heap."""
        self._current = 0
        self._next_turns: dict[str, int] = {}
        """Earliest turn of the submitters that were served in the current turn."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def push(self, queued: QueuedTask) -> None:
        submitter = queued.submitted_by
        entry = (queued.queued_at, queued.task_id, queued)
        if (queue := self._queues.get(submitter)) is not None:
            heapq.heappush(queue, entry)
            return
        self._queues[submitter] = [entry]
        # Who was served in this turn already has to wait for the next, also if its queue was empty in between.
        turn = max(self._current, self._next_turns.get(submitter, 0))
        heapq.heappush(self._turns, (turn, queued.queued_at, submitter))

    def pop(self) -> QueuedTask:
        turn, _, submitter = heapq.heappop(self._turns)
        if turn > self._current:
            self._current = turn
            self._next_turns.clear()
        self._next_turns[submitter] = turn + 1
        queue = self._queues[submitter]
        queued = heapq.heappop(queue)[-1]
        if queue:
            heapq.heappush(self._turns, (turn + 1, queue[0][0], submitter))
        else:
            del self._queues[submitter]
        return queued

    def __iter__(self) -> Iterator[QueuedTask]:
        return (entry[-1] for queue in self._queues.values() for entry in queue)


class FairQueue:
    """Tasks that wait for one agent."""

    def __init__(self) -> None:
        self._levels: dict[int, SubmitterTurns] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, queued: QueuedTask) -> None:
        level = self._levels.get(queued.priority)
        if level is None:
            level = self._levels[queued.priority] = SubmitterTurns()
        level.push(queued)
        self._size += 1

    def pop(self) -> QueuedTask:
        """Remove the next task. Raises ValueError for an empty queue."""
        priority = min(self._levels)
        level = self._levels[priority]
        queued = level.pop()
        if not level:
            del self._levels[priority]
        self._size -= 1
        return queued

    def drop(self, keys: set[tuple[str, str]]) -> None:
        """Remove tasks by tenant and id; the submitters start with equal turns again."""
        kept = [task for level in self._levels.values() for task in level if (task.tenant, task.task_id) not in keys]
        self._levels, self._size = {}, 0
        for queued in kept:
            self.push(queued)
