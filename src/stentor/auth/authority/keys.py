"""Ed25519 keys as JSON Web Keys (RFC 8037), identified by their thumbprint (RFC 7638); parsing is strict.

Also the service's signing key for receipts: `keys/receipts.key` in the data folder, mode 0600.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from stentor.auth.authority.claims import ReceiptError
from stentor.core import filesystem, jsontext
from stentor.core.errors import InvalidRequest, StartRefused

PUBLIC_MEMBERS = frozenset({"kty", "crv", "x"})
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

_PRIME = 2**255 - 19
_EIGHTH = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = frozenset({0, 1, _PRIME - 1, _EIGHTH, _PRIME - _EIGHTH})
"""The y coordinates of the points of small order: under such a key one signature is valid for many messages."""


def generate() -> OKPKey:
    """Generate a private key."""
    return OKPKey.generate_key("Ed25519")


def parse_public_jwk(value: Any) -> OKPKey:
    """Parse a public JWK with exactly kty, crv and x. Raises ReceiptError."""
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
    """Parse a public key file: PEM, or a JWK (further members are ignored). Raises ReceiptError."""
    try:
        key = OKPKey.import_key(data if data.lstrip().startswith(b"-----") else jsontext.decode(data))
        if key.is_private:
            raise ReceiptError("it holds a private key, which only its holder may have; use the public key")
        return parse_public_jwk(public_jwk(key))
    except (InvalidRequest, JoseError, ValueError, TypeError, KeyError, AttributeError):
        raise ReceiptError("it is not a public Ed25519 key, as JWK or PEM") from None


def check_point(encoded: bytes) -> None:
    """Raise ReceiptError for bytes that are not a canonical public key, or one of small order."""
    if len(encoded) != 32:
        raise ReceiptError("a key does not have 32 bytes")
    # The highest bit is the sign of x, not a part of y.
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    if y >= _PRIME or y in _SMALL_ORDER:
        raise ReceiptError("a key is a point of small order, or not canonically encoded")


def public_jwk(key: OKPKey) -> dict[str, str]:
    """Return the public key as `{kty, crv, x}`."""
    jwk = key.as_dict(private=False)
    return {name: str(jwk[name]) for name in sorted(PUBLIC_MEMBERS)}


def thumbprint(key: OKPKey) -> str:
    """Return the RFC 7638 thumbprint, 43 characters: the `kid` of a signing key and the `jkt` of a holder."""
    return key.thumbprint()


def decode_base64url(text: str) -> bytes:
    """Decode unpadded, canonical base64url. Raises ReceiptError."""
    if not _BASE64URL.fullmatch(text):
        raise ReceiptError("a part is not base64url")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise ReceiptError("a part is not base64url") from None
    # Python ignores unused low bits: without this check one receipt would have several texts, and several hashes.
    if encode_base64url(data) != text:
        raise ReceiptError("a part is not canonical base64url")
    return data


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signing_key_file(data_dir: Path) -> Path:
    return data_dir / "keys" / "receipts.key"


def find_signing_key(data_dir: Path) -> OKPKey | None:
    """Return the signing key, or None if there is none yet. Raises StartRefused for an unusable file."""
    path = signing_key_file(data_dir)
    try:
        data = path.read_bytes()
        if path.stat().st_mode & filesystem.GROUP_OTHER_BITS:
            raise StartRefused(
                f"{path} holds the signing key of receipts, and other users can read it: chmod 600 {path}"
            )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}.") from None
    return _parse_private_key(path, data)


def ensure_signing_key(data_dir: Path) -> OKPKey:
    """Return the signing key; generate it if there is none. Raises StartRefused."""
    key = find_signing_key(data_dir)
    if key is None:
        path = signing_key_file(data_dir)
        try:
            # Created here with its mode: `create_once` creates parent folders with the default mode.
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            filesystem.create_once(path, jsontext.encode(generate().as_dict(private=True)).decode())
        except OSError as error:
            raise StartRefused(f"{path} cannot be created: {error.strerror}.") from None
        key = find_signing_key(data_dir)
    if key is None:
        raise StartRefused(f"{signing_key_file(data_dir)} was deleted while it was read.")
    return key


def _parse_private_key(path: Path, data: bytes) -> OKPKey:
    try:
        key = OKPKey.import_key(jsontext.decode(data))
        if key.is_private and key.curve_name == "Ed25519":
            return key
    except (InvalidRequest, JoseError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise StartRefused(
        f"{path} holds no Ed25519 private key (JWK): restore it, or move it away to have a new one generated."
    )
