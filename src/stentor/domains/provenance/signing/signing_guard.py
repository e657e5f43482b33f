"""Decide whether the tree may be signed: it must extend the checkpoints stored outside the database, with the same key.

Outside are the newest checkpoint that this machine signed or verified, and the operator's checkpoint file: somebody who
can only write to the database cannot change them. Fails closed: without a decision nothing is signed. The operator can
override it with an acceptance (`stentor provenance accept`), which needs write access to the data folder and is
recorded in the run log.
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
from stentor.domains.provenance.signing.signed_note import (
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
"""Size of the end of the checkpoint file that is read; the file grows without limit."""
ACCEPT_HINT = "If you know why, accept it: `stentor provenance accept --reason TEXT`."
log = logging.getLogger(__name__)


class Acceptance(msgspec.Struct, frozen=True):
    """The operator's decision to continue with this tree, signed with this key (a verifier key); `root` is in hex.

    Written by `stentor provenance accept`, applied by the service, which records it in the run log.
    """

    reason: str
    size: int
    root: str
    key: str


@dataclass(frozen=True)
class ExternalState:
    """The files outside the database: `folder` is `keys` in the data folder, `checkpoint_file` is a setting."""

    folder: Path
    checkpoint_file: Path | None

    @property
    def state_path(self) -> Path:
        return self.folder / STATE_FILE

    @property
    def acceptance_path(self) -> Path:
        return self.folder / ACCEPTANCE_FILE

    def read_checkpoint(self) -> str | None:
        """Return the stored note; None before the first one. Raises RunLogDamaged when it cannot be read."""
        return _read_text(self.state_path)

    def save_checkpoint(self, note: str) -> None:
        """Store the note. Raises RunLogDamaged, because a checkpoint that is not stored must not be delivered."""
        try:
            filesystem.write_atomically(self.state_path, note)
        except OSError as error:
            raise RunLogDamaged(f"{self.state_path.name} cannot be written: {error.strerror}.") from error

    def read_last_delivered(self) -> str | None:
        """Return the last complete note of the checkpoint file; None without a file or when it is empty.

        The last one, not the largest: after an accepted restore the file continues with smaller trees.
        Raises RunLogDamaged when there is no note near the end.
        """
        path = self.checkpoint_file
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                tail = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunLogDamaged(f"The checkpoint file {path.name} cannot be read: {error.strerror}.") from error
        for note in reversed(split_notes(tail)):
            try:
                parse_note(note)
            except NoteError:  # a crash may have truncated the last note, and the tail may begin within one
                continue
            return note
        if not tail.strip():
            return None
        raise RunLogDamaged(f"The checkpoint file {path.name} has no checkpoint at its end.")

    def read_acceptance(self) -> Acceptance | None:
        """Return the acceptance; None when there is none. Raises RunLogDamaged when it cannot be read."""
        text = _read_text(self.acceptance_path)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Acceptance)
        except msgspec.DecodeError:
            raise RunLogDamaged(f"keys/{self.acceptance_path.name} is malformed: remove it.") from None

    def save_acceptance(self, acceptance: Acceptance) -> None:
        """Store the acceptance for the service to apply. Raises OSError."""
        filesystem.write_atomically(self.acceptance_path, msgspec.json.encode(acceptance).decode())

    def delete_acceptance(self) -> None:
        self.acceptance_path.unlink(missing_ok=True)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RunLogDamaged(f"keys/{path.name} cannot be read: {reason}.") from error


RecordAcceptance = Callable[[Tx, Acceptance, str], None]
"""Records an acceptance in the run log; the text is the reason that signing was blocked."""


class SigningGuard:
    """Provides the signing key once the tree was checked. `find` and `make` (a new key) may raise StartRefused."""

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
        self._is_delivered_checked = False

    async def authorize_signing(self) -> tuple[NoteSigner, StoredCheckpoint | None]:
        """Return the key that may sign the current tree and, if an acceptance was applied, its new checkpoint.

        The checkpoint has no time (0) and is not stored yet. Raises RunLogDamaged, StartRefused, StoreUnavailable.
        """
        state, delivered, acceptance = await asyncio.to_thread(self._read_state)
        if self._signer is None or acceptance is not None:  # an acceptance may come with a new key
            self._signer = self._find()
        verifier = self._signer.verifier if self._signer else None
        reason, newest = await self._db.read(
            lambda tx: (
                find_blocking_reason(tx, verifier, state, delivered, self._outside),
                store.newest_checkpoint(tx),
            )
        )
        if reason is not None:
            return await self._apply(acceptance, reason)
        if acceptance is not None:
            # If it stayed, it could later accept a truncation to the accepted tree.
            log.warning("signed checkpoints: unused acceptance removed")
            await asyncio.to_thread(self._outside.delete_acceptance)
        self._is_delivered_checked = True
        if self._signer is None:
            self._signer = self._make()
        if newest is not None and newest.size > (parse_note(state)[0].size if state else -1):
            # Another machine signed it, or the state is from an older copy of the folder.
            await self.save_checkpoint(newest.note)
        return self._signer, None

    async def save_checkpoint(self, note: str) -> None:
        """Store a new checkpoint outside the database, before it is delivered. Raises RunLogDamaged."""
        await asyncio.to_thread(self._outside.save_checkpoint, note)

    async def finish_acceptance(self) -> None:
        """Delete the acceptance once its checkpoint was delivered."""
        self._is_delivered_checked = True
        await asyncio.to_thread(self._outside.delete_acceptance)

    def _read_state(self) -> tuple[str | None, str | None, Acceptance | None]:
        # The checkpoint file may be on another machine, so it is read once and afterwards only appended to.
        delivered = None if self._is_delivered_checked else self._outside.read_last_delivered()
        return self._outside.read_checkpoint(), delivered, self._outside.read_acceptance()

    async def _apply(self, acceptance: Acceptance | None, reason: str) -> tuple[NoteSigner, StoredCheckpoint | None]:
        signer = self._signer
        if acceptance is None or signer is None:
            raise RunLogDamaged(reason)
        # The acceptance names the key, so that nobody can swap the key file in its shadow.
        if acceptance.key != signer.verifier.text:
            raise RunLogDamaged(f"{reason} An acceptance is there, but for another key.")

        def record(tx: Tx) -> None:
            size, root = acceptance.size, acceptance.root
            # In the transaction that records it: the tree may have changed since the operator accepted it.
            if size > store.tree_size(tx) or store.root_at(tx, size).hex() != root:
                raise RunLogDamaged(f"{reason} An acceptance is there, but for another tree.")
            self._record(tx, acceptance, reason)
            # The newest one would block signing for ever.
            store.delete_unfit_checkpoints(tx, size)

        await self._db.write(record)
        note = signer.sign(acceptance.size, bytes.fromhex(acceptance.root))
        await self.save_checkpoint(note)
        log.warning("signed checkpoints: different history accepted reason=%s", acceptance.reason)
        return signer, StoredCheckpoint(acceptance.size, acceptance.root, note, 0)


def find_blocking_reason(
    tx: Tx, verifier: NoteVerifier | None, state: str | None, delivered: str | None, outside: ExternalState
) -> str | None:
    """Return why the tree must not be signed with this key, or None. `state` and `delivered` are notes from outside.

    Raises RunLogDamaged when the tables of the tree are inconsistent.
    """
    newest = store.newest_checkpoint(tx)
    if verifier is None:
        if newest is None and state is None and delivered is None:
            return None
        return (
            "The key that signed the checkpoints of the run log is missing. Copy keys/provenance.key from another "
            "instance of this database or from a backup; signing then continues without a restart. Instances also "
            "share receipts.key and providers.key: copy these before the start. If the key is lost, generate a new "
            "one: `stentor provenance accept --new-key --reason TEXT`."
        )
    # File names without folders: health shows the reason to everybody.
    notes = [(f"keys/{outside.state_path.name}", state)]
    if outside.checkpoint_file is not None:
        notes.append((f"the checkpoint file {outside.checkpoint_file.name}", delivered))
    for place, note in notes:
        if note is not None and (reason := _check_note(tx, verifier, note, place)) is not None:
            return reason
    # The outside state first: the database's own checkpoint counts only where it is newer.
    if newest is None:
        return None
    if state is None or newest.size > parse_note(state)[0].size:
        return _check_note(tx, verifier, newest.note, "the database")
    if not store.is_extended(tx, newest.size, newest.root):
        return f"The run log does not extend its checkpoint of size {newest.size}. {VERIFY_HINT} {ACCEPT_HINT}"
    return None


def _check_note(tx: Tx, verifier: NoteVerifier, note: str, place: str) -> str | None:
    try:
        parse_note(note)
    except NoteError as error:
        return f"The newest checkpoint in {place} is damaged: {error}. {ACCEPT_HINT}"
    try:
        checkpoint = open_note(note, [verifier])
    except NoteError:
        return f"The newest checkpoint in {place} was signed with another key than {verifier.name} has. {ACCEPT_HINT}"
    size = store.tree_size(tx)
    if checkpoint.size > size:
        return (
            f"The newest checkpoint in {place} covers {checkpoint.size} events, but the database has {size}: events "
            f"were removed, or an older backup was restored. {VERIFY_HINT} {ACCEPT_HINT}"
        )
    if store.root_at(tx, checkpoint.size) != checkpoint.root:
        return (
            f"The first {checkpoint.size} events do not match the newest checkpoint in {place}: the run log was "
            f"rewritten. {VERIFY_HINT} {ACCEPT_HINT}"
        )
    return None
