"""Leader election: one process runs a job, elected by an advisory lock on the connection of `session.py`.

The server frees the lock when the connection ends, so another process takes over the jobs of one that died. A database
that is not shared has one process, which is always the leader. After a lost connection there can be two leaders for a
moment, so every job must be safe to run twice: leadership saves work, it does not guarantee correctness.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from stentor.core.db.driver import Driver
from stentor.core.db.locks.session import LockSession
from stentor.core.errors import StoreUnavailable
from stentor.core.timers import AsyncJob, sleep_until_tick, tick_forever

SEQUENCER_LOCK_ID, VAULT_LOCK_ID, INDEX_LOCK_ID, JOBS_LOCK_ID, ARCHIVE_LOCK_ID = range(7305001, 7305006)
"""Advisory locks of the jobs: numbering run log events, mirroring the vault, writing the index of notes, the alerts
together with the index of tasks, and archiving tasks."""
POLL_SECONDS = 1.0
"""Interval for checking whether the lock is free, or still held."""
QUERY_TIMEOUT_SECONDS = 5.0
"""Time for the database to respond; after it, leadership counts as lost."""
log = logging.getLogger(__name__)


class LeaderElection:
    """Leadership of one job; `job` is its name in the log."""

    def __init__(self, driver: Driver, lock: int, job: str, poll_seconds: float = POLL_SECONDS) -> None:
        self._driver = driver
        self._lock = lock
        self._job = job
        self._poll_seconds = poll_seconds
        self._query_lock = asyncio.Lock()
        self._session: LockSession | None = None
        """The session that this job used last."""
        self._is_closed = False
        self._queried_at = -poll_seconds
        self.was_leader = not driver.shared
        """Whether this process was the leader at the last check."""

    async def is_leader(self) -> bool:
        """Return whether this process is the leader; it becomes the leader if the lock is free.

        A result of up to `poll_seconds` ago counts. Fails closed: without the database there is no leader. A process
        that has resigned stays out.
        """
        if not self._driver.shared:
            return True
        if self._is_closed:
            return False
        async with self._query_lock:
            before, now = self.was_leader, time.monotonic()
            if before and now < self._queried_at + self._poll_seconds:
                return True
            self._queried_at = now
            try:
                async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
                    self.was_leader = await asyncio.to_thread(self._query)
            except (StoreUnavailable, TimeoutError):
                if self._session is not None:
                    self._session.abandon()
                self.was_leader = False
            if self.was_leader != before:
                log.debug("leader: %s job=%s", "elected" if self.was_leader else "lost", self._job)
        return self.was_leader

    def _query(self) -> bool:
        session = self._session = self._driver.lock_session()
        is_held = session.hold(self, self._lock)
        # A cancelled query continues in this thread. After `close` nothing else would release the lock.
        if self._is_closed:
            session.leave(self, self._lock)
        return is_held and not self._is_closed

    async def run_while_leader(self, work: AsyncJob) -> None:
        """Run the job whenever this process is the leader; cancel it when leadership is lost. Does not return.

        A job that fails is logged and started again.
        """
        while True:
            if await self.is_leader():
                await self._run_as_leader(work)
            await sleep_until_tick(self._poll_seconds)

    async def tick_while_leader(self, job: str, seconds: float, tick: Callable[[], Awaitable[object]]) -> None:
        """Call `tick` every `seconds` if this process is the leader, like `tick_forever`. Does not return."""

        async def tick_if_leader() -> None:
            if await self.is_leader():
                await tick()

        await tick_forever(job, partial(sleep_until_tick, seconds), tick_if_leader)

    async def _run_as_leader(self, work: AsyncJob) -> None:
        task = asyncio.create_task(work())
        timeout = self._poll_seconds if self._driver.shared else None
        try:
            while not task.done() and await self.is_leader():
                await asyncio.wait([task], timeout=timeout)
        finally:
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, Exception):
            log.error("leader: job failed, restarting job=%s", self._job, exc_info=outcome)

    async def close(self) -> None:
        """Resign for good, so that another process can take over at once."""
        self._is_closed = True
        async with self._query_lock:
            session, self._session = self._session, None
            self.was_leader = not self._driver.shared
            if session is not None:
                await asyncio.to_thread(session.leave, self, self._lock)
