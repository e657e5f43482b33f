"""Strict JSON in, canonical-enough JSON out.

The caps are reached before any recursive code runs: the standard library's and msgspec's
decoders raise RecursionError on deep input, which must be the caller's error, not ours.
"""

from __future__ import annotations

import hashlib
from math import isinf
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest

MAX_DEPTH = 100
MAX_CONTAINERS = 200_000
"""Arrays and objects of one text. A million takes the decoder half a second, which nothing can interrupt."""
BLOCK_BYTES = 128 * 1024
FEW = 2_000
"""Brackets and quotes that are counted faster without numpy."""
QUOTE = ord('"')
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
_OTHERS = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def parse_float(text: str) -> float:
    """For `float_hook` of a decoder of what others wrote: msgspec's own reading of some numbers, such as 1e308, takes
    30 microseconds for each, and nothing else runs meanwhile. Raises ValueError for one beyond the largest.
    """
    value = float(text)
    if isinf(value):
        raise ValueError("Number out of range")
    return value


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=parse_float)
_encoder = msgspec.json.Encoder()


def decode(body: bytes) -> Any:
    """The value of a JSON text of a caller. Raises InvalidRequest with the reason."""
    check_shape(body)
    try:
        return _decoder.decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The JSON has a number out of range: {error}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def decode_or_none(body: bytes) -> Any:
    """Return the value of a JSON text, None for what is not JSON."""
    try:
        return decode(body) if body else None
    except InvalidRequest:
        return None


def check_shape(body: bytes) -> None:
    """Raises InvalidRequest for a text with too many levels or containers, before a decoder meets them."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_shape(body)


class _Shape(msgspec.Struct):
    """What the brackets of a text say up to a place in it."""

    depth: int = 0
    deepest: int = 0
    containers: int = 0
    in_string: bool = False

    def take(self, marks: bytes) -> None:
        """`marks` are brackets and quotes alone."""
        for mark in marks:
            if mark == QUOTE:
                self.in_string = not self.in_string
            elif not self.in_string:
                step = 1 if mark in b"[{" else -1
                self.depth += step
                self.containers += step > 0
                self.deepest = max(self.deepest, self.depth)

    def take_many(self, marks: bytes) -> None:
        """The same without a step of Python for each."""
        import numpy as np  # not before it is needed: it takes a tenth of the time of a start

        quotes = np.cumsum(np.frombuffer(marks, np.uint8) == QUOTE) + self.in_string
        steps = np.where(quotes & 1, 0, np.frombuffer(marks.translate(_STEPS), np.int8))
        levels = np.cumsum(steps) + self.depth
        self.depth, self.in_string = int(levels[-1]), bool(quotes[-1] & 1)
        self.deepest = max(self.deepest, int(levels.max()))
        self.containers += int(np.count_nonzero(steps == 1))


def _check_shape(body: bytes) -> None:
    """Levels of nesting, and how many arrays and objects there are, in time that grows with the size alone.

    Brackets inside strings do not count. Of a text that is no JSON the counts mean nothing; the decoder refuses it.
    Raises InvalidRequest.
    """
    if b"\\" in body:  # only strings have backslashes, and after this none of them hides a quote
        body = body.replace(b"\\\\", b"").replace(rb"\"", b"")
    marks, shape = body.translate(None, _OTHERS), _Shape()
    for start in range(0, len(marks), BLOCK_BYTES):
        block = marks[start : start + BLOCK_BYTES]
        if len(block) < FEW:
            shape.take(block)
        else:
            shape.take_many(block)
        if shape.deepest > MAX_DEPTH:
            raise InvalidRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
        if shape.containers > MAX_CONTAINERS:
            raise InvalidRequest(f"The JSON has more than {MAX_CONTAINERS:,} arrays and objects.")


def load(text: str | bytes) -> Any:
    """The value of a text that a store wrote. Raises msgspec.DecodeError."""
    return _decoder.decode(text)


def dump(value: Any) -> str:
    """JSON text for a store."""
    return _encoder.encode(value).decode()


def encode(value: Any) -> bytes:
    """JSON bytes for an answer."""
    return _encoder.encode(value)


def encode_line(value: Any) -> bytes:
    """JSON bytes that every reader takes for one line: some break lines at these characters too, as Python's do."""
    found = _encoder.encode(value)
    if b"\xe2\x80" in found:
        found = found.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return found.replace(b"\xc2\x85", rb"\u0085")


def sorted_digest(value: Any) -> str:
    """SHA-256 over the JSON with sorted keys, in hex."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
