"""The sequencer: number events in the Merkle tree in batches, shortly after they were written.

The writer of events adds pending entries with their hashes in the same transaction, so events that are committed late
with older ids are found too. One transaction writes leaves and tiles and deletes the pending entries.
The elected leader does this; the primary key of the leaves prevents duplicate numbers even if two processes lead.
Fails open: a problem is reported in the log and in health, and the service continues to write events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.db.locks.leader import LeaderElection
from stentor.core.errors import RunLogDamaged, ServiceUnavailable, StentorError, StoreUnavailable
from stentor.core.timers import sleep_until_tick, wait_until_tick
from stentor.domains.provenance import store
from stentor.domains.provenance.merkle import TreeFrontier
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher
from stentor.domains.provenance.store import NumberingConflict

BATCH_SIZE = 128
"""Maximum number of pending entries in one transaction. An entry has up to `runlog.ENTRY_EVENTS` events; 1,024 events
occupy the database's writer for about 5 ms.
"""
POLL_SECONDS = 1.0
"""How often the leader checks for events that other processes wrote."""
DRAIN_POLL_SECONDS = 0.1
"""How often a process that waits for the leader checks whether it has numbered."""
LEADER_CHECK_SECONDS = 5.0
"""How often the other processes check whether they became the leader."""
SIGN_RETRY_US = 2 * SECOND
"""How soon signing is retried while it is blocked: an operator may have repaired or accepted the run log."""
log = logging.getLogger(__name__)

NumberedBatch = tuple[TreeFrontier, TreeFrontier, list[tuple[str, bytes]], int, list[tuple[int, int, bytes]]]
"""The frontier before and after, the events with their hashes and in how many entries, and the tiles that change."""


class Sequencer:
    """Numbers events and publishes checkpoints at an interval; both intervals are in seconds."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        leader: LeaderElection,
        checkpoints: CheckpointPublisher,
        interval: float,
        checkpoint_interval: float,
    ) -> None:
        self.problem: str | None = None
        """Why numbering is blocked; None while it is not."""
        self._db = db
        self._clock = clock
        self._leader = leader
        self._checkpoints = checkpoints
        self._interval = interval
        self._checkpoint_interval = int(checkpoint_interval * SECOND)
        self._has_more = False
        """Whether the last batch was full, so that more events are pending."""
        self._frontier: TreeFrontier | None = None
        """The right edge of the stored tree; None when unknown or when another process numbers."""
        self._last_signed: tuple[int, int] | None = None
        """Size and time (microseconds) of the last attempt to sign or to check."""
        # `drain` and the loop use the same frontier, so only one of them may number.
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Number events until the task is cancelled."""
        while True:
            commits = self._db.commits
            await self.run_once()
            if not self._has_more:
                await self._sleep(commits)

    async def run_once(self) -> int:
        """Number one batch, publish a checkpoint when one is due, and return the number of events. Never raises."""
        self._has_more = False
        try:
            count = await self.number_batch()
            if not self._has_more:  # a backlog first: one checkpoint then covers all of it
                await self._checkpoint_when_due()
            self._set_problem(None)
        except StoreUnavailable as error:
            self.problem = error.message  # the database has logged it already
            return 0
        except StentorError as error:
            self._set_problem(error.message)
            return 0
        except Exception as error:
            self._frontier = None
            if self.problem is None:
                log.exception("sequencer: failed unexpectedly")
            self.problem = f"it failed ({type(error).__name__})"
            return 0
        return count

    async def drain(self, wait_seconds: float = 0) -> None:
        """Number the events that are pending now. Raises StentorError.

        While another process is the leader, wait for it, at most `wait_seconds`: then ServiceUnavailable is raised, or
        nothing is if it is 0.
        """
        until = time.monotonic() + wait_seconds
        last = await self._db.read(store.find_last_waiting)
        # Does not wait until none is pending: others may write as fast as events are numbered.
        while last is not None and await self._db.read(partial(store.is_waiting, event_id=last)):
            if await self.number_batch():
                continue
            if self._leader.was_leader or not wait_seconds:
                return  # as the leader: an entry without its event, which the verification names
            if time.monotonic() >= until:
                raise ServiceUnavailable(
                    f"Another process numbers the events and did not finish within {wait_seconds:g} seconds. Try again."
                )
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def number_batch(self) -> int:
        """Number one batch; 0 when no event is pending or another process is the leader. Raises StentorError."""
        async with self._lock:
            if not await self._leader.is_leader():
                self._frontier = None
                return 0
            return await self._number()

    async def _number(self) -> int:
        frontier, dialect = self._frontier, self._db.driver.name

        def plan(tx: Tx) -> NumberedBatch:
            before = frontier or store.read_frontier(tx)
            batch, entries = store.list_waiting(tx, dialect, BATCH_SIZE)
            after, tiles = before.append([leaf for _, leaf in batch])
            return before, after, batch, entries, tiles

        # Hash in a read, so that the write transaction only inserts; append_leaves checks that the size is the same.
        before, after, batch, entries, tiles = await self._db.read(plan)
        self._frontier = None  # until the commit is known
        if batch:
            try:
                await self._db.write(
                    lambda tx: store.append_leaves(tx, before.size, batch, entries, tiles),
                    (locks.RUN_LOG_NUMBERS_LOCK,),
                )
            except NumberingConflict:
                return 1  # not 0, so that drain() tries again
        self._frontier, self._has_more = after, entries == BATCH_SIZE
        return len(batch)

    async def _checkpoint_when_due(self) -> None:
        """Publish on the leader; check on the others, so that each machine stores the newest checkpoint."""
        now, size = self._clock.now(), self._frontier.size if self._frontier else None
        if self._last_signed is None:
            last = await self._db.read(store.newest_checkpoint)
            self._last_signed = (last.size, last.made_at) if last else (0, 0)
        signed_size, signed_at = self._last_signed
        # A time in the future was written by a clock that was ahead, and is not a reason to wait until then.
        due = not 0 <= now - signed_at < self._checkpoint_interval
        has_problem = self._checkpoints.problem is not None or self._checkpoints.delivery_problem is not None
        retry_due = has_problem and not 0 <= now - signed_at < SIGN_RETRY_US
        if size is None and (due or retry_due):
            # Before the work: if it fails, the next try is an interval away and not in every round.
            self._last_signed = (signed_size, now)
            await self._checkpoints.check()
        elif size is not None and (retry_due or (due and size > signed_size)):
            self._last_signed = (size, now)
            with suppress(RunLogDamaged):  # the publisher reports it; numbering continues
                await self._checkpoints.publish()

    async def _sleep(self, commits: int) -> None:
        """Sleep until this process writes (`commits` changes) or a poll finds pending events of other processes."""
        if not self._leader.was_leader:
            await sleep_until_tick(LEADER_CHECK_SECONDS)
            return
        # The loop must return even without events, to renew or to lose its leadership.
        until = time.monotonic() + LEADER_CHECK_SECONDS
        while self._db.commits == commits and time.monotonic() < until:
            self._db.write_event.clear()
            await wait_until_tick(self._db.write_event, POLL_SECONDS)
            if self._db.commits == commits and await self._has_pending_events():
                return
        await asyncio.sleep(self._interval)  # collects more events for the next batch

    async def _has_pending_events(self) -> bool:
        try:
            return await self._db.poll(store.has_waiting)
        except Exception:  # noqa: BLE001 - run_once meets the same error and reports it
            return True

    def _set_problem(self, problem: str | None) -> None:
        """Set `problem` and log when it changes."""
        if problem != self.problem and problem is not None:
            log.error("sequencer: blocked reason=%s", problem)
        elif problem is None and self.problem is not None:
            log.warning("sequencer: recovered")
        self.problem = problem
