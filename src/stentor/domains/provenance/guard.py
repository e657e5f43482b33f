"""Decides whether the tree may be signed: it must extend what is kept outside the database, under the same key.

Fails closed: without a decision nothing is signed. The way out is an acceptance (`stentor provenance accept`), which
only somebody who can write in the data folder can give, and which leaves an event in the run log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stentor.core.db import Database, Tx
from stentor.core.errors import RunLogDamaged
from stentor.domains.provenance import store
from stentor.domains.provenance.notes import Checkpoint, NoteError, Signer, Verifier, open_note, read_note
from stentor.domains.provenance.outside import Acceptance, Outside
from stentor.domains.provenance.store import LOOK, Stored

ACCEPT = "If you know why, accept it: `stentor provenance accept --reason TEXT`."
log = logging.getLogger(__name__)

Record = Callable[[Tx, Acceptance, str], None]
"""Records an acceptance in the run log; the text says what stood against it."""


class Guard:
    """`find` looks for the key, `make` makes one; both may raise StartRefused."""

    def __init__(
        self,
        db: Database,
        outside: Outside,
        find: Callable[[], Signer | None],
        make: Callable[[], Signer],
        record: Record,
    ) -> None:
        self._db = db
        self._outside = outside
        self._find, self._make = find, make
        self._record = record
        self._signer: Signer | None = None
        self._delivered_holds = False

    async def admit(self) -> tuple[Signer, Stored | None]:
        """The key that may sign the tree as it stands; and, when an acceptance was carried out, its new checkpoint.

        Raises RunLogDamaged, StartRefused, StoreUnavailable.
        """
        state, delivered, acceptance = await asyncio.to_thread(self._read)
        if self._signer is None or acceptance is not None:  # an acceptance may come with another key
            self._signer = self._find()
        verifier = self._signer.verifier if self._signer else None
        objection = await self._db.read(lambda tx: objection_to(tx, verifier, state, delivered, self._outside))
        if objection is not None:
            return await self._carry_out(acceptance, objection)
        if acceptance is not None:
            log.warning("an acceptance of another history was not needed and is removed")
            await asyncio.to_thread(self._outside.forget_acceptance)
        self._delivered_holds = True
        if self._signer is None:
            self._signer = self._make()
        await self._advance(state)
        return self._signer, None

    async def keep(self, note: str) -> None:
        """Keep what was just signed, before it gets out. Raises RunLogDamaged."""
        await asyncio.to_thread(self._outside.keep, note)

    def _read(self) -> tuple[str | None, str | None, Acceptance | None]:
        # The checkpoint file may be on another machine: it is asked once, and from then on only appended to.
        delivered = None if self._delivered_holds else self._outside.last_delivered()
        return self._outside.state(), delivered, self._outside.acceptance()

    async def _advance(self, state: str | None) -> None:
        """Keep the newest stored checkpoint, which another machine may have signed."""
        newest = await self._db.read(store.newest_checkpoint)
        if newest is not None and newest.size > (read_note(state)[0].size if state else -1):
            await self.keep(newest.note)

    async def _carry_out(self, acceptance: Acceptance | None, objection: str) -> tuple[Signer, Stored | None]:
        signer = self._signer
        if acceptance is None or signer is None:
            raise RunLogDamaged(objection)
        if acceptance.key != signer.verifier.text:
            raise RunLogDamaged(f"{objection} An acceptance is there, but for another key.")

        def record(tx: Tx) -> None:
            if not _is(tx, acceptance.size, acceptance.root):
                raise RunLogDamaged(f"{objection} An acceptance is there, but of another tree.")
            self._record(tx, acceptance, objection)

        await self._db.write(record)
        note = signer.sign(acceptance.size, bytes.fromhex(acceptance.root))
        await self.keep(note)
        log.warning("another history of the run log was accepted: %s", acceptance.reason)
        return signer, Stored(acceptance.size, acceptance.root, note, 0)

    async def settled(self) -> None:
        """The accepted checkpoint got out: the acceptance is used up."""
        self._delivered_holds = True
        await asyncio.to_thread(self._outside.forget_acceptance)


def objection_to(
    tx: Tx, verifier: Verifier | None, state: str | None, delivered: str | None, outside: Outside
) -> str | None:
    """Why the tree must not be signed with this key; None when it may. `state` and `delivered` are kept notes.

    Raises RunLogDamaged when the tables of the tree do not fit together.
    """
    newest = store.newest_checkpoint(tx)
    if verifier is None:
        if newest is None and state is None and delivered is None:
            return None
        return (
            "The key that signed the checkpoints of the run log is gone. Restore keys/provenance.key from a backup, or "
            "begin a new one: `stentor provenance accept --new-key --reason TEXT`."
        )
    # Names without their folders: health shows the reason to everybody.
    kept = [(f"keys/{outside.state_path.name}", state)]
    if outside.checkpoint_file is not None:
        kept.append((f"the checkpoint file {outside.checkpoint_file.name}", delivered))
    for place, note in kept:
        if note is not None and (reason := _against(tx, verifier, note, place)) is not None:
            return reason
    if newest is not None and (state is None or newest.size > read_note(state)[0].size):
        return _against(tx, verifier, newest.note, "the database")
    return None


def _against(tx: Tx, verifier: Verifier, note: str, place: str) -> str | None:
    checkpoint = _opened(note, verifier)
    if checkpoint is None:
        return f"The newest checkpoint in {place} was signed with another key than {verifier.name} has now. {ACCEPT}"
    size = store.size_of(tx)
    if checkpoint.size > size:
        return (
            f"The newest checkpoint in {place} covers {checkpoint.size} events, and the database has {size}: events "
            f"were removed, or an older copy was restored. {LOOK} {ACCEPT}"
        )
    if store.root_at(tx, checkpoint.size) != checkpoint.root:
        return (
            f"The first {checkpoint.size} events are not those of the newest checkpoint in {place}: the run log was "
            f"rewritten. {LOOK} {ACCEPT}"
        )
    return None


def _opened(note: str, verifier: Verifier) -> Checkpoint | None:
    try:
        return open_note(note, [verifier])
    except NoteError:
        return None


def _is(tx: Tx, size: int, root: str) -> bool:
    return size <= store.size_of(tx) and store.root_at(tx, size).hex() == root
