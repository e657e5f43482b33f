"""Carries deployments and rollbacks out in the background, and takes up at the start what an earlier process left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stentor.core.clock import HOUR, SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, StoreUnavailable
from stentor.domains.governance import archive, store
from stentor.domains.governance.checkpoints import Checkpoints
from stentor.domains.governance.deployment import Deployer
from stentor.domains.governance.rollbacks import Rollbacks

AT_ONCE = 100
EXPIRE_EVERY = HOUR
Key = tuple[str, str, str]
log = logging.getLogger(__name__)


class Runner:
    """`wake` may be called from the event loop at any time. A deployment that has not moved for `left_alone`
    microseconds, longer than a probe can take, belongs to nobody.
    """

    def __init__(self, db: Database, clock: Clock, checkpoints: Checkpoints, left_alone: int) -> None:
        self._db = db
        self._clock = clock
        self._checkpoints = checkpoints
        self._left_alone = left_alone
        self._carry: dict[str, Callable[[str, str], Awaitable[None]]] = {}
        self._work = asyncio.Event()
        self._in_hand: dict[Key, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._expired_at = 0
        self._looking = False

    def carries(self, deployer: Deployer, rollbacks: Rollbacks) -> None:
        self._carry = {"deploy": deployer.deploy, "rollback": rollbacks.carry}

    def wake(self) -> None:
        self._work.set()

    async def start(self, *, alone: bool) -> None:
        """`alone`: no other process has this database, so whatever is under way was left by an earlier one."""
        await self._look(0 if alone else self._left_alone)
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What is in hand is taken up by the next process."""
        tasks = [*self._in_hand.values(), *([self._loop] if self._loop else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def busy(self) -> bool:
        """Whether anything is in hand or was asked for."""
        return self._work.is_set() or self._looking or bool(self._in_hand)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._work.wait(), self._left_alone / 2 / SECOND)
            try:
                await self._look(self._left_alone)
                await self._expire()
            except StoreUnavailable:
                continue  # the database says in the log that it is out; the next look finds what is left
            except Exception:
                log.exception("the look for deployments and rollbacks failed")

    async def _look(self, left_alone: int) -> None:
        """Take in hand what is there and not in hand yet."""
        now = self._clock.now()
        self._work.clear()
        self._looking = True

        def read(tx: Tx) -> list[Key]:
            updates: list[Key] = [("deploy", *key) for key in store.to_deploy(tx, now - left_alone, AT_ONCE)]
            return updates + [("rollback", *key) for key in archive.unfinished(tx, AT_ONCE)]

        try:
            for key in await self._db.read(read):
                if key not in self._in_hand:
                    self._in_hand[key] = asyncio.create_task(self._do(key))
        finally:
            self._looking = False

    async def _do(self, key: Key) -> None:
        kind, tenant, record_id = key
        try:
            await self._carry[kind](tenant, record_id)
        except (StoreUnavailable, Conflict):
            pass  # nothing was done, or another process did it; the next look finds what is left
        except Exception:
            log.exception("%s of %s failed", kind, record_id)
        finally:
            self._in_hand.pop(key, None)

    async def _expire(self) -> None:
        now = self._clock.now()
        if now - self._expired_at >= EXPIRE_EVERY:
            await self._checkpoints.expire(now)
            self._expired_at = now
