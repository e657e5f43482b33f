"""Keeps the search index up to date, and searches.

One process follows the numbered events of the run log, so no change is missed and no commit waits. A task is read when
an event says that it was submitted or has ended; its words are found within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from stentor.core.db import Database, Tx
from stentor.core.db.locks.leader import LeaderElection
from stentor.core.errors import Conflict, StoreUnavailable
from stentor.core.timers import sleep_until_tick
from stentor.domains.provenance import store as numbered_events
from stentor.domains.tasks.reading import list_queries
from stentor.domains.tasks.reading.list_model import TaskFilter, TaskPage, TaskSummary
from stentor.domains.tasks.search.model import Position, TaskIndex, parse_query

EVENTS_PER_BATCH = 1_000
HITS_PER_READ = list_queries.IDS_PER_STATEMENT
MAX_SCANNED = 5_000
"""Matches of the text that one page looks through for those that the other conditions let pass."""
LAST_DOCUMENT = 2**62
INDEXED_EVENTS = frozenset(
    ("prompt_received", "dispatch_denied", "task_completed", "task_failed", "task_aborted", "task_cancelled")
)
log = logging.getLogger(__name__)


class TaskSearch:
    """`index` is None if the search is switched off."""

    def __init__(self, db: Database, index: TaskIndex | None) -> None:
        self._db, self._index = db, index
        self._lock = asyncio.Lock()

    async def run(self, leader: LeaderElection) -> None:
        """Follow the run log forever, while this process is the leader."""
        if self._index is None:
            return
        is_checked = False
        while True:
            await sleep_until_tick()
            try:
                if not await leader.is_leader():
                    continue
                if not is_checked:
                    await self._clear_if_foreign(self._index)
                    is_checked = True
                await self._catch_up()
            except StoreUnavailable:
                continue  # the database logs the outage
            except Exception:
                # Fails open: the search lags behind, and the next tick begins at the same event.
                log.exception("task search: index not updated")

    async def index_batch(self) -> int:
        """Index the tasks of the next events and return how many events there were."""
        async with self._lock:  # of two at once the slower one would put old texts after newer ones
            return await self._index_batch(self._require_index())

    async def _index_batch(self, index: TaskIndex) -> int:
        position = await index.read_position()
        after = -1 if position is None else position.number
        events = await self._db.read(lambda tx: numbered_events.list_numbered(tx, after, EVENTS_PER_BATCH))
        if not events:
            return 0
        order = {(e.tenant, e.task_id): e.number for e in events if e.task_id and e.event_type in INDEXED_EVENTS}
        # The texts as they are now, perhaps newer than these events: the later ones index the same again.
        texts = await self._db.read(lambda tx: list_queries.read_texts(tx, list(order)))
        texts.sort(key=lambda text: order[text.tenant, text.task_id])
        await index.put(texts, Position(events[-1].number, events[-1].event_id))
        return len(events)

    async def list_page(
        self, tenant: str, task_filter: TaskFilter, text: str, before: int | None, limit: int
    ) -> tuple[TaskPage, int | None]:
        """Return the tasks that contain the text and match the filter, the latest indexed first.

        Also returns the position of the next page, None if there is none. Raises InvalidRequest for a text without
        words, Conflict if the search is switched off.
        """
        index, phrases = self._require_index(), parse_query(text)
        # Before the search: what is indexed meanwhile may be found or not.
        unindexed = await self._count_unindexed(index)
        rows: list[TaskSummary] = []
        position, scanned, is_exhausted = LAST_DOCUMENT if before is None else before, 0, False
        while len(rows) < limit and scanned < MAX_SCANNED and not is_exhausted:
            hits = await index.find(tenant, phrases, position, HITS_PER_READ)
            is_exhausted = len(hits) < HITS_PER_READ
            if not hits:
                break
            found = await self._db.read(_reader(tenant, task_filter, [task_id for _, task_id in hits]))
            for doc_id, task_id in hits:
                position, scanned = doc_id, scanned + 1
                if task_id in found:
                    rows.append(found[task_id])
                if len(rows) == limit:
                    # Hits that were read but not looked at are for the next page.
                    is_exhausted = is_exhausted and doc_id == hits[-1][0]
                    break
        is_exact = is_exhausted and before is None
        page = TaskPage(rows, len(rows), not is_exhausted, total_is_exact=is_exact, unindexed_events=unindexed)
        return page, None if is_exhausted else position

    async def _count_unindexed(self, index: TaskIndex) -> int:
        position = await index.read_position()
        last = -1 if position is None else position.number
        return await self._db.read(lambda tx: numbered_events.count_after(tx, last))

    async def close(self) -> None:
        if self._index is not None:
            await self._index.close()

    async def _catch_up(self) -> None:
        while True:
            started = time.monotonic()
            if await self.index_batch() < EVENTS_PER_BATCH:
                return
            # As long as the work took, so that tasks have at least half of a processor.
            await asyncio.sleep(time.monotonic() - started)

    async def _clear_if_foreign(self, index: TaskIndex) -> None:
        """Clear an index that does not belong to this run log, because one of them comes from a backup."""
        position = await index.read_position()
        if position is None:
            return
        if position.event_id != await self._db.read(lambda tx: numbered_events.find_event_id(tx, position.number)):
            log.warning("task search: rebuilding the index, which belongs to another run log")
            await index.clear()

    def _require_index(self) -> TaskIndex:
        if self._index is None:
            raise Conflict("Task search is disabled: set SERVICE_TASK_SEARCH=true and restart the service.")
        return self._index


def _reader(tenant: str, task_filter: TaskFilter, ids: Sequence[str]) -> Callable[[Tx], dict[str, TaskSummary]]:
    return lambda tx: {row.task_id: row for row in list_queries.list_matching(tx, tenant, task_filter, ids)}
