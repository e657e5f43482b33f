"""Stores the model usage of each day, so that a report over months does not read every call."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from stentor.core.db import NO_LOCKS, Database
from stentor.core.db.locks.leader import LeaderElection
from stentor.domains.llm.usage import store as usage_store

INTERVAL_SECONDS = 60.0


class UsageTotals:
    """Adds calls to the stored sums soon after they end. A report adds those that are not in them yet itself."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, leader: LeaderElection) -> None:
        """Add the usage of all tenants forever, while this process is the leader."""
        await leader.tick_while_leader("model usage", INTERVAL_SECONDS, self.add_all)

    async def add_all(self) -> None:
        """Add the calls of all tenants that ended before `usage_store.MARGIN`, one day in each transaction."""
        for tenant in await self._db.read(lambda tx: list(usage_store.iter_tenants(tx))):
            while True:
                started = time.monotonic()
                usage = await self._db.read(partial(usage_store.read_new_usage, tenant=tenant))
                if usage is None:
                    break
                await self._db.write(partial(usage_store.add_usage, tenant=tenant, usage=usage), NO_LOCKS)
                # As long as the work took: years of calls are read at the first start after an upgrade.
                await asyncio.sleep(time.monotonic() - started)
