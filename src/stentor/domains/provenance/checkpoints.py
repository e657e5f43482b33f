"""Signed checkpoints: made, stored, handed out to those who keep them elsewhere.

Fails closed: a tree that does not extend the newest checkpoint, stored or kept outside the database, is never signed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import RunLogDamaged, StentorError, StoreUnavailable
from stentor.domains.provenance import store
from stentor.domains.provenance.signed_note import NoteSigner
from stentor.domains.provenance.signing_guard import SigningGuard
from stentor.domains.provenance.store import VERIFY_HINT, StoredCheckpoint

log = logging.getLogger(__name__)
T = TypeVar("T")

CheckpointSink = Callable[[StoredCheckpoint], Awaitable[None]]
"""Takes each new checkpoint, once, after it is stored. What it raises is reported and undoes nothing."""


class CheckpointPublisher:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        signer: Callable[[], NoteSigner],
        sinks: Iterable[CheckpointSink] = (),
        guard: SigningGuard | None = None,
    ) -> None:
        """With a guard it is the guard that has the key, and `signer` is not asked."""
        self.sinks = list(sinks)
        self.problem: str | None = None
        """Why nothing is signed; None while all is well."""
        self.delivery_problem: str | None = None
        """Why the newest checkpoint did not get out; None when it did."""
        self._db = db
        self._clock = clock
        self._signer = signer
        self._guard = guard

    async def check(self) -> None:
        """Hold the tree against what is kept outside, and set `problem`. Raises StartRefused for an unusable key."""
        try:
            await self._admitted()
        except StoreUnavailable:
            return  # the first signing asks again
        except RunLogDamaged:
            return

    async def publish(self) -> StoredCheckpoint:
        """The checkpoint of the tree as it is: a new one, or the stored one of that size. Raises RunLogDamaged."""
        signer = await self._admitted()
        last, size, root = await self._reported(self._db.read(_head))
        if last is not None and last.size == size:
            return last
        note = signer.sign(size, root)
        if self._guard is not None:
            # Before it gets out: what others hold must never be more than what this machine remembers.
            await self._reported(self._guard.save_checkpoint(note))
        made = StoredCheckpoint(size, root.hex(), note, self._clock.now())
        if await self._db.write(lambda tx: store.insert_checkpoint(tx, made)):
            await self.deliver(made)
        return made

    async def _admitted(self) -> NoteSigner:
        if self._guard is None:
            return self._signer()
        signer, accepted = await self._reported(self._guard.authorize_signing())
        if accepted is not None:
            made = msgspec.structs.replace(accepted, made_at=self._clock.now())
            await self._db.write(lambda tx: store.insert_checkpoint(tx, made))
            await self.deliver(made)
            await self._guard.finish_acceptance()
        self._say(None)
        return signer

    async def _reported(self, work: Awaitable[T]) -> T:
        """Keep in `problem` why the tree is not signed. An outage of the database is no such reason."""
        try:
            return await work
        except StoreUnavailable:
            raise
        except StentorError as error:
            self._say(error.message)
            raise

    def _say(self, problem: str | None) -> None:
        """In the log when it changes."""
        if problem is not None and problem != self.problem:
            log.error("checkpoints of the run log are not signed: %s", problem)
        elif problem is None and self.problem is not None:
            log.warning("checkpoints of the run log are signed again")
        self.problem = problem

    async def deliver(self, made: StoredCheckpoint) -> None:
        """Hand it to all outlets; what one fails with is kept in `undelivered`."""
        self.delivery_problem = None
        for outlet in self.sinks:
            try:
                await outlet(made)
            except Exception as error:
                log.exception("the checkpoint of size %d did not get out", made.size)
                self.delivery_problem = f"the newest checkpoint did not get out ({type(error).__name__})"


def _head(tx: Tx) -> tuple[StoredCheckpoint | None, int, bytes]:
    last, size = store.newest_checkpoint(tx), store.read_frontier(tx).size
    if last is not None and (last.size > size or store.root_at(tx, last.size).hex() != last.root):
        raise RunLogDamaged(f"The run log does not extend its checkpoint of size {last.size}. {VERIFY_HINT}")
    return last, size, store.root_at(tx, size)


def file_sink(path: Path) -> CheckpointSink:
    """Appends each note to a file, durably, with a blank line behind it."""

    def append(note: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{note}\n")
            file.flush()
            os.fsync(file.fileno())

    async def outlet(checkpoint: StoredCheckpoint) -> None:
        await asyncio.to_thread(append, checkpoint.note)

    return outlet
