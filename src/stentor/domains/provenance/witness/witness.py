"""A witness for the logs that it was told to watch: signs a checkpoint that extends the newest one that it signed.

Fails closed: what is not on its disk is not signed. Source: C2SP tlog-witness.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable

from stentor.core.clock import SECOND, Clock
from stentor.domains.provenance.notes import Checkpoint, NoteError, Verifier, open_note, read_note
from stentor.domains.provenance.proofs import extends
from stentor.domains.provenance.tree import EMPTY_ROOT
from stentor.domains.provenance.witness.folder import WitnessFolder
from stentor.domains.provenance.witness.wire import Submission, read_submission

log = logging.getLogger(__name__)


class Refused(Exception):
    """A submission is not signed; the HTTP status of the protocol, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class OtherSize(Refused):
    """The proof does not start at the newest size that was signed, which is the answer."""

    def __init__(self, size: int) -> None:
        super().__init__(409, f"{size}\n")


class Witness:
    def __init__(self, folder: WitnessFolder, logs: Iterable[Verifier], clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._logs: dict[str, list[Verifier]] = defaultdict(list)
        for key in logs:
            self._logs[key.name].append(key)
        # From the look at the newest size until the new one is on the disk, or two submissions could both be signed.
        self._lock = threading.Lock()

    @property
    def verifier(self) -> Verifier:
        return self._folder.cosigner.verifier

    @property
    def origins(self) -> list[str]:
        return sorted(self._logs)

    def newest(self, origin: str) -> str | None:
        """The newest note that was signed of this log."""
        return self._folder.newest(origin)

    def add(self, text: str) -> str:
        """The line that signs the submitted checkpoint; blocks on the disk. Raises Refused, OSError."""
        try:
            submission = read_submission(text)
        except NoteError as error:
            raise Refused(400, f"The request is malformed: {error}.\n") from None
        checkpoint = self._opened(submission.note)
        if submission.old > checkpoint.size:
            raise Refused(400, "The old size is above that of the checkpoint.\n")
        with self._lock:
            self._require_extension(submission, checkpoint)
            line = self._folder.cosigner.line(checkpoint.body, self._clock.now() // SECOND)
            self._folder.keep(checkpoint.origin, f"{_signed_by(submission.note, self._logs[checkpoint.origin])}{line}")
        return line

    def _opened(self, note: str) -> Checkpoint:
        keys = self._logs.get(read_note(note)[0].origin)
        if keys is None:
            raise Refused(404, "This witness does not watch that log.\n")
        try:
            return open_note(note, keys)
        except NoteError as error:
            raise Refused(403, f"The checkpoint is not signed by the log: {error}.\n") from None

    def _require_extension(self, submission: Submission, checkpoint: Checkpoint) -> None:
        kept = self._folder.newest(checkpoint.origin)
        before = read_note(kept)[0] if kept else Checkpoint(checkpoint.origin, 0, EMPTY_ROOT)
        if submission.old != before.size:
            raise OtherSize(before.size)
        if before.size == 0:
            sound = not submission.proof and (checkpoint.size > 0 or checkpoint.root == EMPTY_ROOT)
        else:
            sound = extends(before.size, checkpoint.size, before.root, checkpoint.root, submission.proof)
        if not sound:
            path = self._folder.keep_evidence(checkpoint.origin, submission.text)
            log.error(
                "the log %s was rewritten: its checkpoint of size %d does not extend that of size %d; kept in %s",
                *(checkpoint.origin, checkpoint.size, before.size, path),
            )
            raise Refused(422, "The checkpoint does not extend the newest one that this witness signed.\n")


def _signed_by(note: str, keys: list[Verifier]) -> str:
    """The note with the lines of the log's keys alone: others may send what they like."""
    head, _, lines = note.partition("\n\n")
    known = {(key.name, key.key_id) for key in keys}
    _, signatures = read_note(note)
    kept = [
        line
        for line, (name, key_id, _) in zip(lines.splitlines(keepends=True), signatures, strict=True)
        if (name, key_id) in known
    ]
    return f"{head}\n\n{''.join(kept)}"
