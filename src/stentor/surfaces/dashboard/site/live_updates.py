"""Notifies open pages of changes: at most one message per second and page, with the topics that changed.

Polls the run log once a second for all readers together, and only while there are readers. Polling the database also
sees the changes of other processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Set
from contextlib import suppress

from stentor.core import ids, runlog_queries
from stentor.core.clock import SECOND
from stentor.core.db import Database
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog_queries import NewEvent
from stentor.web.sse import SseEvent

POLL_SECONDS = 1.0
CLOCK_SKEW_US = 2 * SECOND
"""Ids are created before their rows are committed, and process clocks differ: readers look back this much."""
LOOKBACK_MS = CLOCK_SKEW_US // 1_000 + int(POLL_SECONDS * 1_000)
"""How much older than the newest id one may be that the poll finds for the first time."""
TOPIC_BY_PREFIX = {
    "agent": "agents",
    "violation": "agents",
    "trust": "agents",
    "learning": "agents",
    "connection": "agents",
    "sentinel": "agents",
    "alert": "alerts",
    "message": "messages",
    "memory": "memory",
    "webhook": "webhooks",
    "update": "governance",
    "checkpoint": "governance",
    "checkpoints": "governance",
    "rollback": "governance",
    "provider": "models",
    "llm": "models",
}
"""Topics by the first word of the event type; all other events belong to the topic `tasks`."""
log = logging.getLogger(__name__)


class LiveUpdates:
    """The readers, and the poll of the run log that they share."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._readers: dict[asyncio.Event, tuple[str, set[str]]] = {}
        self._poll_task: asyncio.Task[None] | None = None

    async def stream_changes(self, tenant: str, since: str) -> AsyncIterator[SseEvent]:
        """Yield `change` events with the topics that changed; the first one covers the time since an event id and may
        be empty.
        """
        wakeup: asyncio.Event = asyncio.Event()
        pending: set[str] = set()
        # Register before the first read: a change between the two is then reported twice, never lost.
        self._readers[wakeup] = (tenant, pending)
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll_while_read(since))
        try:
            yield SseEvent("change", {"topics": sorted(await self._topics_since(tenant, since))})
            while True:
                await wakeup.wait()
                wakeup.clear()
                topics = sorted(pending)
                pending.clear()
                yield SseEvent("change", {"topics": topics})
        finally:
            del self._readers[wakeup]

    async def close(self) -> None:
        if self._poll_task is not None:
            self._poll_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._poll_task

    async def _topics_since(self, tenant: str, since: str) -> set[str]:
        try:
            return topics_of(await self._db.read(lambda tx: runlog_queries.list_events_after(tx, since)), tenant)
        except StoreUnavailable as error:
            log.warning("live_updates: poll failed error=%s", error)
            return set()

    async def _poll_while_read(self, after: str) -> None:
        known: Set[str] = frozenset()
        while self._readers:
            try:
                after, known = await self._poll(after, known)
            except Exception as error:  # noqa: BLE001 - `after` is unchanged, so the next poll reports what this one missed
                log.warning("live_updates: poll failed error=%s", error)
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self, after: str, known: Set[str]) -> tuple[str, Set[str]]:
        """Report the events after an id except the known ones. Return both for the next poll."""
        # Of all tenants at once: one query serves every open page.
        events = await self._db.read(lambda tx: runlog_queries.list_events_after(tx, after))
        changes = [event for event in events if event.event_id not in known]
        for wakeup, (tenant, pending) in self._readers.items():
            if topics := topics_of(changes, tenant):
                # A set, so that a slow reader gets one message about many changes.
                pending |= topics
                wakeup.set()
        if not events:
            return after, known
        last = events[-1].event_id
        # A full page is only the beginning of what is new, so the next poll continues from its end.
        is_full = len(events) >= runlog_queries.MAX_NEW_EVENTS
        next_after = last if is_full else max(after, ids.rewind(last, LOOKBACK_MS))
        return next_after, {event.event_id for event in events}


def topics_of(changes: Iterable[NewEvent], tenant: str) -> set[str]:
    return {topic_of(change) for change in changes if change.tenant == tenant}


def topic_of(change: NewEvent) -> str:
    return TOPIC_BY_PREFIX.get(change.event_type.partition("_")[0], "tasks")
