"""Compact JWS (RFC 7515): strict parsing, and signatures with Ed25519 only (RFC 9864).

The caller lists the exact header fields. Fields with which an attacker could choose the key or the algorithm (`jku`,
`x5u`, `crit`, `b64`, ...) are therefore rejected before a signature is checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from stentor.auth.authority.claims import ReceiptError
from stentor.auth.authority.keys import decode_base64url, encode_base64url
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

ALGORITHM = "Ed25519"
"""Its fully specified name; the older `EdDSA` leaves the curve open and is rejected."""
MAX_LENGTH = 4096
"""Maximum characters of one receipt or proof."""
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}")
_REGISTRY = jws.JWSRegistry(algorithms=[ALGORITHM])
_ED25519 = _REGISTRY.get_alg(ALGORITHM)


@dataclass(frozen=True, repr=False)
class UnverifiedJws:
    """A parsed JWS whose signature was not checked. It has no `repr`, because `text` may work as a credential."""

    text: str
    header: JsonObject
    claims: JsonObject


def parse(text: str) -> UnverifiedJws:
    """Parse a compact JWS whose header and claims are strict JSON objects. Raises ReceiptError."""
    if len(text) > MAX_LENGTH:
        raise ReceiptError("it is too long")
    if not _FORM.fullmatch(text):
        raise ReceiptError("it is not a JWS in compact form with an Ed25519 signature")
    header, claims, _ = text.split(".")
    return UnverifiedJws(text, _object(decode_base64url(header)), _object(decode_base64url(claims)))


def require_header(compact: UnverifiedJws, type_: str, *others: str) -> None:
    """Raise ReceiptError unless the header consists of exactly alg, typ (both with the right value) and `others`."""
    header = compact.header
    if header.get("alg") != ALGORITHM:
        raise ReceiptError("the algorithm is not Ed25519")
    if header.get("typ") != type_:
        raise ReceiptError("the token has the wrong type")
    if set(header) != {"alg", "typ", *others}:
        raise ReceiptError("the header has missing or unknown fields")


def verify(compact: UnverifiedJws, key: OKPKey) -> None:
    """Raise ReceiptError unless the signature was made with this key."""
    signed, _, signature = compact.text.rpartition(".")
    try:
        # Not the library's own entry point: it would parse the header again, and leniently.
        is_valid = _ED25519.verify(signed.encode(), decode_base64url(signature), key)
    except (JoseError, ValueError):
        is_valid = False
    if not is_valid:
        raise ReceiptError("the signature is invalid")


def sign(header: JsonObject, claims: JsonObject, key: OKPKey) -> str:
    """Return the signed compact form; `alg` is added to the header."""
    payload = jsontext.encode(claims)
    return jws.serialize_compact({"alg": ALGORITHM, **header}, payload, key, registry=_REGISTRY)


def sha256_base64url(data: bytes | str) -> str:
    """Return the SHA-256 in base64url, 43 characters."""
    return encode_base64url(hashlib.sha256(data.encode() if isinstance(data, str) else data).digest())


def _object(data: bytes) -> JsonObject:
    return parse_strict_object(data, "a part is not a JSON object with unique names")


def parse_strict_object(data: bytes, complaint: str) -> JsonObject:
    """Parse a UTF-8 JSON object without duplicate names, NaN or deep nesting.

    Raises ReceiptError with the text `complaint`. Duplicates are rejected because parsers disagree on which value wins.
    """
    try:
        jsontext.decode(data)  # depth, encoding and numbers: `json` is lenient about all three
        value = json.loads(data.decode(), object_pairs_hook=_unique_names)
    except (InvalidRequest, ValueError):
        raise ReceiptError(complaint) from None
    if not isinstance(value, dict):
        raise ReceiptError(complaint)
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate name")
    return members
