"""Ed25519 keys as JSON Web Keys (RFC 8037), read strictly, named by their thumbprint (RFC 7638).

The key that the service signs its own receipts with: `keys/receipts.key` in the data folder, mode 0600.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from stentor.auth.authority.claims import ReceiptError
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, StartRefused

PUBLIC_MEMBERS = frozenset({"kty", "crv", "x"})
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

_PRIME = 2**255 - 19
_EIGHTH = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = frozenset({0, 1, _PRIME - 1, _EIGHTH, _PRIME - _EIGHTH})
"""The y of the eight points with which one signature can fit many messages."""


def generate() -> OKPKey:
    """A new private key."""
    return OKPKey.generate_key("Ed25519")


def parse_public_jwk(value: Any) -> OKPKey:
    """The public key of a JWK with exactly kty, crv and x. Raises Flaw."""
    if not isinstance(value, dict) or frozenset(value) != PUBLIC_MEMBERS:
        raise ReceiptError("a key is not an object with exactly kty, crv and x")
    if (value["kty"], value["crv"]) != ("OKP", "Ed25519") or not isinstance(value["x"], str):
        raise ReceiptError("a key is not of the type OKP with the curve Ed25519")
    check_point(decode_base64url(value["x"]))
    try:
        return OKPKey.import_key(value)
    except (JoseError, ValueError):
        raise ReceiptError("a key is not a point of the curve") from None


def parse_public_key_file(data: bytes) -> OKPKey:
    """The public key of a file: a JWK, whose further members are left out, or PEM. Raises Flaw."""
    try:
        key = OKPKey.import_key(data if data.lstrip().startswith(b"-----") else jsontext.decode(data))
        if key.is_private:
            raise ReceiptError("it holds a private key, which nobody but its holder may have; give the public half")
        return parse_public_jwk(public_jwk(key))
    except (InvalidRequest, JoseError, ValueError, TypeError, KeyError, AttributeError):
        raise ReceiptError("it holds no public Ed25519 key, as a JWK or as PEM") from None


def check_point(encoded: bytes) -> None:
    """Raises Flaw for what is no public key, and for one that anybody can sign for."""
    if len(encoded) != 32:
        raise ReceiptError("a key does not have 32 bytes")
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    if y >= _PRIME or y in _SMALL_ORDER:
        raise ReceiptError("a key is one of the points of small order, or not in its one encoding")


def public_jwk(key: OKPKey) -> dict[str, str]:
    """`{kty, crv, x}`."""
    whole = key.as_dict(private=False)
    return {name: str(whole[name]) for name in sorted(PUBLIC_MEMBERS)}


def thumbprint(key: OKPKey) -> str:
    """SHA-256 over the public key in base64url, 43 characters: the `kid` of our own key and the `jkt` of a holder."""
    return key.thumbprint()


def decode_base64url(text: str) -> bytes:
    """Bytes of base64url without padding, in its one canonical form. Raises Flaw."""
    if not _BASE64URL.fullmatch(text):
        raise ReceiptError("a part is not base64url")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise ReceiptError("a part is not base64url") from None
    if encode_base64url(data) != text:
        raise ReceiptError("a part is not in the one form of base64url")
    return data


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


_OTHERS = 0o077


def signing_key_file(data_dir: Path) -> Path:
    return data_dir / "keys" / "receipts.key"


def find_signing_key(data_dir: Path) -> OKPKey | None:
    """The key, or None when it was never used. Raises StartRefused when the file cannot be used."""
    path = signing_key_file(data_dir)
    try:
        data = path.read_bytes()
        if path.stat().st_mode & _OTHERS:
            raise StartRefused(f"{path} signs receipts, and others can read it: chmod 600 {path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}.") from None
    return _read(path, data)


def ensure_signing_key(data_dir: Path) -> OKPKey:
    """The key, made at its first use. Raises StartRefused."""
    found = find_signing_key(data_dir)
    if found is None:
        try:
            _make(signing_key_file(data_dir))
        except OSError as error:
            raise StartRefused(f"{signing_key_file(data_dir)} cannot be made: {error.strerror}.") from None
        found = find_signing_key(data_dir)
    if found is None:
        raise StartRefused(f"{signing_key_file(data_dir)} went away while it was read.")
    return found


def _make(path: Path) -> None:
    """Written beside it and linked into place, so that another process sees no key or a whole one."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(jsontext.encode(generate().as_dict(private=True)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its key is the one
            os.link(beside, path)
    finally:
        beside.unlink()


def _read(path: Path, data: bytes) -> OKPKey:
    try:
        key = OKPKey.import_key(jsontext.decode(data))
        if key.is_private and key.curve_name == "Ed25519":
            return key
    except (InvalidRequest, JoseError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise StartRefused(
        f"{path} holds no Ed25519 private key (JWK): restore it, or move it away to have a new one made."
    )
