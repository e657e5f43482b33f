"""Decode JSON of clients strictly and within limits; encode JSON for responses and the database.

The strict part is `stentor_vault.jsontext`, because the vault's server reads JSON of clients too. For hashes that other
programs must reproduce see `canonical_json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest
from stentor_vault.jsontext import MAX_CONTAINERS, MAX_DEPTH, JsonObject, check_shape, decode, encode, parse_float

__all__ = [
    "MAX_CONTAINERS",
    "MAX_DEPTH",
    "JsonObject",
    "check_shape",
    "decode",
    "decode_or_none",
    "dump",
    "encode",
    "encode_line",
    "load",
    "parse_float",
    "sorted_digest",
]
load: Callable[[str | bytes], Any] = msgspec.json.Decoder(float_hook=parse_float).decode
"""Decodes a JSON text from the database. Raises msgspec.DecodeError."""


def decode_or_none(body: bytes) -> Any:
    """Return the value of a JSON text, None for what is not JSON."""
    try:
        return decode(body) if body else None
    except InvalidRequest:
        return None


def dump(value: Any) -> str:
    """Encode a value as JSON text for the database."""
    return encode(value).decode()


def encode_line(value: Any) -> bytes:
    """Encode a value as one line of JSON, for every reader.

    Some readers, such as `str.splitlines`, also break lines at U+0085, U+2028 and U+2029, so these are escaped.
    """
    line = encode(value)
    if b"\xe2\x80" in line:
        line = line.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return line.replace(b"\xc2\x85", rb"\u0085")


def sorted_digest(value: Any) -> str:
    """Return the SHA-256 of the JSON with sorted keys, in hex."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
