"""Checkpoints as signed notes (C2SP signed-note, tlog-checkpoint), cosignatures of witnesses, their Ed25519 keys. Pure.

A verifier key is `<name>+<key id in hex>+<base64 of the key type and the public key>`; a private key has the prefix
`PRIVATE+KEY+` and the seed instead of the public key. A cosignature (C2SP tlog-cosignature, `cosignature/v1`) is a
witness's statement that the checkpoint extends all that it has seen of the log, with the time. For the files of the
keys see `keyfile` and `witness.witness`.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stentor.domains.provenance.merkle import HASH_BYTES

ED25519 = b"\1"
COSIGNATURE = b"\4"
PRIVATE_KEY_PREFIX = "PRIVATE+KEY+"
MAX_SIGNATURES = 16
TIME_BYTES = 8
MAX_TIME_SECONDS = 2**63 - 1
"""The latest time that a cosignature may have, in seconds since 1970."""


class NoteError(ValueError):
    """The text is not a valid note or key. The message is the reason and never repeats a key."""


@dataclass(frozen=True)
class LogCheckpoint:
    """The statement of a note: the first `size` events of the log `origin` have this root (32 bytes)."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True)
class NoteVerifier:
    """A public key of a log or of a witness."""

    name: str
    public_key: bytes
    kind: bytes = ED25519
    """The key type: ED25519 for notes, COSIGNATURE for witnesses."""

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


class _PrivateKey:
    """What keys of logs and of witnesses share."""

    kind: ClassVar[bytes]

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.verifier = NoteVerifier(require_valid_name(name), private.public_key().public_bytes_raw(), self.kind)

    @property
    def text(self) -> str:
        """The private key as text: a secret."""
        key = self.verifier
        seed = base64.b64encode(self.kind + self._private.private_bytes_raw()).decode()
        return f"{PRIVATE_KEY_PREFIX}{key.name}+{key.key_id.hex()}+{seed}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a private key of this type. Raises NoteError."""
        if not text.startswith(PRIVATE_KEY_PREFIX):
            raise NoteError(f"it does not begin with {PRIVATE_KEY_PREFIX}")
        name, key_id, seed = parse_key(text.removeprefix(PRIVATE_KEY_PREFIX), cls.kind)
        key = cls(name, Ed25519PrivateKey.from_private_bytes(seed))
        if key.verifier.key_id != key_id:
            raise NoteError("its key id does not match its name and key")
        return key


class NoteSigner(_PrivateKey):
    """The private key of a log, which signs its checkpoints."""

    kind = ED25519

    def sign(self, size: int, root: bytes) -> str:
        """Return the signed note of a checkpoint."""
        body = LogCheckpoint(self.verifier.name, size, root).body
        return f"{body}\n{self.sign_body(body)}"

    def sign_body(self, body: str) -> str:
        """Return the signature line for a body, which may be that of another log's note."""
        signed = base64.b64encode(self.verifier.key_id + self._private.sign(body.encode())).decode()
        return f"— {self.verifier.name} {signed}\n"


class Cosigner(_PrivateKey):
    """The private key of a witness."""

    kind = COSIGNATURE

    @classmethod
    def generate(cls, name: str) -> Self:
        """Generate a key. Raises NoteError for an invalid name."""
        return cls(name, Ed25519PrivateKey.generate())

    def cosign(self, body: str, seconds: int) -> str:
        """Return the signature line for a checkpoint's body at this time (seconds since 1970)."""
        signature = self._private.sign(_signed_message(body, seconds).encode())
        signed = self.verifier.key_id + seconds.to_bytes(TIME_BYTES, "big") + signature
        return f"— {self.verifier.name} {base64.b64encode(signed).decode()}\n"


def generate_signer(origin: str = "") -> NoteSigner:
    """Generate a key of a log. Without an origin it gets a unique one."""
    private = Ed25519PrivateKey.generate()
    return NoteSigner(origin or f"stentor/{sha256(private.public_key().public_bytes_raw()).hexdigest()[:12]}", private)


def parse_verifier(text: str, kind: bytes = ED25519) -> NoteVerifier:
    """Parse a verifier key of this type. Raises NoteError."""
    name, key_id, public = parse_key(text, kind)
    verifier = NoteVerifier(require_valid_name(name), public, kind)
    if verifier.key_id != key_id:
        raise NoteError("its key id does not match its name and key")
    return verifier


def parse_witness_key(text: str) -> NoteVerifier:
    """Parse the verifier key of a witness. Raises NoteError."""
    return parse_verifier(text, COSIGNATURE)


