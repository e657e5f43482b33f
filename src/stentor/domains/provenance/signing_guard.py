"""What is kept outside the database, where database writes alone do not reach: the newest checkpoint that this machine
signed or verified, the operator's checkpoint file, and an acceptance of another history.

Decides whether the tree may be signed: it must extend what is kept outside the database, under the same key.

Fails closed: without a decision nothing is signed. The way out is an acceptance (`stentor provenance accept`), which
only somebody who can write in the data folder can give, and which leaves an event in the run log.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stentor.core import filesystem
from stentor.core.db import Database, Tx
from stentor.core.errors import RunLogDamaged
from stentor.domains.provenance import store
from stentor.domains.provenance.signed_note import (
    LogCheckpoint,
    NoteError,
    NoteSigner,
    NoteVerifier,
    open_note,
    parse_note,
    split_notes,
)
from stentor.domains.provenance.store import VERIFY_HINT, StoredCheckpoint

STATE_FILE, ACCEPTANCE_FILE = "provenance.state", "provenance.accepted"
TAIL_BYTES = 65_536
"""Of the checkpoint file, which grows for ever, only the end is read."""


class Acceptance(msgspec.Struct, frozen=True):
    """That the operator takes this tree for the history from now on, to be signed with this key (its public half).

    Written by `stentor provenance accept`, carried out by the service, which records it in the run log.
    """

    reason: str
    size: int
    root: str
    key: str


@dataclass(frozen=True)
class ExternalState:
    """The files. Those of the state are in `keys` of the data folder; `checkpoint_file` is where the operator says."""

    folder: Path
    checkpoint_file: Path | None

    @property
    def state_path(self) -> Path:
        return self.folder / STATE_FILE

    @property
    def acceptance_path(self) -> Path:
        return self.folder / ACCEPTANCE_FILE

    def read_checkpoint(self) -> str | None:
        """The kept note; None when there is none yet. Raises RunLogDamaged when it cannot be read."""
        return _read_text(self.state_path)

    def save_checkpoint(self, note: str) -> None:
        """Raises RunLogDamaged: what is not kept must not be signed."""
        try:
            filesystem.write_atomically(self.state_path, note)
        except OSError as error:
            raise RunLogDamaged(f"{self.state_path.name} cannot be written: {error.strerror}.") from error

    def read_last_delivered(self) -> str | None:
        """The last whole note of the checkpoint file; None without a file. Raises RunLogDamaged when it has none.

        The last one, not the largest: after an accepted restore the file goes on with smaller trees.
        """
        path = self.checkpoint_file
        if path is None:
            return None
        try:
            tail = _read_tail(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunLogDamaged(f"The checkpoint file {path.name} cannot be read: {error.strerror}.") from error
        for note in reversed(split_notes(tail)):
            if _is_note(note):  # a crash may have cut the last one
                return note
        if not tail.strip():
            return None
        raise RunLogDamaged(f"The checkpoint file {path.name} has no checkpoint at its end.")

    def read_acceptance(self) -> Acceptance | None:
        """Raises RunLogDamaged when it cannot be read."""
        text = _read_text(self.acceptance_path)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Acceptance)
        except msgspec.DecodeError:
            raise RunLogDamaged(f"keys/{self.acceptance_path.name} is malformed: remove it.") from None

    def save_acceptance(self, acceptance: Acceptance) -> None:
        """Raises OSError."""
        filesystem.write_atomically(self.acceptance_path, msgspec.json.encode(acceptance).decode())

    def delete_acceptance(self) -> None:
        self.acceptance_path.unlink(missing_ok=True)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RunLogDamaged(f"keys/{path.name} cannot be read: {reason}.") from error


def _read_tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def _is_note(text: str) -> bool:
    try:
        parse_note(text)
    except NoteError:
        return False
    return True


ACCEPT_HINT = "If you know why, accept it: `stentor provenance accept --reason TEXT`."
log = logging.getLogger(__name__)

RecordAcceptance = Callable[[Tx, Acceptance, str], None]
"""Records an acceptance in the run log; the text says what stood against it."""


class SigningGuard:
    """`find` looks for the key, `make` makes one; both may raise StartRefused."""

    def __init__(
        self,
        db: Database,
        outside: ExternalState,
        find: Callable[[], NoteSigner | None],
        make: Callable[[], NoteSigner],
        record: RecordAcceptance,
    ) -> None:
        self._db = db
        self._outside = outside
        self._find, self._make = find, make
        self._record = record
        self._signer: NoteSigner | None = None
        self._delivered_holds = False

    async def authorize_signing(self) -> tuple[NoteSigner, StoredCheckpoint | None]:
        """The key that may sign the tree as it stands; and, when an acceptance was carried out, its new checkpoint.

        Raises RunLogDamaged, StartRefused, StoreUnavailable.
        """
        state, delivered, acceptance = await asyncio.to_thread(self._read)
        if self._signer is None or acceptance is not None:  # an acceptance may come with another key
            self._signer = self._find()
        verifier = self._signer.verifier if self._signer else None
        objection = await self._db.read(lambda tx: find_objection(tx, verifier, state, delivered, self._outside))
        if objection is not None:
            return await self._carry_out(acceptance, objection)
        if acceptance is not None:
            log.warning("an acceptance of another history was not needed and is removed")
            await asyncio.to_thread(self._outside.delete_acceptance)
        self._delivered_holds = True
        if self._signer is None:
            self._signer = self._make()
        await self._advance(state)
        return self._signer, None

    async def save_checkpoint(self, note: str) -> None:
        """Keep what was just signed, before it gets out. Raises RunLogDamaged."""
        await asyncio.to_thread(self._outside.save_checkpoint, note)

    def _read(self) -> tuple[str | None, str | None, Acceptance | None]:
        # The checkpoint file may be on another machine: it is asked once, and from then on only appended to.
        delivered = None if self._delivered_holds else self._outside.read_last_delivered()
        return self._outside.read_checkpoint(), delivered, self._outside.read_acceptance()

    async def _advance(self, state: str | None) -> None:
        """Keep the newest stored checkpoint, which another machine may have signed."""
        newest = await self._db.read(store.newest_checkpoint)
        if newest is not None and newest.size > (parse_note(state)[0].size if state else -1):
            await self.save_checkpoint(newest.note)

    async def _carry_out(
        self, acceptance: Acceptance | None, objection: str
    ) -> tuple[NoteSigner, StoredCheckpoint | None]:
        signer = self._signer
        if acceptance is None or signer is None:
            raise RunLogDamaged(objection)
        if acceptance.key != signer.verifier.text:
            raise RunLogDamaged(f"{objection} An acceptance is there, but for another key.")

        def record(tx: Tx) -> None:
            if not _has_root(tx, acceptance.size, acceptance.root):
                raise RunLogDamaged(f"{objection} An acceptance is there, but of another tree.")
            self._record(tx, acceptance, objection)

        await self._db.write(record)
        note = signer.sign(acceptance.size, bytes.fromhex(acceptance.root))
        await self.save_checkpoint(note)
        log.warning("another history of the run log was accepted: %s", acceptance.reason)
        return signer, StoredCheckpoint(acceptance.size, acceptance.root, note, 0)

    async def finish_acceptance(self) -> None:
        """The accepted checkpoint got out: the acceptance is used up."""
        self._delivered_holds = True
        await asyncio.to_thread(self._outside.delete_acceptance)


def find_objection(
    tx: Tx, verifier: NoteVerifier | None, state: str | None, delivered: str | None, outside: ExternalState
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
        if note is not None and (reason := _check_note(tx, verifier, note, place)) is not None:
            return reason
    if newest is not None and (state is None or newest.size > parse_note(state)[0].size):
        return _check_note(tx, verifier, newest.note, "the database")
    return None


def _check_note(tx: Tx, verifier: NoteVerifier, note: str, place: str) -> str | None:
    checkpoint = _open_or_none(note, verifier)
    if checkpoint is None:
        return (
            f"The newest checkpoint in {place} was signed with another key than {verifier.name} has now. {ACCEPT_HINT}"
        )
    size = store.tree_size(tx)
    if checkpoint.size > size:
        return (
            f"The newest checkpoint in {place} covers {checkpoint.size} events, and the database has {size}: events "
            f"were removed, or an older copy was restored. {VERIFY_HINT} {ACCEPT_HINT}"
        )
    if store.root_at(tx, checkpoint.size) != checkpoint.root:
        return (
            f"The first {checkpoint.size} events are not those of the newest checkpoint in {place}: the run log was "
            f"rewritten. {VERIFY_HINT} {ACCEPT_HINT}"
        )
    return None


def _open_or_none(note: str, verifier: NoteVerifier) -> LogCheckpoint | None:
    try:
        return open_note(note, [verifier])
    except NoteError:
        return None


def _has_root(tx: Tx, size: int, root: str) -> bool:
    return size <= store.tree_size(tx) and store.root_at(tx, size).hex() == root
