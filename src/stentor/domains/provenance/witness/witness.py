"""A witness for configured logs (C2SP tlog-witness): it signs a checkpoint that extends the newest one that it signed.

Fails closed: the state is on the disk before a signature leaves, and a key without its state is rejected, because a
witness that forgot what it signed could sign a fork. `surfaces/witness.py` serves it over HTTP.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from stentor.core import filesystem
from stentor.core.clock import SECOND, Clock
from stentor.core.errors import StartRefused
from stentor.domains.provenance.merkle import EMPTY_ROOT, verify_consistency
from stentor.domains.provenance.signing.signed_note import (
    Cosigner,
    LogCheckpoint,
    NoteError,
    NoteVerifier,
    open_note,
    parse_note,
)
from stentor.domains.provenance.witness.wire import WitnessSubmission, parse_submission

KEY_FILE, STATE_FILE, LOCK_FILE = "witness.key", "witness.state", "witness.lock"
MAX_EVIDENCE = 100
log = logging.getLogger(__name__)


class SubmissionRejected(Exception):
    """A submission is not signed. `status` and `text` are the protocol's HTTP status and body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class SizeConflict(SubmissionRejected):
    """The proof does not start at the newest signed size. The protocol responds with that size."""

    def __init__(self, size: int) -> None:
        super().__init__(409, f"{size}\n")


