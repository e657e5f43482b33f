"""Ends the waits of tasks whose time is over, and those for children that have ended.

Each process looks once a second, and at once when a task ends in it while any task waits for a child. The rows decide:
of two processes only one ends a wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import StoreUnavailable
from stentor.core.live import TERMINAL_EVENTS, Hub
from stentor.core.timers import wait_until_tick
from stentor.domains.steps import store
from stentor.domains.steps.wait_endings import BATCH_SIZE, WaitEndings

INTERVAL_SECONDS = 1.0
log = logging.getLogger(__name__)


class WaitScheduler:
    """Background job that ends waits."""

    def __init__(self, db: Database, endings: WaitEndings, hub: Hub) -> None:
        self._db, self._endings = db, endings
        self._ended = asyncio.Event()
        self._has_children = False
        hub.listeners.append(self._note_end)

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        while True:
            await wait_until_tick(self._ended, INTERVAL_SECONDS)
            self._ended.clear()
            try:
                await self.tick()
            except StoreUnavailable:
                continue  # the database logs the outage
            except Exception:
                # Fails open: one failed wait must not stop all later ones.
                log.exception("waits: tick failed")

    async def tick(self) -> None:
        """End everything that is due now."""

        def look(tx: Tx) -> tuple[bool, bool]:
            return store.has_due(tx), store.has_open_children(tx)

        is_due, self._has_children = await self._db.poll(look)
        if is_due:
            await self._end_all(self._endings.end_due)
        if self._has_children:
            await self._end_all(self._endings.end_children)
            await self._end_all(self._endings.cancel_children)

    async def _end_all(self, end: Callable[[Tx], int]) -> None:
        while await self._db.write(end, NO_LOCKS) == BATCH_SIZE:
            pass

    def _note_end(self, tenant: str, task_id: str, events: list[Any]) -> None:
        if self._has_children and any(event.event_type in TERMINAL_EVENTS for event in events):
            self._ended.set()
