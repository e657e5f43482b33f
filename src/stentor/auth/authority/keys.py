"""Ed25519 keys as JSON Web Keys (RFC 8037), read strictly, named by their thumbprint (RFC 7638)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from stentor.auth.authority.flaw import Flaw
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

PUBLIC = frozenset({"kty", "crv", "x"})
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

_PRIME = 2**255 - 19
_EIGHTH = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = frozenset({0, 1, _PRIME - 1, _EIGHTH, _PRIME - _EIGHTH})
"""The y of the eight points with which one signature can fit many messages."""


def generate() -> OKPKey:
    """A new private key."""
    return OKPKey.generate_key("Ed25519")


def read_public(value: Any) -> OKPKey:
    """The public key of a JWK with exactly kty, crv and x. Raises Flaw."""
    if not isinstance(value, dict) or frozenset(value) != PUBLIC:
        raise Flaw("a key is not an object with exactly kty, crv and x")
    if (value["kty"], value["crv"]) != ("OKP", "Ed25519") or not isinstance(value["x"], str):
        raise Flaw("a key is not of the type OKP with the curve Ed25519")
    check_point(decode(value["x"]))
    try:
        return OKPKey.import_key(value)
    except (JoseError, ValueError):
        raise Flaw("a key is not a point of the curve") from None


def read_file(data: bytes) -> OKPKey:
    """The public key of a file: a JWK, whose further members are left out, or PEM. Raises Flaw."""
    try:
        key = OKPKey.import_key(data if data.lstrip().startswith(b"-----") else jsontext.decode(data))
        if key.is_private:
            raise Flaw("it holds a private key, which nobody but its holder may have; give the public half")
        return read_public(public_jwk(key))
    except (InvalidRequest, JoseError, ValueError, TypeError, KeyError, AttributeError):
        raise Flaw("it holds no public Ed25519 key, as a JWK or as PEM") from None


def check_point(encoded: bytes) -> None:
    """Raises Flaw for what is no public key, and for one that anybody can sign for."""
    if len(encoded) != 32:
        raise Flaw("a key does not have 32 bytes")
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    if y >= _PRIME or y in _SMALL_ORDER:
        raise Flaw("a key is one of the points of small order, or not in its one encoding")


def public_jwk(key: OKPKey) -> dict[str, str]:
    """`{kty, crv, x}`."""
    whole = key.as_dict(private=False)
    return {name: str(whole[name]) for name in sorted(PUBLIC)}


def thumbprint(key: OKPKey) -> str:
    """SHA-256 over the public key in base64url, 43 characters: the `kid` of our own key and the `jkt` of a holder."""
    return key.thumbprint()


def decode(text: str) -> bytes:
    """Bytes of base64url without padding, in its one canonical form. Raises Flaw."""
    if not _BASE64URL.fullmatch(text):
        raise Flaw("a part is not base64url")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise Flaw("a part is not base64url") from None
    if encode(data) != text:
        raise Flaw("a part is not in the one form of base64url")
    return data


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