class Witness:
    """Checks and signs submissions. Thread-safe; blocks on the disk."""

    def __init__(self, folder: WitnessFolder, logs: Iterable[NoteVerifier], clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._logs: dict[str, list[NoteVerifier]] = defaultdict(list)
        for key in logs:
            self._logs[key.name].append(key)
        # Held from reading the newest size until the new one is on the disk: otherwise two submissions that extend the
        # same size, and not each other, could both be signed.
        self._lock = threading.Lock()

    @property
    def verifier(self) -> NoteVerifier:
        return self._folder.cosigner.verifier

    @property
    def origins(self) -> list[str]:
        return sorted(self._logs)

    def newest_note(self, origin: str) -> str | None:
        """Return the newest note of this log that was signed."""
        return self._folder.newest_note(origin)

    def add_checkpoint(self, text: str) -> str:
        """Return the signature line for the submitted checkpoint. Raises SubmissionRejected, OSError."""
        try:
            submission = parse_submission(text)
        except NoteError as error:
            raise SubmissionRejected(400, f"The request is malformed: {error}.\n") from None
        checkpoint = self._open_checkpoint(submission.note)
        if submission.old_size > checkpoint.size:
            raise SubmissionRejected(400, "The old size is above that of the checkpoint.\n")
        with self._lock:
            self._require_extension(submission, checkpoint)
            line = self._folder.cosigner.cosign(checkpoint.body, self._clock.now() // SECOND)
            note = _keep_signatures_of(submission.note, self._logs[checkpoint.origin])
            # Before the signature is returned: one that is out while the disk forgets it allows a fork.
            self._folder.save_note(checkpoint.origin, f"{note}{line}")
        return line

    def _open_checkpoint(self, note: str) -> LogCheckpoint:
        keys = self._logs.get(parse_note(note)[0].origin)
        if keys is None:
            raise SubmissionRejected(404, "This witness does not watch that log.\n")
        try:
            return open_note(note, keys)
        except NoteError as error:
            raise SubmissionRejected(403, f"The checkpoint is not signed by the log: {error}.\n") from None

    def _require_extension(self, submission: WitnessSubmission, checkpoint: LogCheckpoint) -> None:
        signed_note = self._folder.newest_note(checkpoint.origin)
        signed = parse_note(signed_note)[0] if signed_note else LogCheckpoint(checkpoint.origin, 0, EMPTY_ROOT)
        if submission.old_size != signed.size:
            raise SizeConflict(signed.size)
        if signed.size == 0:  # every tree extends the empty one: there is nothing to prove
            is_extension = not submission.proof and (checkpoint.size > 0 or checkpoint.root == EMPTY_ROOT)
        else:
            is_extension = verify_consistency(
                signed.size, checkpoint.size, signed.root, checkpoint.root, submission.proof
            )
        if not is_extension:
            if checkpoint != signed:
                self._report(submission, checkpoint, signed.size)
            raise SubmissionRejected(422, "The checkpoint does not extend the newest one that this witness signed.\n")

    def _report(self, submission: WitnessSubmission, checkpoint: LogCheckpoint, signed_size: int) -> None:
        # Anybody can submit a wrong proof with a genuine checkpoint; of one size there is only one genuine tree.
        is_certain = checkpoint.size == signed_size
        path = self._folder.save_evidence(checkpoint, submission.text, "rewritten" if is_certain else "unproven")
        if path is None:
            return
        log.log(
            logging.ERROR if is_certain else logging.WARNING,
            "witness: %s origin=%s size=%d signed_size=%d evidence=%s",
            "log rewritten" if is_certain else "the proof is wrong, or the log was rewritten",
            *(checkpoint.origin, checkpoint.size, signed_size, path),
        )


def _keep_signatures_of(note: str, keys: list[NoteVerifier]) -> str:
    """Return the note without signatures of other keys: the submitter can add any."""
    head, _, lines = note.partition("\n\n")
    known = {(key.name, key.key_id) for key in keys}
    _, signatures = parse_note(note)
    log_lines = [
        line
        for line, (name, key_id, _) in zip(lines.splitlines(keepends=True), signatures, strict=True)
        if (name, key_id) in known
    ]
    return f"{head}\n\n{''.join(log_lines)}"


class WitnessFolder:
    """The folder of a witness: its key, and for each log the newest note that it signed.

    Locked from construction to `close`. Raises StartRefused.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartRefused(f"{path} cannot be used: {error.strerror}.") from None
        try:
            self._lock_folder()
            self.cosigner = self._load_key(name)
            self._notes = self._load_notes()
        except BaseException:
            self.close()
            raise

    def newest_note(self, origin: str) -> str | None:
        """Return the newest note of this log that was signed."""
        return self._notes.get(origin)

    def save_note(self, origin: str, note: str) -> None:
        """Store a note durably. Raises OSError, and then the old note stays."""
        notes = self._notes | {origin: note}
        filesystem.write_atomically(self._path / STATE_FILE, msgspec.json.encode(notes).decode())
        self._notes = notes

    def save_evidence(self, checkpoint: LogCheckpoint, submission: str, kind: str) -> Path | None:
        """Store a submission that was not shown to extend the signed note; None if its checkpoint is stored already.

        Of each log and kind the newest MAX_EVIDENCE stay: a rewritten log submits another checkpoint each minute.
        """
        prefix = f"evidence-{sha256(checkpoint.origin.encode()).hexdigest()[:16]}-{kind}"
        path = self._path / f"{prefix}-{sha256(checkpoint.body.encode()).hexdigest()[:16]}.txt"
        if path.exists():
            return None
        filesystem.write_atomically(path, submission)
        stored = sorted(self._path.glob(f"{prefix}-*.txt"), key=lambda file: file.stat().st_mtime_ns)
        for oldest in stored[:-MAX_EVIDENCE]:
            oldest.unlink()
        return path

    def close(self) -> None:
        os.close(self._lock)

    def _lock_folder(self) -> None:
        try:  # two witnesses with one folder could sign a fork
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartRefused(f"{self._path} is in use by another witness.") from None

    def _load_key(self, name: str) -> Cosigner:
        path = self._path / KEY_FILE
        if not path.exists():
            if (self._path / STATE_FILE).exists():
                raise StartRefused(f"{path} is missing, but its state exists: restore it, or use another folder.")
            if not name:
                raise StartRefused("A new witness needs a name: --name, such as example.com/witness.")
            new_key = _require_usable(lambda: Cosigner.generate(name))
            # The state first: after a crash between the two writes, a key without a state would be refused for ever.
            filesystem.write_atomically(self._path / STATE_FILE, "{}")
            filesystem.write_atomically(path, f"{new_key.text}\n")
        if path.stat().st_mode & filesystem.GROUP_OTHER_BITS:
            raise StartRefused(f"{path} is secret, and other users can read it: chmod 600 {path}")
        cosigner = _require_usable(lambda: Cosigner.parse(path.read_text("utf-8").strip()))
        if name and cosigner.verifier.name != name:
            raise StartRefused(f"The witness in {self._path} is {cosigner.verifier.name}, not {name}.")
        return cosigner

    def _load_notes(self) -> dict[str, str]:
        path = self._path / STATE_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            raise StartRefused(
                f"{path} is missing: without it this witness could sign a log that was rewritten. Restore it, or use "
                "another folder with a new key."
            ) from None
        except (OSError, msgspec.DecodeError):
            raise StartRefused(f"{path} cannot be read: restore it.") from None


def _require_usable(make_key: Callable[[], Cosigner]) -> Cosigner:
    try:
        return make_key()
    except (NoteError, OSError, UnicodeDecodeError) as error:
        raise StartRefused(f"The key of the witness cannot be used: {error}.") from None
