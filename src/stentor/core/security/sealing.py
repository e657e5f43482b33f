"""Encryption of stored secrets: AES-GCM under a master key, bound to the record that a secret belongs to.

The master key is SERVICE_MASTER_KEY, or `keys/providers.key` in the data folder (mode 0600), generated on first use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.core import filesystem
from stentor.core.errors import ServiceUnavailable
from stentor.core.lazy_import import lazy_module

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives.ciphers import aead
else:
    exceptions = lazy_module("cryptography.exceptions")
    aead = lazy_module("cryptography.hazmat.primitives.ciphers.aead")

_NONCE_BYTES, _MASTER_KEY_BYTES = 12, 32


class MasterKeyUnusable(ServiceUnavailable):
    """The file of the master key cannot be used; the message has the reason."""


class Sealer:
    """Encrypts secrets. `bound` names the record that a secret belongs to; it cannot be decrypted for another one."""

    def __init__(self, data_dir: Path, master_key: str) -> None:
        self._path = data_dir / "keys" / "providers.key"
        self._given = master_key
        self._master: bytes | None = None

    def ensure_master_key(self) -> None:
        """Generate the master key if there is none. Raises MasterKeyUnusable and OSError."""
        self._load_key(create=True)

    def seal(self, secret: str, *bound: str) -> str:
        """Return the encrypted secret in base64. Raises MasterKeyUnusable and OSError."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + aead.AESGCM(self._load_key(create=True)).encrypt(nonce, secret.encode(), _binding(bound))
        return base64.b64encode(sealed).decode()

    def open(self, sealed: str, *bound: str) -> str | None:
        """Return the secret, or None if the master key or `bound` does not match."""
        try:
            raw = base64.b64decode(sealed, validate=True)
            return (
                aead.AESGCM(self._load_key()).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _binding(bound)).decode()
            )
        except (exceptions.InvalidTag, binascii.Error, ValueError, FileNotFoundError):
            return None

    def _load_key(self, *, create: bool = False) -> bytes:
        if self._master is None:
            self._master = (
                hashlib.sha256(self._given.encode()).digest() if self._given else self._read_file(create=create)
            )
        return self._master

    def _read_file(self, *, create: bool) -> bytes:
        if create and not self._path.exists():
            filesystem.create_once(self._path, secrets.token_hex(32))
        if self._path.stat().st_mode & filesystem.GROUP_OTHER_BITS:
            raise MasterKeyUnusable(f"{self._path} is secret, and other users can read it: chmod 600 {self._path}")
        try:
            key = bytes.fromhex(self._path.read_text().strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != _MASTER_KEY_BYTES:
            raise MasterKeyUnusable(f"{self._path} is not a master key: restore it, or move it away to get a new one.")
        return key


def _binding(bound: tuple[str, ...]) -> bytes:
    return "\0".join(bound).encode()
