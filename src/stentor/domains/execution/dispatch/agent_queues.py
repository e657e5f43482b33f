"""The queued tasks in memory, by agent: all of a short lane, and of a long one a window that is read on from the rows.

`in_memory_dispatcher.py` hands them out, and tells of each change after its commit. The refill finds what was missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from stentor.core.db import Database
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import StoreUnavailable
from stentor.domains.execution.dispatch.fair_queue import FairQueue, Lane, key_of, ref_of
from stentor.domains.tasks.model import QueuedTask
from stentor.domains.tasks.queues import lane_store
from stentor.domains.tasks.queues.lane_store import QueueHeads
from stentor.domains.tasks.store import TaskRef

MAX_WINDOW, MIN_WINDOW = 500, 8
"""Most tasks of a lane in memory, with few and with many lanes."""
MAX_HELD = 50_000
"""Most tasks of all lanes in memory, unless MIN_WINDOW of each lane are more; about 0.6 KB each."""
MAX_READS = 32
"""Lanes that are read at a time."""
RETRY_SECONDS = 1.0
log = logging.getLogger(__name__)


class AgentQueues:
    """The queues of all agents. `on_ready` is called with an agent inside the service that may have tasks."""

    def __init__(self, db: Database, on_ready: Callable[[str], None], is_running: Callable[[TaskRef], bool]) -> None:
        self._db = db
        self._on_ready = on_ready
        self._is_running = is_running
        self._queues: dict[str, FairQueue] = {}
        self._held: dict[TaskRef, QueuedTask] = {}
        """The current entry of each task in memory. Any other entry of the task is outdated and is skipped."""
        self._arrivals: dict[TaskRef, QueuedTask] = {}
        """Tasks queued behind the end of a lane that is being read: the read may be too old to find them."""
        self._changes = ConcurrentWrites[TaskRef]()
        self.window = MAX_WINDOW
        self._reads: set[asyncio.Task[None]] = set()
        self._read_slots = asyncio.Semaphore(MAX_READS)
        self._open = True

    def get(self, agent_id: str) -> FairQueue:
        if agent_id not in self._queues:
            self._queues[agent_id] = FairQueue(agent_id, self._is_held)
        return self._queues[agent_id]

    def add(self, queued: QueuedTask) -> None:
        """Add a task, or its newer entry. Idempotent."""
        ref = ref_of(queued)
        self._changes.record_write(ref)
        self._remove_arrival(ref)
        held = self._held.get(ref)
        # The head differs after each change of the task, so only the very same entry is a repetition.
        if (held is not None and held.head_id == queued.head_id) or not self._open:
            return
        queue = self.get(queued.agent_id)
        lane = queue.open_lane(queued)
        self._release(ref)
        if lane.takes(queued):
            self._hold(queue, lane, queued)
            self._shorten(queue, lane)
            self._announce(queue)
        else:
            queue.count_in_rows(1)
            queue.lower_age(lane, queued)
            if lane.attempt is not None:
                self._arrivals[ref] = queued

    def remove(self, ref: TaskRef) -> None:
        """Forget a task that was stopped."""
        self._changes.record_write(ref)
        self._remove_arrival(ref)
        if (queue := self._release(ref)) is not None:
            self._update(queue)

    def move(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        """Move tasks from the queue of this agent to the agents that the tasks now name."""
        queue = self.get(agent_id)
        for queued in tasks:
            if self._release(ref_of(queued)) is None:
                queue.count_in_rows(-1)
            self.add(queued)
        self._update(queue)

    def take(self, agent_id: str, limit: int) -> list[QueuedTask]:
        """Remove up to `limit` tasks of an agent from memory, in the order of its queue."""
        queue = self.get(agent_id)
        taken: list[QueuedTask] = []
        while len(taken) < limit and (lane := queue.next_lane()) is not None and lane.entries:
            queued = queue.pop(lane)
            self._changes.record_write(ref_of(queued))
            self._release(ref_of(queued))
            taken.append(queued)
            self._read_if_low(queue, lane)
        self._update(queue)
        return taken

    async def wait_for_read(self, agent_id: str) -> bool:
        """Wait for the next task of an agent if it is only in the database; return whether it may be in memory now."""
        lane = self.get(agent_id).next_lane()
        if lane is None or lane.entries or lane.attempt is None:
            return False
        await lane.attempt.wait()
        return self._open and not lane.has_failed

    def depth(self, agent_id: str) -> int:
        return self._queues[agent_id].depth if agent_id in self._queues else 0

    def depths(self) -> dict[str, int]:
        """Return the number of queued tasks by agent, without agents that have none."""
        return {agent_id: queue.depth for agent_id, queue in self._queues.items() if queue.depth}

    def refill_query(self) -> PollQuery:
        """Return the query that finds lanes whose oldest task is not in memory."""
        return self._changes.start_poll(lane_store.read_heads, self._refill)

    async def close(self) -> None:
        """Stop reading."""
        self._open = False
        for read in self._reads:
            read.cancel()
        await asyncio.gather(*self._reads, return_exceptions=True)
        for lane in [lane for queue in self._queues.values() for lane in queue.lanes()]:
            if lane.attempt is not None:
                lane.attempt.set()  # so that no claim waits for it

    def _refill(self, found: QueueHeads, changed: set[TaskRef]) -> None:
        self.window = min(MAX_WINDOW, max(MIN_WINDOW, MAX_HELD // max(1, len(found.heads))))
        for head in found.heads:
            ref = ref_of(head)
            held = self._held.get(ref)
            is_known = ref in changed or self._is_running(ref) or (held is not None and held.head_id == head.head_id)
            if self._open and not is_known:
                self._find(head)
        for agent_id, queue in self._queues.items():
            for lane in queue.lanes():
                self._shorten(queue, lane)
            is_complete = not any(lane.is_truncated for lane in queue.lanes())
            queue.in_rows = 0 if is_complete else max(0, found.depths.get(agent_id, 0) - queue.held)

    def _find(self, head: QueuedTask) -> None:
        """Read the lane of a task that should be in memory and is not, from its start."""
        queue = self.get(head.agent_id)
        queue.is_in_process = head.runtime_kind != "worker"
        lane = queue.open_lane(head)
        if lane.takes(head) and lane.attempt is None:
            self._truncate(queue, lane, 0)
        self._update(queue)
        self._read_if_low(queue, lane)

    def _read_if_low(self, queue: FairQueue, lane: Lane) -> None:
        is_low = lane.is_truncated and len(lane.entries) <= self.window // 4
        if is_low and lane.attempt is None and self._open:
            lane.attempt = asyncio.Event()
            read = asyncio.create_task(self._read_on(queue, lane))
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)

    async def _read_on(self, queue: FairQueue, lane: Lane) -> None:
        """Read the next tasks of a truncated lane; try again until it succeeds."""
        while (attempt := lane.attempt) is not None:
            try:
                apply = await self._read(queue, lane)
                lane.attempt, lane.has_failed = None, False
                apply()
                return
            except Exception as error:  # noqa: BLE001 - whatever it is: a lane that is not read on would stand still
                level = (
                    logging.DEBUG if isinstance(error, StoreUnavailable) else logging.ERROR
                )  # the database logs those
                log.log(level, "dispatcher: reading a queue failed agent_id=%s error=%r", lane.agent_id, error)
                lane.attempt, lane.has_failed = asyncio.Event(), True
            finally:
                attempt.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, queue: FairQueue, lane: Lane) -> Callable[[], None]:
        limit, key = max(1, self.window // 2), (lane.agent_id, lane.priority, lane.submitter)
        async with self._read_slots:
            # Created before the read: changes of this process from here on override what the read finds.
            query = self._changes.start_poll(
                lambda tx: lane_store.list_lane(tx, *key, lane.last, limit), partial(self._apply, queue, lane, limit)
            )
            return await self._db.poll(query)

    def _apply(self, queue: FairQueue, lane: Lane, limit: int, tasks: list[QueuedTask], changed: set[TaskRef]) -> None:
        """Put what was read at the end of the lane, then what arrived behind that in the meantime."""
        lane.is_truncated = len(tasks) == limit
        lane.last = key_of(tasks[-1]) if tasks else lane.last
        for queued in tasks:
            if ref_of(queued) not in changed:
                self._release(ref_of(queued))
                self._hold(queue, lane, queued)
                queue.count_in_rows(-1)
        for queued in [queued for queued in self._arrivals.values() if lane.has(queued)]:
            self.add(queued)
        self._announce(queue)

    def _is_held(self, queued: QueuedTask) -> bool:
        return self._held.get(ref_of(queued)) is queued

    def _hold(self, queue: FairQueue, lane: Lane, queued: QueuedTask) -> None:
        self._held[ref_of(queued)] = queued
        queue.held += 1
        queue.push(lane, queued)
        queue.is_in_process = queued.runtime_kind != "worker"

    def _release(self, ref: TaskRef) -> FairQueue | None:
        """Make the entry of a task outdated; return its queue, None if the task is not in memory."""
        if (queued := self._held.pop(ref, None)) is None:
            return None
        self._queues[queued.agent_id].held -= 1
        return self._queues[queued.agent_id]

    def _shorten(self, queue: FairQueue, lane: Lane) -> None:
        # Not while a read is running: that continues at the lane's end.
        if len(lane.entries) > self.window and lane.attempt is None:
            self._truncate(queue, lane, self.window // 2)

    def _truncate(self, queue: FairQueue, lane: Lane, size: int) -> None:
        for queued in lane.truncate(size):
            if self._is_held(queued):
                self._release(ref_of(queued))
                queue.count_in_rows(1)

    def _remove_arrival(self, ref: TaskRef) -> None:
        if (queued := self._arrivals.pop(ref, None)) is not None:
            self.get(queued.agent_id).count_in_rows(-1)

    def _update(self, queue: FairQueue) -> None:
        """Set the queue's event if its next task is in memory; read the task if it is not."""
        lane = queue.next_lane()
        if lane is not None and lane.entries:
            queue.arrived.set()
            return
        queue.arrived.clear()
        if lane is not None:
            self._read_if_low(queue, lane)

    def _announce(self, queue: FairQueue) -> None:
        self._update(queue)
        if queue.is_in_process:
            self._on_ready(queue.agent_id)
