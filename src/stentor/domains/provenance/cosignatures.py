"""Cosignatures of witnesses: Ed25519 with the time (C2SP tlog-cosignature, `cosignature/v1`), made and verified.

A witness signs that the checkpoint extends all that it has seen of the log before.
"""

from __future__ import annotations

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stentor.domains.provenance.notes import (
    COSIGNATURE,
    PRIVATE,
    NoteError,
    Verifier,
    checked_name,
    parts,
    read_note,
    read_verifier,
)

TIME_BYTES = 8
LATEST = 2**63 - 1
"""The latest time that a cosignature may carry, in seconds since 1970."""


class Cosigner:
    """The key of a witness."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.verifier = Verifier(checked_name(name), private.public_key().public_bytes_raw(), COSIGNATURE)

    @property
    def text(self) -> str:
        """The private key: a secret."""
        key = self.verifier
        seed = base64.b64encode(COSIGNATURE + self._private.private_bytes_raw()).decode()
        return f"{PRIVATE}{key.name}+{key.key_id.hex()}+{seed}"

    def line(self, body: str, seconds: int) -> str:
        """The line that signs the body of a checkpoint at this time."""
        signature = self._private.sign(_message(body, seconds).encode())
        signed = self.verifier.key_id + seconds.to_bytes(TIME_BYTES, "big") + signature
        return f"— {self.verifier.name} {base64.b64encode(signed).decode()}\n"


def make_cosigner(name: str) -> Cosigner:
    return Cosigner(name, Ed25519PrivateKey.generate())


def read_cosigner(text: str) -> Cosigner:
    """Raises NoteError."""
    if not text.startswith(PRIVATE):
        raise NoteError(f"it does not begin with {PRIVATE}")
    name, key_id, seed = parts(text.removeprefix(PRIVATE), COSIGNATURE)
    cosigner = Cosigner(name, Ed25519PrivateKey.from_private_bytes(seed))
    if cosigner.verifier.key_id != key_id:
        raise NoteError("its key id is not that of its name and key")
    return cosigner


def read_witness(text: str) -> Verifier:
    """The public half of a witness's key. Raises NoteError."""
    return read_verifier(text, COSIGNATURE)


def cosigned_at(note: str, witness: Verifier) -> int | None:
    """When the witness signed this note, in seconds since 1970; None when no line of it is the witness's.

    Raises NoteError for what is no note.
    """
    checkpoint, signatures = read_note(note)
    for name, key_id, signed in signatures:
        if (name, key_id) != (witness.name, witness.key_id) or len(signed) <= TIME_BYTES:
            continue
        seconds = int.from_bytes(signed[:TIME_BYTES], "big")
        if seconds <= LATEST and witness.signed(_message(checkpoint.body, seconds), signed[TIME_BYTES:]):
            return seconds
    return None


def with_cosignature(note: str, answer: str, witness: Verifier) -> str:
    """The note with the witness's line out of its answer in place of an earlier one; other lines are left out.

    Raises NoteError when the answer has no valid line of the witness.
    """
    body = note.partition("\n\n")[0]
    for line in answer.splitlines(keepends=True):
        if line.startswith(f"— {witness.name} ") and cosigned_at(f"{body}\n\n{line}", witness) is not None:
            others = [one for one in note.partition("\n\n")[2].splitlines(keepends=True) if not _by(one, witness)]
            return f"{body}\n\n{''.join(others)}{line}"
    raise NoteError("it has no valid signature of the witness")


def _by(line: str, witness: Verifier) -> bool:
    name, _, encoded = line.removeprefix("— ").rstrip("\n").partition(" ")
    return name == witness.name and base64.b64decode(encoded)[:4] == witness.key_id


def _message(body: str, seconds: int) -> str:
    return f"cosignature/v1\ntime {seconds}\n{body}"
