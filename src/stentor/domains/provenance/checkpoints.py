"""Signed checkpoints: made, stored, handed out to those who keep them elsewhere.

Fails closed: a tree that does not extend the newest checkpoint is never signed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import RunLogDamaged
from stentor.domains.provenance import store
from stentor.domains.provenance.notes import Signer
from stentor.domains.provenance.store import LOOK, Stored

log = logging.getLogger(__name__)

Outlet = Callable[[Stored], Awaitable[None]]
"""Takes each new checkpoint, once, after it is stored. What it raises is reported and undoes nothing."""


class Checkpoints:
    def __init__(
        self, db: Database, clock: Clock, signer: Callable[[], Signer], outlets: Iterable[Outlet] = ()
    ) -> None:
        self.outlets = list(outlets)
        self.undelivered: str | None = None
        """Why the newest checkpoint did not get out; None when it did."""
        self._db = db
        self._clock = clock
        self._signer = signer

    async def publish(self) -> Stored:
        """The checkpoint of the tree as it is: a new one, or the stored one of that size. Raises RunLogDamaged."""
        last, size, root = await self._db.read(_head)
        if last is not None and last.size == size:
            return last
        note = self._signer().sign(size, root)
        made = Stored(size, root.hex(), note, self._clock.now())
        if await self._db.write(lambda tx: store.put_checkpoint(tx, made)):
            await self._deliver(made)
        return made

    async def _deliver(self, made: Stored) -> None:
        self.undelivered = None
        for outlet in self.outlets:
            try:
                await outlet(made)
            except Exception as error:
                log.exception("the checkpoint of size %d did not get out", made.size)
                self.undelivered = f"the newest checkpoint did not get out ({type(error).__name__})"


def _head(tx: Tx) -> tuple[Stored | None, int, bytes]:
    last, size = store.newest_checkpoint(tx), store.edge(tx).size
    if last is not None and (last.size > size or store.root_at(tx, last.size).hex() != last.root):
        raise RunLogDamaged(f"The run log does not extend its checkpoint of size {last.size}. {LOOK}")
    return last, size, store.root_at(tx, size)


def to_file(path: Path) -> Outlet:
    """Appends each note to a file, durably, with a blank line behind it."""

    def append(note: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{note}\n")
            file.flush()
            os.fsync(file.fileno())

    async def outlet(checkpoint: Stored) -> None:
        await asyncio.to_thread(append, checkpoint.note)

    return outlet
