"""One process at a time: a lock of the database, held by a connection of its own for as long as that lasts.

The lock goes with its connection: when a process dies, the server hands its jobs to another one. A database that is
not shared has one process, which always leads. For a moment after a connection broke two may lead, so what is done
under a lead must bear to be done twice: the lead saves work, it does not make it correct.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from stentor.core.db.driver import DbConnection, Driver, Sql
from stentor.core.errors import StoreUnavailable
from stentor.core.timers import sleep_until_tick

SEQUENCER_LOCK_ID, VAULT_LOCK_ID, INDEX_LOCK_ID = 7305001, 7305002, 7305003
"""Numbers of the locks: of the run log's numbers, of all that follows the vault, of writes to the search index."""
POLL_SECONDS = 1.0
"""Between two looks whether the lead is free, or still held."""
QUERY_TIMEOUT_SECONDS = 5.0
"""For an answer of the database, after which the lead counts as lost."""
log = logging.getLogger(__name__)

_TRY = Sql("select pg_try_advisory_lock(:lock)")
_STILL = Sql("select 1")
# The server is to notice within about ten seconds that a machine is gone, and not after two hours.
_NOTICE = Sql(
    """select set_config('tcp_keepalives_idle', '4', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false)"""
)


class LeaderElection:
    """The lead of one job, which `job` names for the log. `every` in seconds."""

    def __init__(self, driver: Driver, lock: int, job: str, poll_seconds: float = POLL_SECONDS) -> None:
        self._driver = driver
        self._lock = lock
        self._job = job
        self._every = poll_seconds
        self._asking = asyncio.Lock()
        self._connection: DbConnection | None = None
        self._asked = -poll_seconds
        self.was_leader = not driver.shared
        """Whether this process led when it last looked."""

    async def is_leader(self) -> bool:
        """Whether this process leads; it takes the lead when nobody has it. A lead that was there a moment ago counts.
        Fails closed: an outage is no lead.
        """
        if not self._driver.shared:
            return True
        async with self._asking:
            before, now = self.was_leader, time.monotonic()
            if before and now < self._asked + self._every:
                return True
            self._asked = now
            try:
                async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
                    self.was_leader = await asyncio.to_thread(self._ask, self.was_leader)
            except (StoreUnavailable, TimeoutError):
                self._connection, self.was_leader = None, False
            if self.was_leader != before:
                log.debug("%s: this process %s", self._job, "leads" if self.was_leader else "leads no longer")
        return self.was_leader

    def _ask(self, held: bool) -> bool:
        connection = self._connection
        if connection is None:
            connection, held = self._driver.reader(), False
            connection.rows(_NOTICE, {})
            self._connection = connection
        try:
            return bool(connection.rows(_STILL if held else _TRY, {"lock": self._lock})[0][0])
        except StoreUnavailable:
            connection.close()
            raise

    async def run_while_leader(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work whenever this process leads, for ever; it is cancelled when the lead is lost."""
        if not self._driver.shared:
            await work()
            return
        while True:
            if await self.is_leader():
                await self._lead(work)
            await sleep_until_tick(self._every)

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(work())
        try:
            while not task.done() and await self.is_leader():
                await asyncio.wait([task], timeout=self._every)
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            log.error("%s: the work failed and is begun anew", self._job, exc_info=ended)

    async def close(self) -> None:
        """Give the lead away."""
        async with self._asking:
            connection, self._connection = self._connection, None
            self.was_leader = not self._driver.shared
            if connection is not None:
                await asyncio.to_thread(connection.close)
