"""Renews the leases of the attempts that run in this process.

A job of its own: repairs of the reconciler may take longer than a lease, and it ends before the running tasks are
drained, while an attempt that may still end needs its lease until then.
"""

from __future__ import annotations

import asyncio

from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.timers import tick_forever
from stentor.domains.execution.dispatcher import Dispatcher
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.tasks import store
from stentor.domains.tasks.model import TaskClaim

RENEWALS_PER_LEASE = 3
"""So that one renewal may fail or be late."""


class LeaseRenewer:
    def __init__(self, db: Database, dispatcher: Dispatcher, executor: TaskExecutor) -> None:
        self._db = db
        self._dispatcher = dispatcher
        self._executor = executor

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        seconds = self._executor.lease_us / SECOND / RENEWALS_PER_LEASE
        await tick_forever("lease renewal", lambda: asyncio.sleep(seconds), self.renew)

    async def renew(self) -> None:
        """Renew all leases once, and stop the attempts that have lost theirs."""
        claims = list(self._executor.held_claims.values())

        def work(tx: Tx) -> list[TaskClaim]:
            """Return the claims whose task ended or was claimed again."""
            return [
                c for c in claims if not store.renew_lease(tx, c.tenant, c.task_id, c.epoch, self._executor.lease_us)
            ]

        for claim in await self._db.write(work, NO_LOCKS) if claims else ():
            self._dispatcher.stop(claim.tenant, claim.task_id, claim.epoch)
