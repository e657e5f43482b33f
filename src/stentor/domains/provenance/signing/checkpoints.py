"""Sign checkpoints of the Merkle tree, store them and deliver them to sinks outside the database.

Fails closed: a tree that does not extend the newest checkpoint, in the database or outside it, is never signed.
`signing_guard` makes that decision, `sequencer` decides when a checkpoint is due.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import RunLogDamaged, StentorError, StoreUnavailable
from stentor.domains.provenance import store
from stentor.domains.provenance.signing.signed_note import NoteSigner
from stentor.domains.provenance.signing.signing_guard import SigningGuard
from stentor.domains.provenance.store import VERIFY_HINT, StoredCheckpoint

log = logging.getLogger(__name__)
T = TypeVar("T")

CheckpointSink = Callable[[StoredCheckpoint], Awaitable[None]]
"""Receives each new checkpoint once, after the commit. An exception is reported; the checkpoint stays stored."""


class CheckpointPublisher:
    """Signs the tree; nothing else does. With a guard the key comes from the guard, and `signer` is not called."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        signer: Callable[[], NoteSigner],
        sinks: Iterable[CheckpointSink] = (),
        guard: SigningGuard | None = None,
    ) -> None:
        self.sinks = list(sinks)
        self.problem: str | None = None
        """Why signing is blocked; None while it is not."""
        self.delivery_problem: str | None = None
        """Why the newest checkpoint was not delivered; None when it was."""
        self._db = db
        self._clock = clock
        self._signer = signer
        self._guard = guard
        # Two at a time could store the older one last, and record an acceptance twice.
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Compare the tree with the state outside the database and set `problem`.

        Raises StartRefused for an unusable key.
        """
        # Called where another process signs, which also delivers.
        self.delivery_problem = None
        # `problem` says what is damaged; after an outage the first signing checks again.
        with suppress(StoreUnavailable, RunLogDamaged):
            async with self._lock:
                await self._authorized_signer()
                self._set_problem(None)

    async def publish(self) -> StoredCheckpoint:
        """Return the checkpoint of the current tree; sign one unless it is stored already. Raises RunLogDamaged."""
        async with self._lock:
            return await self._publish()

    async def _publish(self) -> StoredCheckpoint:
        signer = await self._authorized_signer()
        last, size, root = await self._track_problem(self._db.read(_read_head))
        if last is not None and last.size == size:
            self._set_problem(None)
            if self.delivery_problem is not None:
                await self.deliver(last)
            return last
        note = signer.sign(size, root)
        if self._guard is not None:
            # Before it is delivered: others must never hold a newer checkpoint than this machine remembers.
            await self._track_problem(self._guard.save_checkpoint(note))
        self._set_problem(None)
        checkpoint = StoredCheckpoint(size, root.hex(), note, self._clock.now())
        # False when another process stored a checkpoint of this size first; that process delivers its own.
        if await self._db.write(lambda tx: store.insert_checkpoint(tx, checkpoint)):
            await self.deliver(checkpoint)
        return checkpoint

    async def deliver(self, checkpoint: StoredCheckpoint) -> None:
        """Pass the checkpoint to all sinks and record a failure in `delivery_problem`."""
        previous, self.delivery_problem = self.delivery_problem, None
        for sink in self.sinks:
            try:
                await sink(checkpoint)
            except Exception as error:
                # Fails open: the other sinks still get it.
                if previous is None:
                    log.exception("signed checkpoints: delivery failed size=%d", checkpoint.size)
                self.delivery_problem = f"the newest checkpoint was not delivered ({type(error).__name__})"

    async def _authorized_signer(self) -> NoteSigner:
        if self._guard is None:
            return self._signer()
        signer, accepted = await self._track_problem(self._guard.authorize_signing())
        if accepted is not None:
            checkpoint = msgspec.structs.replace(accepted, made_at=self._clock.now())
            await self._db.write(lambda tx: store.insert_checkpoint(tx, checkpoint))
            await self.deliver(checkpoint)
            # Last: after a crash before the delivery, the acceptance is still needed, because the old note at the
            # end of the checkpoint file blocks signing.
            await self._guard.finish_acceptance()
        return signer

    async def _track_problem(self, work: Awaitable[T]) -> T:
        """Await the work and record in `problem` why it failed, except for an outage of the database."""
        try:
            return await work
        except StoreUnavailable:
            raise
        except StentorError as error:
            self._set_problem(error.message)
            raise

    def _set_problem(self, problem: str | None) -> None:
        """Set `problem` and log when it changes."""
        if problem is not None and problem != self.problem:
            log.error("signed checkpoints: signing blocked reason=%s", problem)
        elif problem is None and self.problem is not None:
            log.warning("signed checkpoints: signing recovered")
        self.problem = problem


def _read_head(tx: Tx) -> tuple[StoredCheckpoint | None, int, bytes]:
    """Return the newest checkpoint, and the size and root of the current tree. Raises RunLogDamaged."""
    last, size = store.newest_checkpoint(tx), store.read_frontier(tx).size
    if last is not None and not store.is_extended(tx, last.size, last.root):
        raise RunLogDamaged(f"The run log does not extend its checkpoint of size {last.size}. {VERIFY_HINT}")
    return last, size, store.root_at(tx, size)


def file_sink(path: Path) -> CheckpointSink:
    """Return a sink that appends each note and a blank line to a file and syncs it to the disk."""

    def append(note: str) -> None:
        # Unbuffered: otherwise closing the file would write the rest of a note that failed.
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            # A crash may have truncated the last note.
            line_break = "" if file.read(1) in (b"", b"\n") else "\n"
            # The blank line separates the notes: a note itself ends with a line break.
            rest = f"{line_break}{note}\n".encode()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    async def sink(checkpoint: StoredCheckpoint) -> None:
        await asyncio.to_thread(append, checkpoint.note)

    return sink
