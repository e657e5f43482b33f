"""The queue of one agent in memory: strictly by priority, in a priority submitters take turns, each by age.

On PostgreSQL the trigger `take_task_turn` gives the same order to the rows.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

from stentor.domains.execution.lane import Lane
from stentor.domains.tasks.model import QueuedTask
from stentor.domains.tasks.store import TaskRef


class SubmitterTurns:
    """Lanes of one priority: start-time fair queueing with one turn for each task.

    A submitter without a backlog gets the current turn, so it comes after at most one task of each other submitter, and
    one that was idle has saved up nothing.
    """

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self._turns: list[tuple[int, int, str]] = []
        """Turn, age of the oldest task and name of the submitter of each lane; a heap."""
        self._current = 0
        self._next_turns: dict[str, int] = {}
        """Earliest turn of the submitters that were served in the current turn."""

    def add(self, lane: Lane, age: int) -> None:
        """Add a lane whose oldest task was queued at `age` or later."""
        self.lanes[lane.submitter] = lane
        # Who was served in this turn already has to wait for the next, also if its lane was empty in between.
        turn = max(self._current, self._next_turns.get(lane.submitter, 0))
        heapq.heappush(self._turns, (turn, age, lane.submitter))

    def next_lane(self) -> Lane | None:
        """Return the lane whose turn it is, None if there are no tasks."""
        while self._turns:
            turn, age, submitter = self._turns[0]
            lane = self.lanes[submitter]
            if not lane.entries and not lane.is_truncated:
                heapq.heappop(self._turns)
                del self.lanes[submitter]
            elif lane.entries and lane.entries[0][0] > age:
                # Its oldest task was not known, or has gone to another agent.
                heapq.heapreplace(self._turns, (turn, lane.entries[0][0], submitter))
            else:
                return lane
        return None

    def pop(self) -> QueuedTask:
        """Remove the oldest task of `next_lane`, which must hold one."""
        turn, _, submitter = heapq.heappop(self._turns)
        if turn > self._current:
            self._current = turn
            self._next_turns.clear()
        self._next_turns[submitter] = turn + 1
        lane = self.lanes[submitter]
        queued = lane.pop()
        if lane.entries or lane.is_truncated:
            age = lane.entries[0][0] if lane.entries else lane.last[0]
            heapq.heappush(self._turns, (turn + 1, age, submitter))
        else:
            del self.lanes[submitter]
        return queued


class FairQueue:
    """Tasks that wait for one agent; its length is the number of those in memory."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self._levels: dict[int, SubmitterTurns] = {}
        self._size = 0
        self.in_rows = 0
        """Tasks that are only in the database. Each refill corrects it."""
        self.arrived = asyncio.Event()
        """Set while the next task is in memory."""
        self.is_in_process = False
        """Whether the agent runs inside the service."""

    def __len__(self) -> int:
        return self._size

    @property
    def depth(self) -> int:
        return self._size + self.in_rows

    def count_in_rows(self, change: int) -> None:
        # Never negative: a task that was cancelled or moved may have been in memory or not.
        self.in_rows = max(0, self.in_rows + change)

    def update(self) -> None:
        """Set or clear `arrived`."""
        lane = self.next_lane()
        if lane is not None and lane.entries:
            self.arrived.set()
        else:
            self.arrived.clear()

    def open_lane(self, queued: QueuedTask) -> Lane:
        """Return the lane of a task; make one that is empty if there is none."""
        level = self._levels.get(queued.priority)
        if level is None:
            level = self._levels[queued.priority] = SubmitterTurns()
        lane = level.lanes.get(queued.submitted_by)
        if lane is None:
            lane = Lane(self.agent_id, queued.priority, queued.submitted_by)
            level.add(lane, queued.queued_at)
        return lane

    def lanes(self) -> Iterator[Lane]:
        return (lane for level in self._levels.values() for lane in level.lanes.values())

    def next_lane(self) -> Lane | None:
        """Return the lane of the next task, None if there are no tasks.

        If it is truncated and holds none, the next task is only in the database: nothing may be popped before it.
        """
        while self._levels:
            priority = min(self._levels)
            if (lane := self._levels[priority].next_lane()) is not None:
                return lane
            del self._levels[priority]
        return None

    def push(self, lane: Lane, queued: QueuedTask) -> None:
        lane.push(queued)
        self._size += 1

    def pop(self, lane: Lane) -> QueuedTask:
        """Remove the oldest task of `next_lane`, which must hold one."""
        self._size -= 1
        return self._levels[lane.priority].pop()

    def truncate(self, lane: Lane, size: int) -> list[QueuedTask]:
        """Hold only the `size` oldest tasks of a lane; return the others."""
        removed = lane.truncate(size)
        self._size -= len(removed)
        return removed

    def drop(self, refs: set[TaskRef]) -> int:
        """Remove tasks; return how many of them were held."""
        dropped = sum(lane.drop(refs) for lane in self.lanes())
        self._size -= dropped
        return dropped
