"""A witness for the logs that it was told to watch: signs a checkpoint that extends the newest one that it signed.

Fails closed: what is not on its disk is not signed. Source: C2SP tlog-witness.

The folder of a witness: its key, and of each log the newest checkpoint that it signed.

A witness that forgot what it signed may sign a fork, so a key without its state is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from stentor.core import filesystem
from stentor.core.clock import SECOND, Clock
from stentor.core.errors import StartRefused
from stentor.domains.provenance.merkle import EMPTY_ROOT, verify_consistency
from stentor.domains.provenance.signed_note import (
    Cosigner,
    LogCheckpoint,
    NoteError,
    NoteVerifier,
    generate_cosigner,
    open_note,
    parse_cosigner,
    parse_note,
)
from stentor.domains.provenance.witness.wire import WitnessSubmission, parse_submission

log = logging.getLogger(__name__)


class SubmissionRejected(Exception):
    """A submission is not signed; the HTTP status of the protocol, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class SizeConflict(SubmissionRejected):
    """The proof does not start at the newest size that was signed, which is the answer."""

    def __init__(self, size: int) -> None:
        super().__init__(409, f"{size}\n")


class Witness:
    def __init__(self, folder: WitnessFolder, logs: Iterable[NoteVerifier], clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._logs: dict[str, list[NoteVerifier]] = defaultdict(list)
        for key in logs:
            self._logs[key.name].append(key)
        # From the look at the newest size until the new one is on the disk, or two submissions could both be signed.
        self._lock = threading.Lock()

    @property
    def verifier(self) -> NoteVerifier:
        return self._folder.cosigner.verifier

    @property
    def origins(self) -> list[str]:
        return sorted(self._logs)

    def newest_note(self, origin: str) -> str | None:
        """The newest note that was signed of this log."""
        return self._folder.newest_note(origin)

    def add_checkpoint(self, text: str) -> str:
        """The line that signs the submitted checkpoint; blocks on the disk. Raises Refused, OSError."""
        try:
            submission = parse_submission(text)
        except NoteError as error:
            raise SubmissionRejected(400, f"The request is malformed: {error}.\n") from None
        checkpoint = self._opened(submission.note)
        if submission.old_size > checkpoint.size:
            raise SubmissionRejected(400, "The old size is above that of the checkpoint.\n")
        with self._lock:
            self._require_extension(submission, checkpoint)
            line = self._folder.cosigner.cosign(checkpoint.body, self._clock.now() // SECOND)
            self._folder.save_note(
                checkpoint.origin, f"{_signed_by(submission.note, self._logs[checkpoint.origin])}{line}"
            )
        return line

    def _opened(self, note: str) -> LogCheckpoint:
        keys = self._logs.get(parse_note(note)[0].origin)
        if keys is None:
            raise SubmissionRejected(404, "This witness does not watch that log.\n")
        try:
            return open_note(note, keys)
        except NoteError as error:
            raise SubmissionRejected(403, f"The checkpoint is not signed by the log: {error}.\n") from None

    def _require_extension(self, submission: WitnessSubmission, checkpoint: LogCheckpoint) -> None:
        kept = self._folder.newest_note(checkpoint.origin)
        before = parse_note(kept)[0] if kept else LogCheckpoint(checkpoint.origin, 0, EMPTY_ROOT)
        if submission.old_size != before.size:
            raise SizeConflict(before.size)
        if before.size == 0:
            sound = not submission.proof and (checkpoint.size > 0 or checkpoint.root == EMPTY_ROOT)
        else:
            sound = verify_consistency(before.size, checkpoint.size, before.root, checkpoint.root, submission.proof)
        if not sound:
            path = self._folder.save_evidence(checkpoint.origin, submission.text)
            log.error(
                "the log %s was rewritten: its checkpoint of size %d does not extend that of size %d; kept in %s",
                *(checkpoint.origin, checkpoint.size, before.size, path),
            )
            raise SubmissionRejected(422, "The checkpoint does not extend the newest one that this witness signed.\n")


def _signed_by(note: str, keys: list[NoteVerifier]) -> str:
    """The note with the lines of the log's keys alone: others may send what they like."""
    head, _, lines = note.partition("\n\n")
    known = {(key.name, key.key_id) for key in keys}
    _, signatures = parse_note(note)
    kept = [
        line
        for line, (name, key_id, _) in zip(lines.splitlines(keepends=True), signatures, strict=True)
        if (name, key_id) in known
    ]
    return f"{head}\n\n{''.join(kept)}"


KEY_FILE, STATE_FILE, LOCK_FILE = "witness.key", "witness.state", "witness.lock"
_GROUP_OTHER_BITS = 0o077


class WitnessFolder:
    """Held from construction to `close`. Raises StartRefused."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartRefused(f"{path} cannot be used: {error.strerror}.") from None
        try:
            self._hold()
            self.cosigner = self._key(name)
            self._notes = self._state()
        except BaseException:
            self.close()
            raise

    def newest_note(self, origin: str) -> str | None:
        """The newest note that was signed of this log."""
        return self._notes.get(origin)

    def save_note(self, origin: str, note: str) -> None:
        """Returns when it is on the disk. Raises OSError, and then nothing is kept."""
        notes = self._notes | {origin: note}
        filesystem.write_atomically(self._path / STATE_FILE, msgspec.json.encode(notes).decode())
        self._notes = notes

    def save_evidence(self, origin: str, submission: str) -> Path:
        """A signed submission that does not extend what was signed: it proves that the log was rewritten."""
        path = self._path / f"evidence-{sha256(origin.encode()).hexdigest()[:16]}.txt"
        filesystem.write_atomically(path, submission)
        return path

    def close(self) -> None:
        os.close(self._lock)

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartRefused(f"{self._path} is in use by another witness.") from None

    def _key(self, name: str) -> Cosigner:
        path = self._path / KEY_FILE
        if not path.exists():
            if (self._path / STATE_FILE).exists():
                raise StartRefused(f"{path} is gone, and its state is there: restore it, or begin another folder.")
            if not name:
                raise StartRefused("A new witness needs a name: --name, such as example.com/witness.")
            made = _require_usable(lambda: generate_cosigner(name))
            filesystem.write_atomically(self._path / STATE_FILE, "{}")
            filesystem.write_atomically(path, f"{made.text}\n")
        if path.stat().st_mode & _GROUP_OTHER_BITS:
            raise StartRefused(f"{path} is secret, and others can read it: chmod 600 {path}")
        cosigner = _require_usable(lambda: parse_cosigner(path.read_text("utf-8").strip()))
        if name and cosigner.verifier.name != name:
            raise StartRefused(f"The witness in {self._path} is {cosigner.verifier.name}, not {name}.")
        return cosigner

    def _state(self) -> dict[str, str]:
        path = self._path / STATE_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            raise StartRefused(
                f"{path} is gone: without it this witness could sign a log that was rewritten. Restore it, or begin "
                "another folder with another key."
            ) from None
        except (OSError, msgspec.DecodeError):
            raise StartRefused(f"{path} cannot be read: restore it.") from None


def _require_usable(make: object) -> Cosigner:
    try:
        return make()  # type: ignore[operator, no-any-return]
    except (NoteError, OSError, UnicodeDecodeError) as error:
        raise StartRefused(f"The key of the witness cannot be used: {error}.") from None
