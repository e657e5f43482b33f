"""Strict JSON in, canonical-enough JSON out.

The caps are reached before any recursive code runs: the standard library's and msgspec's
decoders raise RecursionError on deep input, which must be the caller's error, not ours.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest

MAX_DEPTH = 100

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(body: bytes) -> Any:
    """The value of a JSON text of a caller. Raises InvalidRequest with the reason."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise InvalidRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
    try:
        return _decoder.decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The JSON has a number out of range: {error}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def _depth(body: bytes) -> int:
    """Levels of nesting, counted without recursion; brackets inside strings do not count."""
    depth = deepest = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def load(text: str) -> Any:
    """The value of a text that a store wrote."""
    return _decoder.decode(text)


def dump(value: Any) -> str:
    """JSON text for a store."""
    return _encoder.encode(value).decode()


def encode(value: Any) -> bytes:
    """JSON bytes for an answer."""
    return _encoder.encode(value)


def line(value: Any) -> bytes:
    """JSON bytes that every reader takes for one line: some break lines at these characters too, as Python's do."""
    found = _encoder.encode(value)
    if b"\xe2\x80" in found:
        found = found.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return found.replace(b"\xc2\x85", rb"\u0085")


def digest(value: Any) -> str:
    """SHA-256 over the JSON with sorted keys, in hex."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