def parse_note(text: str) -> tuple[LogCheckpoint, list[tuple[str, bytes, bytes]]]:
    """Parse a note and its signatures (name, key id, signature) without verifying them. Raises NoteError."""
    body, blank, rest = text.partition("\n\n")
    lines = body.split("\n")
    if not blank or len(lines) < 3 or not rest.endswith("\n"):
        raise NoteError("it does not have the lines of a signed checkpoint")
    signatures = [_parse_signature(line) for line in rest[:-1].split("\n")]
    if len(signatures) > MAX_SIGNATURES:
        raise NoteError("it has too many signatures")
    origin, root, size = lines[0], decode_base64(lines[2]), parse_size(lines[1])
    if not origin or len(root) != HASH_BYTES or len(lines) > 3:
        raise NoteError("it has no origin, no root of 32 bytes, or extra lines")
    return LogCheckpoint(origin, size, root), signatures


def open_note(text: str, verifiers: list[NoteVerifier]) -> LogCheckpoint:
    """Parse a note and require a valid signature of the log itself by one of the verifiers. Raises NoteError."""
    checkpoint, signatures = parse_note(text)
    for name, key_id, signature in signatures:
        for verifier in verifiers:
            # Unknown signatures are skipped, as the format demands: witnesses and other logs may add lines.
            if (name, key_id) == (verifier.name, verifier.key_id):
                if not verifier.is_signature_valid(checkpoint.body, signature):
                    raise NoteError("its signature is wrong")
                # A known key of another name may have signed too, but speaks only for its own log.
                if checkpoint.origin == verifier.name:
                    return checkpoint
    raise NoteError("no known key signed it")


def split_notes(text: str) -> list[str]:
    """Split a file to which notes were appended, with or without blank lines between them.

    Leaves out the beginning of a note of the same log that was cut off before its signatures.
    """
    notes: list[list[str]] = [[]]
    ended = False
    for line in text.splitlines(keepends=True):
        if ended and not line.startswith("— "):
            notes.append([])
            ended = False
        elif notes[-1] and line == notes[-1][0]:
            notes[-1] = []
        if line == "\n" and not notes[-1]:
            continue
        ended = ended or line.startswith("— ")
        notes[-1].append(line)
    return ["".join(lines) for lines in notes if lines]


def cosigned_at(note: str, witness: NoteVerifier) -> int | None:
    """Return when the witness signed the note, in seconds since 1970; None without a valid signature of it.

    Raises NoteError for an invalid note.
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


def add_cosignature(note: str, response: str, witness: NoteVerifier) -> str:
    """Return the note with the witness's signature line from `response`, in place of its earlier line.

    Other lines of the response are ignored. Raises NoteError when it has no valid line of the witness.
    """
    body, _, signatures = note.partition("\n\n")
    for line in response.splitlines(keepends=True):
        if line.startswith(f"— {witness.name} ") and cosigned_at(f"{body}\n\n{line}", witness) is not None:
            others = [other for other in signatures.splitlines(keepends=True) if not _is_signed_by(other, witness)]
            return f"{body}\n\n{''.join(others)}{line}"
    raise NoteError("it has no valid signature of the witness")


def _is_signed_by(line: str, witness: NoteVerifier) -> bool:
    name, _, encoded = line.removeprefix("— ").rstrip("\n").partition(" ")
    return name == witness.name and base64.b64decode(encoded)[:4] == witness.key_id


def _signed_message(body: str, seconds: int) -> str:
    return f"cosignature/v1\ntime {seconds}\n{body}"


def _parse_signature(line: str) -> tuple[str, bytes, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    signed = decode_base64(encoded)
    if dash != "—" or len(signed) < 5:
        raise NoteError("it has a line that is not a signature")
    return require_valid_name(name), signed[:4], signed[4:]


def parse_key(text: str, kind: bytes) -> tuple[str, bytes, bytes]:
    """Split the text of a key into its name, key id and key. Raises NoteError."""
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    key = decode_base64(encoded)
    if len(key) != 1 + HASH_BYTES or key[:1] != kind or len(key_id) != 8:
        purpose = "for cosignatures (type 4)" if kind == COSIGNATURE else "for notes (type 1)"
        raise NoteError(f"it is not an Ed25519 key {purpose} of the form <name>+<key id>+<key>")
    try:
        return name, bytes.fromhex(key_id), key[1:]
    except ValueError:
        raise NoteError("its key id is not hexadecimal") from None


def require_valid_name(text: str) -> str:
    """Return the name of a key. Raises NoteError when it is invalid."""
    if not text or "+" in text or any(c.isspace() or not c.isprintable() for c in text):
        raise NoteError("a name must not be empty or contain a space or a plus sign")
    return text


def parse_size(text: str) -> int:
    """Parse the size of a tree in decimal without leading zeroes. Raises NoteError."""
    # Fewer than 19 digits always fit into 64 bits; isdigit also accepts digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) < 19) or (text[0] == "0" and text != "0"):
        raise NoteError("it has a size that is not a number")
    return int(text)


def decode_base64(text: str) -> bytes:
    """Decode base64 in its canonical form. Raises NoteError.

    The standard decoder ignores unused bits of the last character, so several texts would give the same bytes.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("it has a part that is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise NoteError("it has base64 that is not in canonical form")
    return data
