"""Checkpoints as signed notes (C2SP tlog-checkpoint, signed-note), and their Ed25519 keys in the form of such notes.

A verifier key is `<name>+<key id in hex>+<base64 of 1 and the public key>`; the private one has `PRIVATE+KEY+` before
it and the seed in it.

Cosignatures of witnesses: Ed25519 with the time (C2SP tlog-cosignature, `cosignature/v1`), made and verified.

A witness signs that the checkpoint extends all that it has seen of the log before.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stentor.domains.provenance.merkle import HASH_BYTES

ED25519 = b"\1"
COSIGNATURE = b"\4"
PRIVATE_KEY_PREFIX = "PRIVATE+KEY+"
MAX_SIGNATURES = 16


class NoteError(ValueError):
    """It is no such note or key; the text says why and never repeats a key."""


@dataclass(frozen=True)
class LogCheckpoint:
    """What a note says: so many events in the log of that origin have this root (32 bytes)."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True)
class NoteVerifier:
    """The public half of a key."""

    name: str
    public_key: bytes
    kind: bytes = ED25519
    """What the key signs: ED25519 for notes, COSIGNATURE for checkpoints of other logs."""

    @property
    def key_id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + self.kind + self.public_key).digest()[:4]

    @property
    def text(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(self.kind + self.public_key).decode()}"

    def is_signature_valid(self, body: str, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, body.encode())
        except (InvalidSignature, ValueError):
            return False
        return True


class NoteSigner:
    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.verifier = NoteVerifier(require_valid_name(name), private.public_key().public_bytes_raw())

    @property
    def text(self) -> str:
        """The private key: a secret."""
        key = self.verifier
        seed = base64.b64encode(ED25519 + self._private.private_bytes_raw()).decode()
        return f"{PRIVATE_KEY_PREFIX}{key.name}+{key.key_id.hex()}+{seed}"

    def sign(self, size: int, root: bytes) -> str:
        """The signed note of a checkpoint."""
        body = LogCheckpoint(self.verifier.name, size, root).body
        return f"{body}\n{self.sign_body(body)}"

    def sign_body(self, body: str) -> str:
        """The line that signs this body, which may be another's."""
        signed = base64.b64encode(self.verifier.key_id + self._private.sign(body.encode())).decode()
        return f"— {self.verifier.name} {signed}\n"


def generate_signer(origin: str = "") -> NoteSigner:
    """A new key. Without an origin it gets one that no other log has."""
    private = Ed25519PrivateKey.generate()
    return NoteSigner(origin or f"stentor/{sha256(private.public_key().public_bytes_raw()).hexdigest()[:12]}", private)


def parse_signer(text: str) -> NoteSigner:
    """Raises NoteError."""
    if not text.startswith(PRIVATE_KEY_PREFIX):
        raise NoteError(f"it does not begin with {PRIVATE_KEY_PREFIX}")
    name, key_id, seed = parse_key(text.removeprefix(PRIVATE_KEY_PREFIX), ED25519)
    signer = NoteSigner(name, Ed25519PrivateKey.from_private_bytes(seed))
    if signer.verifier.key_id != key_id:
        raise NoteError("its key id is not that of its name and key")
    return signer


def parse_verifier(text: str, kind: bytes = ED25519) -> NoteVerifier:
    """Raises NoteError."""
    name, key_id, public = parse_key(text, kind)
    verifier = NoteVerifier(require_valid_name(name), public, kind)
    if verifier.key_id != key_id:
        raise NoteError("its key id is not that of its name and key")
    return verifier


def parse_note(text: str) -> tuple[LogCheckpoint, list[tuple[str, bytes, bytes]]]:
    """What a note says, and its signatures (name, key id, signature), none of them verified. Raises NoteError."""
    body, blank, rest = text.partition("\n\n")
    lines = body.split("\n")
    if not blank or len(lines) < 3 or not rest.endswith("\n"):
        raise NoteError("it has not the lines of a signed checkpoint")
    signatures = [_parse_signature(line) for line in rest[:-1].split("\n")]
    if len(signatures) > MAX_SIGNATURES:
        raise NoteError("it has too many signatures")
    origin, size, root = lines[0], lines[1], decode_base64(lines[2])
    if not (size.isascii() and size.isdigit() and len(size) < 19) or (size[0] == "0" and size != "0"):
        raise NoteError("its second line is no size")
    if not origin or len(root) != HASH_BYTES or len(lines) > 3:
        raise NoteError("it has no origin, no root of 32 bytes, or lines of another kind")
    return LogCheckpoint(origin, int(size), root), signatures


def open_note(text: str, verifiers: list[NoteVerifier]) -> LogCheckpoint:
    """What a note says, signed by one of the verifiers for its own origin. Raises NoteError."""
    checkpoint, signatures = parse_note(text)
    for name, key_id, signature in signatures:
        for verifier in verifiers:
            if (name, key_id) == (verifier.name, verifier.key_id):
                if not verifier.is_signature_valid(checkpoint.body, signature):
                    raise NoteError("its signature is wrong")
                if checkpoint.origin == verifier.name:
                    return checkpoint
    raise NoteError("no known key signed it")


