"""The request body of add-checkpoint (C2SP tlog-witness): the old size, a consistency proof, the signed note. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from hashlib import sha256

from stentor.domains.provenance.merkle import HASH_BYTES
from stentor.domains.provenance.signing.signed_note import (
    LogCheckpoint,
    NoteError,
    decode_base64,
    parse_note,
    parse_size,
)

MAX_HASHES = 63
MAX_BODY_BYTES = 65_536
SIZE_MEDIA_TYPE = "text/x.tlog.size"


@dataclass(frozen=True)
class WitnessSubmission:
    """A checkpoint with the proof that it extends the tree of `old_size`; 0 and no proof for the first checkpoint."""

    old_size: int
    proof: list[bytes]
    note: str

    @property
    def checkpoint(self) -> LogCheckpoint:
        return parse_note(self.note)[0]

    @property
    def text(self) -> str:
        lines = [f"old {self.old_size}", *(base64.b64encode(node_hash).decode() for node_hash in self.proof)]
        return "\n".join(lines) + f"\n\n{self.note}"


def parse_submission(text: str) -> WitnessSubmission:
    """Parse a request body without verifying the proof or signatures. Raises NoteError."""
    head, blank, note = text.partition("\n\n")
    first, *lines = head.split("\n")
    word, _, old = first.partition(" ")
    if not blank or word != "old":
        raise NoteError("it has no line with the old size, or no empty line after the proof")
    if len(lines) > MAX_HASHES:
        raise NoteError(f"it has more than {MAX_HASHES} lines of proof")
    proof = [decode_base64(line) for line in lines]
    if any(len(node_hash) != HASH_BYTES for node_hash in proof):
        raise NoteError("it has a line of proof that is not a hash")
    parse_note(note)
    return WitnessSubmission(parse_size(old), proof, note)


def checkpoint_path(origin: str) -> str:
    """Return the URL path at which a witness publishes the newest checkpoint of a log that it signed."""
    return f"{sha256(origin.encode()).hexdigest()}/checkpoint"
