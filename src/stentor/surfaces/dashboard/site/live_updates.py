"""Tells open pages that something changed: at most one message a second and page, however much happens.

One look at the run log a second, shared by all readers and made only while there are some; so it sees what any process
on the same database does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from stentor.core import runlog_queries
from stentor.core.db import Database
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog_queries import EventCount
from stentor.web.sse import SseEvent

POLL_SECONDS = 1.0
"""Seconds."""
TOPIC_BY_PREFIX = {
    "agent": "agents",
    "violation": "agents",
    "trust": "agents",
    "learning": "agents",
    "connection": "agents",
    "sentinel": "agents",
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
"""The first word of an event's type to what it is about; every other event is about tasks."""
log = logging.getLogger(__name__)


class LiveUpdates:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._readers: dict[asyncio.Event, tuple[str, set[str]]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def stream_changes(self, tenant: str, since: str) -> AsyncIterator[SseEvent]:
        """`change` with the topics that had events since the last one; the first, which may be empty, since an id."""
        woken: asyncio.Event = asyncio.Event()
        waiting: set[str] = set()
        self._readers[woken] = (tenant, waiting)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(since))
        try:
            yield SseEvent("change", {"topics": sorted(await self._before(tenant, since))})
            while True:
                await woken.wait()
                woken.clear()
                found = sorted(waiting)
                waiting.clear()
                yield SseEvent("change", {"topics": found})
        finally:
            del self._readers[woken]

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _before(self, tenant: str, since: str) -> set[str]:
        """What a reader who comes now has not heard of; what comes from now on it is told."""
        try:
            return topics_of(await self._db.read(lambda tx: runlog_queries.count_events_after(tx, since)), tenant)
        except StoreUnavailable as error:
            log.warning("what is new cannot be read: %s", error)
            return set()

    async def _watch(self, last: str) -> None:
        while self._readers:
            try:
                last = await self._look(last)
            except Exception as error:  # noqa: BLE001 - the store is out: readers keep what they have, and the next look tells
                log.warning("what is new cannot be read: %s", error)
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, last: str) -> str:
        changes = await self._db.read(lambda tx: runlog_queries.count_events_after(tx, last))
        for woken, (tenant, waiting) in self._readers.items():
            if found := topics_of(changes, tenant):
                waiting |= found
                woken.set()
        return max((change.last_event_id for change in changes), default=last)


def topics_of(changes: Iterable[EventCount], tenant: str) -> set[str]:
    return {topic_of(change) for change in changes if change.tenant == tenant}


def topic_of(change: EventCount) -> str:
    return TOPIC_BY_PREFIX.get(change.event_type.partition("_")[0], "tasks")
