"""The single sequencer: gives events their numbers in the Merkle tree, after the fact and in batches.

Who writes an event leaves a mark and the event's hash in the same transaction; so nothing is ever searched for, and
events that are committed late, with older ids, are found like all others. Numbers, leaves and tiles are written and
the marks taken away in one transaction. Of several processes the one that leads does it; the primary key of the
numbers holds even without that. Fails open: when it cannot go on, it says so, and the service writes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx, locks
from stentor.core.db.leader import LeaderElection
from stentor.core.errors import RunLogDamaged, StentorError, StoreUnavailable
from stentor.core.timers import sleep_until_tick, wait_until_tick
from stentor.domains.provenance import store
from stentor.domains.provenance.checkpoints import CheckpointPublisher
from stentor.domains.provenance.merkle import TreeFrontier
from stentor.domains.provenance.store import NumberingConflict

BATCH_SIZE = 1024
"""Events of one transaction at most: about 5 ms of the writer's time."""
POLL_SECONDS = 1.0
"""How often the process that numbers looks for what others wrote."""
LEADER_CHECK_SECONDS = 5.0
"""How often a process that does not number asks whether it should."""
SIGN_RETRY_US = 2 * SECOND
"""After a refusal to sign: a person may have mended or accepted what was in the way."""
log = logging.getLogger(__name__)

NumberedBatch = tuple[TreeFrontier, TreeFrontier, list[tuple[str, bytes]], list[tuple[int, int, bytes]]]
"""The edge before and after, the events with their hashes, the tiles that change."""


class Sequencer:
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
        """Why it does not go on; None while it does."""
        self._db = db
        self._clock = clock
        self._leader = leader
        self._checkpoints = checkpoints
        self._interval = interval
        self._checkpoint_interval = int(checkpoint_interval * SECOND)
        self._edge: TreeFrontier | None = None
        self._signed: tuple[int, int] | None = None
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """For ever, until it is cancelled."""
        while True:
            seen = self._db.commits
            if await self.run_once() < BATCH_SIZE:
                await self._rest(seen)

    async def run_once(self) -> int:
        """One batch, and a checkpoint when one is due; answers how many events. Never raises."""
        try:
            done = await self.number_batch()
            if done < BATCH_SIZE:
                await self._checkpoint_when_due()
            self._say(None)
        except StoreUnavailable as error:
            self.problem = error.message  # the log says it already
            return 0
        except StentorError as error:
            self._say(error.message)
            return 0
        except Exception as error:
            self._edge = None
            if self.problem is None:
                log.exception("the sequencer of the run log failed")
            self.problem = f"it failed ({type(error).__name__})"
            return 0
        return done

    async def _rest(self, seen: int) -> None:
        """Until something is written here, and for the interval then; what others write is looked for now and then."""
        if not self._leader.was_leader:
            await sleep_until_tick(LEADER_CHECK_SECONDS)
            return
        until = time.monotonic() + LEADER_CHECK_SECONDS
        while self._db.commits == seen and time.monotonic() < until:
            self._db.write_event.clear()
            await wait_until_tick(self._db.write_event, POLL_SECONDS)
            if self._db.commits == seen and await self._some_wait():
                return
        await asyncio.sleep(self._interval)

    async def _some_wait(self) -> bool:
        try:
            return await self._db.poll(store.has_waiting)
        except Exception:  # noqa: BLE001 - the next turn meets it too, and says so
            return True

    async def drain(self) -> None:
        """Until nothing waits, or another process does the work. Raises StentorError."""
        while await self.number_batch():
            pass

    async def number_batch(self) -> int:
        """Number one batch; 0 when nothing waits or another process numbers. Raises StentorError."""
        async with self._lock:
            if not await self._leader.is_leader():
                self._edge = None
                return 0
            return await self._number()

    async def _number(self) -> int:
        known, dialect = self._edge, self._db.driver.name

        def plan(tx: Tx) -> NumberedBatch:
            before = known or store.read_frontier(tx)
            batch = store.list_waiting(tx, dialect, BATCH_SIZE)
            after, tiles = before.append([leaf for _, leaf in batch])
            return before, after, batch, tiles

        before, after, batch, tiles = await self._db.read(plan)
        self._edge = None  # until the commit is known
        if batch:
            try:
                await self._db.write(
                    lambda tx: store.append_leaves(tx, before.size, batch, tiles), (locks.RUN_LOG_NUMBERS_LOCK,)
                )
            except NumberingConflict:
                return 1  # look again
        self._edge = after
        return len(batch)

    async def _checkpoint_when_due(self) -> None:
        """The process that numbers signs. The others look on, so that each machine knows the newest checkpoint."""
        now, size = self._clock.now(), self._edge.size if self._edge else None
        if self._signed is None:
            last = await self._db.read(store.newest_checkpoint)
            self._signed = (last.size, last.made_at) if last else (0, 0)
        signed, at = self._signed
        due = now - at >= self._checkpoint_interval
        refused = self._checkpoints.problem is not None and now - at >= SIGN_RETRY_US
        if size is None and (due or refused):
            self._signed = (signed, now)
            await self._checkpoints.check()
        elif size is not None and (refused or (due and size > signed)):
            self._signed = (size, now)
            with suppress(RunLogDamaged):  # the checkpoints say so themselves, and numbers go on
                await self._checkpoints.publish()

    def _say(self, problem: str | None) -> None:
        """In the log when it changes."""
        if problem != self.problem and problem is not None:
            log.error("events of the run log get no numbers: %s", problem)
        elif problem is None and self.problem is not None:
            log.warning("events of the run log get numbers again")
        self.problem = problem
