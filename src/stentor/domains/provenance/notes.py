"""Checkpoints as signed notes (C2SP tlog-checkpoint, signed-note), and their Ed25519 keys in the form of such notes.

A verifier key is `<name>+<key id in hex>+<base64 of 1 and the public key>`; the private one has `PRIVATE+KEY+` before
it and the seed in it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stentor.domains.provenance.tree import HASH

ED25519 = b"\1"
COSIGNATURE = b"\4"
PRIVATE = "PRIVATE+KEY+"
MOST_SIGNATURES = 16


class NoteError(ValueError):
    """It is no such note or key; the text says why and never repeats a key."""


@dataclass(frozen=True)
class Checkpoint:
    """What a note says: so many events in the log of that origin have this root (32 bytes)."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True)
class Verifier:
    """The public half of a key."""

    name: str
    public: bytes
    kind: bytes = ED25519
    """What the key signs: ED25519 for notes, COSIGNATURE for checkpoints of other logs."""

    @property
    def key_id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + self.kind + self.public).digest()[:4]

    @property
    def text(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(self.kind + self.public).decode()}"

    def signed(self, body: str, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, body.encode())
        except (InvalidSignature, ValueError):
            return False
        return True


class Signer:
    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.verifier = Verifier(checked_name(name), private.public_key().public_bytes_raw())

    @property
    def text(self) -> str:
        """The private key: a secret."""
        key = self.verifier
        seed = base64.b64encode(ED25519 + self._private.private_bytes_raw()).decode()
        return f"{PRIVATE}{key.name}+{key.key_id.hex()}+{seed}"

    def sign(self, size: int, root: bytes) -> str:
        """The signed note of a checkpoint."""
        body = Checkpoint(self.verifier.name, size, root).body
        return f"{body}\n{self.signature(body)}"

    def signature(self, body: str) -> str:
        """The line that signs this body, which may be another's."""
        signed = base64.b64encode(self.verifier.key_id + self._private.sign(body.encode())).decode()
        return f"— {self.verifier.name} {signed}\n"


def make_signer(origin: str = "") -> Signer:
    """A new key. Without an origin it gets one that no other log has."""
    private = Ed25519PrivateKey.generate()
    return Signer(origin or f"stentor/{sha256(private.public_key().public_bytes_raw()).hexdigest()[:12]}", private)


def read_signer(text: str) -> Signer:
    """Raises NoteError."""
    if not text.startswith(PRIVATE):
        raise NoteError(f"it does not begin with {PRIVATE}")
    name, key_id, seed = parts(text.removeprefix(PRIVATE), ED25519)
    signer = Signer(name, Ed25519PrivateKey.from_private_bytes(seed))
    if signer.verifier.key_id != key_id:
        raise NoteError("its key id is not that of its name and key")
    return signer


def read_verifier(text: str, kind: bytes = ED25519) -> Verifier:
    """Raises NoteError."""
    name, key_id, public = parts(text, kind)
    verifier = Verifier(checked_name(name), public, kind)
    if verifier.key_id != key_id:
        raise NoteError("its key id is not that of its name and key")
    return verifier


def read_note(text: str) -> tuple[Checkpoint, list[tuple[str, bytes, bytes]]]:
    """What a note says, and its signatures (name, key id, signature), none of them verified. Raises NoteError."""
    body, blank, rest = text.partition("\n\n")
    lines = body.split("\n")
    if not blank or len(lines) < 3 or not rest.endswith("\n"):
        raise NoteError("it has not the lines of a signed checkpoint")
    signatures = [_signature(line) for line in rest[:-1].split("\n")]
    if len(signatures) > MOST_SIGNATURES:
        raise NoteError("it has too many signatures")
    origin, size, root = lines[0], lines[1], exact_base64(lines[2])
    if not (size.isascii() and size.isdigit() and len(size) < 19) or (size[0] == "0" and size != "0"):
        raise NoteError("its second line is no size")
    if not origin or len(root) != HASH or len(lines) > 3:
        raise NoteError("it has no origin, no root of 32 bytes, or lines of another kind")
    return Checkpoint(origin, int(size), root), signatures


def open_note(text: str, verifiers: list[Verifier]) -> Checkpoint:
    """What a note says, signed by one of the verifiers for its own origin. Raises NoteError."""
    checkpoint, signatures = read_note(text)
    for name, key_id, signature in signatures:
        for verifier in verifiers:
            if (name, key_id) == (verifier.name, verifier.key_id):
                if not verifier.signed(checkpoint.body, signature):
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


def _signature(line: str) -> tuple[str, bytes, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    signed = exact_base64(encoded)
    if dash != "—" or not name or len(signed) < 5:
        raise NoteError("it has a line that is no signature")
    return name, signed[:4], signed[4:]


def parts(text: str, kind: bytes) -> tuple[str, bytes, bytes]:
    """Name, key id and key of a key in the form of signed notes. Raises NoteError."""
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    key = exact_base64(encoded)
    if len(key) != 1 + HASH or key[:1] != kind or len(key_id) != 8:
        purpose = "for cosignatures (type 4)" if kind == COSIGNATURE else "for notes (type 1)"
        raise NoteError(f"it is no Ed25519 key {purpose} in the form <name>+<key id>+<key>")
    try:
        return name, bytes.fromhex(key_id), key[1:]
    except ValueError:
        raise NoteError("its key id is not hexadecimal") from None


def checked_name(text: str) -> str:
    """Raises NoteError for what cannot be the name of a key."""
    if not text or "+" in text or any(c.isspace() or not c.isprintable() for c in text):
        raise NoteError("a name is not empty and has no spaces and no plus sign")
    return text


def exact_base64(text: str) -> bytes:
    """Base64 in its one form: the last character has bits that decoding leaves out."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("it has something that is not base64") from None
    if base64.b64encode(found).decode() != text:
        raise NoteError("it has base64 in a form that nobody writes")
    return found
