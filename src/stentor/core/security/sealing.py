"""Secrets at rest: AES-GCM under a master key, bound to what they belong to.

The master key is SERVICE_MASTER_KEY or `keys/providers.key` in the data folder, mode 0600, made at its first use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from stentor.core.errors import ServiceUnavailable

_NONCE, _MASTER = 12, 32
"""Bytes."""
_OTHERS = 0o077


class MasterKeyUnusable(ServiceUnavailable):
    """The file of the master key cannot be used; the message says why."""


class Sealer:
    """`bound` names what a secret belongs to: with any other it does not open."""

    def __init__(self, data_dir: Path, master_key: str = "") -> None:
        self._path = data_dir / "keys" / "providers.key"
        self._given = master_key
        self._master: bytes | None = None

    def ensure_master_key(self) -> None:
        """Have a master key, before the first secret is sealed. Raises MasterKeyUnusable and OSError."""
        self._key(make=True)

    def seal(self, secret: str, *bound: str) -> str:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE)
        sealed = nonce + AESGCM(self._key(make=True)).encrypt(nonce, secret.encode(), _binding(bound))
        return base64.b64encode(sealed).decode()

    def open(self, sealed: str, *bound: str) -> str | None:
        """The secret, or None when the master key or what it is bound to is another one."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            raw = base64.b64decode(sealed, validate=True)
            return AESGCM(self._key()).decrypt(raw[:_NONCE], raw[_NONCE:], _binding(bound)).decode()
        except (InvalidTag, binascii.Error, ValueError, FileNotFoundError):
            return None

    def _key(self, *, make: bool = False) -> bytes:
        if self._master is None:
            self._master = hashlib.sha256(self._given.encode()).digest() if self._given else self._of_file(make=make)
        return self._master

    def _of_file(self, *, make: bool) -> bytes:
        if make and not self._path.exists():
            _make(self._path)
        if self._path.stat().st_mode & _OTHERS:
            raise MasterKeyUnusable(f"{self._path} opens sealed secrets, and others can read it: chmod 600 it.")
        try:
            key = bytes.fromhex(self._path.read_text().strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != _MASTER:
            raise MasterKeyUnusable(f"{self._path} does not hold a master key: restore it, or move it away.")
        return key


def _binding(bound: tuple[str, ...]) -> bytes:
    return "\0".join(bound).encode()


def _make(path: Path) -> None:
    """Written beside it and linked into place, so that another process sees no key or a whole one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its key is the one
            os.link(beside, path)
    finally:
        beside.unlink()
