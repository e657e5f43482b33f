"""The queue of one agent in memory: strictly by priority, in a priority submitters take turns, each by age.

The tasks of one agent, priority and submitter are a lane, of which a process may hold only the oldest ones.

On PostgreSQL new rows get the same order from their insert (`tasks.store`), moved ones from a trigger.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator

from stentor.domains.tasks.model import QueuedTask
from stentor.domains.tasks.store import TaskRef

Key = tuple[int, str]
"""Time of queueing and task id: the order of a lane."""
START: Key = (0, "")
"""Before every task."""
Entry = tuple[int, str, int, QueuedTask]
"""Time of queueing, task id, a number that no other entry of the task has, task."""
IsHeld = Callable[[QueuedTask], bool]
"""Returns whether an entry is the current one of its task; otherwise it is outdated."""


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


class SubmitterTurns:
    """Lanes of one priority: start-time fair queueing with one turn for each task.

    A submitter without a backlog gets the current turn, so it comes after at most one task of each other submitter, and
    one that was idle has saved up nothing.
    """

    def __init__(self, is_held: IsHeld) -> None:
        self._is_held = is_held
        self.lanes: dict[str, Lane] = {}
        self._turns: list[tuple[int, int, str]] = []
        """Turn, age and submitter of each lane; a heap."""
        self._current = 0
        self._next_turns: dict[str, int] = {}
        """Earliest turn of the submitters that were served in the current turn."""

    def add(self, lane: Lane, age: int) -> None:
        """Add a lane whose oldest task was queued at `age` or later."""
        self.lanes[lane.submitter] = lane
        lane.age = age
        # A submitter that was already served in this turn must wait for the next, even if its lane was empty in
        # between.
        turn = max(self._current, self._next_turns.get(lane.submitter, 0))
        heapq.heappush(self._turns, (turn, age, lane.submitter))

    def lower_age(self, lane: Lane, queued: QueuedTask) -> None:
        """Let a task count for the age of its lane, also if it is only in the database."""
        if queued.queued_at < lane.age:
            # Rare: a task that moved here from another agent, or after the clock was set back.
            lane.age = queued.queued_at
            self._turns = [(turn, self.lanes[name].age, name) for turn, _, name in self._turns]
            heapq.heapify(self._turns)

    def next_lane(self) -> Lane | None:
        """Return the lane whose turn it is, None if there are no tasks."""
        while self._turns:
            turn, age, submitter = self._turns[0]
            lane = self.lanes[submitter]
            while lane.entries and not self._is_held(lane.entries[0][-1]):
                lane.pop()
            if lane.entries and lane.entries[0][0] > age:
                lane.age = lane.entries[0][0]
                heapq.heapreplace(self._turns, (turn, lane.age, submitter))
            elif lane.entries or lane.is_truncated:
                return lane
            else:
                heapq.heappop(self._turns)
                del self.lanes[submitter]
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
            lane.age = lane.entries[0][0] if lane.entries else lane.last[0]
            heapq.heappush(self._turns, (turn + 1, lane.age, submitter))
        else:
            del self.lanes[submitter]
        return queued


class FairQueue:
    """Tasks that wait for one agent."""

    def __init__(self, agent_id: str, is_held: IsHeld) -> None:
        self.agent_id = agent_id
        self._is_held = is_held
        self._levels: dict[int, SubmitterTurns] = {}
        self.held, self.in_rows = 0, 0
        """Number of tasks in memory, and of those that are only in the database; each refill corrects the latter."""
        self.arrived = asyncio.Event()
        """Set while the next task is in memory."""
        self.is_in_process = False
        """Whether the agent runs inside the service."""

    @property
    def depth(self) -> int:
        return self.held + self.in_rows

    def count_in_rows(self, change: int) -> None:
        # Never negative: a cancelled task may have been among them without a notice.
        self.in_rows = max(0, self.in_rows + change)

    def open_lane(self, queued: QueuedTask) -> Lane:
        """Return the lane of a task; make one that is empty if there is none."""
        level = self._levels.get(queued.priority)
        if level is None:
            level = self._levels[queued.priority] = SubmitterTurns(self._is_held)
        lane = level.lanes.get(queued.submitted_by)
        if lane is None:
            lane = Lane(self.agent_id, queued.priority, queued.submitted_by)
            level.add(lane, queued.queued_at)
        return lane

    def lanes(self) -> Iterator[Lane]:
        return (lane for level in self._levels.values() for lane in level.lanes.values())

    def next_lane(self) -> Lane | None:
        """Return the lane of the next task, None if there are no tasks.

        If the lane has no entries, the next task is only in the database: nothing may be popped before it.
        """
        for priority in sorted(self._levels):
            if (lane := self._levels[priority].next_lane()) is not None:
                return lane
        return None

    def push(self, lane: Lane, queued: QueuedTask) -> None:
        lane.push(queued)
        self.lower_age(lane, queued)

    def lower_age(self, lane: Lane, queued: QueuedTask) -> None:
        self._levels[lane.priority].lower_age(lane, queued)

    def pop(self, lane: Lane) -> QueuedTask:
        """Remove the oldest task of `next_lane`, which must hold one."""
        return self._levels[lane.priority].pop()