def split_notes(text: str) -> list[str]:
    """The notes of a file in which one was appended after the other."""
    found: list[list[str]] = [[]]
    ended = False
    for line in text.splitlines(keepends=True):
        if ended and not line.startswith("— "):
            found.append([])
            ended = False
        if line == "\n" and not found[-1]:
            continue
        ended = ended or line.startswith("— ")
        found[-1].append(line)
    return ["".join(lines) for lines in found if lines]


def _parse_signature(line: str) -> tuple[str, bytes, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    signed = decode_base64(encoded)
    if dash != "—" or not name or len(signed) < 5:
        raise NoteError("it has a line that is no signature")
    return name, signed[:4], signed[4:]


def parse_key(text: str, kind: bytes) -> tuple[str, bytes, bytes]:
    """Name, key id and key of a key in the form of signed notes. Raises NoteError."""
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    key = decode_base64(encoded)
    if len(key) != 1 + HASH_BYTES or key[:1] != kind or len(key_id) != 8:
        purpose = "for cosignatures (type 4)" if kind == COSIGNATURE else "for notes (type 1)"
        raise NoteError(f"it is no Ed25519 key {purpose} in the form <name>+<key id>+<key>")
    try:
        return name, bytes.fromhex(key_id), key[1:]
    except ValueError:
        raise NoteError("its key id is not hexadecimal") from None


def require_valid_name(text: str) -> str:
    """Raises NoteError for what cannot be the name of a key."""
    if not text or "+" in text or any(c.isspace() or not c.isprintable() for c in text):
        raise NoteError("a name is not empty and has no spaces and no plus sign")
    return text


def decode_base64(text: str) -> bytes:
    """Base64 in its one form: the last character has bits that decoding leaves out."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("it has something that is not base64") from None
    if base64.b64encode(found).decode() != text:
        raise NoteError("it has base64 in a form that nobody writes")
    return found


TIME_BYTES = 8
MAX_TIME_SECONDS = 2**63 - 1
"""The latest time that a cosignature may carry, in seconds since 1970."""


class Cosigner:
    """The key of a witness."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.verifier = NoteVerifier(require_valid_name(name), private.public_key().public_bytes_raw(), COSIGNATURE)

    @property
    def text(self) -> str:
        """The private key: a secret."""
        key = self.verifier
        seed = base64.b64encode(COSIGNATURE + self._private.private_bytes_raw()).decode()
        return f"{PRIVATE_KEY_PREFIX}{key.name}+{key.key_id.hex()}+{seed}"

    def cosign(self, body: str, seconds: int) -> str:
        """The line that signs the body of a checkpoint at this time."""
        signature = self._private.sign(_signed_message(body, seconds).encode())
        signed = self.verifier.key_id + seconds.to_bytes(TIME_BYTES, "big") + signature
        return f"— {self.verifier.name} {base64.b64encode(signed).decode()}\n"


def generate_cosigner(name: str) -> Cosigner:
    return Cosigner(name, Ed25519PrivateKey.generate())


def parse_cosigner(text: str) -> Cosigner:
    """Raises NoteError."""
    if not text.startswith(PRIVATE_KEY_PREFIX):
        raise NoteError(f"it does not begin with {PRIVATE_KEY_PREFIX}")
    name, key_id, seed = parse_key(text.removeprefix(PRIVATE_KEY_PREFIX), COSIGNATURE)
    cosigner = Cosigner(name, Ed25519PrivateKey.from_private_bytes(seed))
    if cosigner.verifier.key_id != key_id:
        raise NoteError("its key id is not that of its name and key")
    return cosigner


def parse_witness_key(text: str) -> NoteVerifier:
    """The public half of a witness's key. Raises NoteError."""
    return parse_verifier(text, COSIGNATURE)


def cosigned_at(note: str, witness: NoteVerifier) -> int | None:
    """When the witness signed this note, in seconds since 1970; None when no line of it is the witness's.

    Raises NoteError for what is no note.
    """
    checkpoint, signatures = parse_note(note)
    for name, key_id, signed in signatures:
        if (name, key_id) != (witness.name, witness.key_id) or len(signed) <= TIME_BYTES:
            continue
        seconds = int.from_bytes(signed[:TIME_BYTES], "big")
        if seconds <= MAX_TIME_SECONDS and witness.is_signature_valid(
            _signed_message(checkpoint.body, seconds), signed[TIME_BYTES:]
        ):
            return seconds
    return None


def add_cosignature(note: str, answer: str, witness: NoteVerifier) -> str:
    """The note with the witness's line out of its answer in place of an earlier one; other lines are left out.

    Raises NoteError when the answer has no valid line of the witness.
    """
    body = note.partition("\n\n")[0]
    for line in answer.splitlines(keepends=True):
        if line.startswith(f"— {witness.name} ") and cosigned_at(f"{body}\n\n{line}", witness) is not None:
            others = [
                one for one in note.partition("\n\n")[2].splitlines(keepends=True) if not _is_signed_by(one, witness)
            ]
            return f"{body}\n\n{''.join(others)}{line}"
    raise NoteError("it has no valid signature of the witness")


def _is_signed_by(line: str, witness: NoteVerifier) -> bool:
    name, _, encoded = line.removeprefix("— ").rstrip("\n").partition(" ")
    return name == witness.name and base64.b64decode(encoded)[:4] == witness.key_id


def _signed_message(body: str, seconds: int) -> str:
    return f"cosignature/v1\ntime {seconds}\n{body}"
