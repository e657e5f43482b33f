"""Decode JSON of clients strictly and within limits; encode JSON for responses.

The limits are checked before a decoder runs: the recursive decoders of msgspec and the standard library raise
RecursionError for deep input, which must be the client's error and not ours.
"""

from __future__ import annotations

import re
from functools import cache
from math import isinf
from typing import Any, TypeAlias

import msgspec

from stentor_vault.errors import InvalidRequest

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object whose fields this program does not own: a task's input, an event's payload, a provider's document.

What has known fields is a class.
"""

MAX_DEPTH = 100
MAX_CONTAINERS = 200_000
"""Arrays and objects of one text. The decoder takes half a second for a million, and cannot be interrupted."""
# The arrays below take many bytes for each byte of the text, so a large body is scanned in blocks.
BLOCK_BYTES = 128 * 1024
NUMPY_MIN_BYTES = 2_000
"""Brackets and quotes from which NumPy counts faster than a loop."""
MAX_SHALLOW_ROUNDS = 20
"""Rounds that remove one or two levels each, before the levels are counted; nearly all texts need fewer."""
QUOTE = ord('"')
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
_UNPAIRED_AT_END = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\(?:u|\Z)).{1,5}\Z", re.DOTALL)
_ESCAPED_QUOTE, _ESCAPED_BACKSLASH = re.compile(rb'\\"'), re.compile(rb"\\\\")
_OTHERS = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def parse_float(text: str) -> float:
    """Parse a float; the `float_hook` for decoders of client input. Raises ValueError for a number that is too large.

    msgspec itself takes 30 microseconds for a number such as 1e308, so a body full of them would block the event loop.
    """
    value = float(text)
    if isinf(value):
        raise ValueError("Number out of range")
    return value


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=parse_float)
encode = msgspec.json.Encoder().encode
"""Encode a value as JSON bytes for a response."""


def decode(body: bytes) -> Any:
    """Decode a JSON text of a client. Raises InvalidRequest with the reason."""
    check_shape(body)
    try:
        return _decoder.decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The JSON has a number out of range: {error}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        # If fewer than six bytes follow, the decoder says that the input was truncated.
        if _UNPAIRED_AT_END.search(body[-64:]):
            raise InvalidRequest("The body is not valid JSON: a string has an unpaired surrogate.") from None
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def check_shape(body: bytes) -> None:
    """Raise InvalidRequest for a text with too many levels or containers."""
    # So few brackets cannot exceed a limit, and most requests have no more.
    if (opened := body.count(b"[") + body.count(b"{")) > MAX_DEPTH:
        _check_shape(body, opened)


@cache
def _load_numpy() -> Any:
    """Return NumPy, or None where it is not installed: this package does not need it."""
    try:
        import numpy  # on first use: the import takes 0.1 s
    except ImportError:
        return None
    return numpy


class _Shape(msgspec.Struct):
    """The nesting of a text, counted up to a position in it."""

    depth: int = 0
    deepest: int = 0
    opened: int = 0
    closed: int = 0
    in_string: bool = False

    def take(self, marks: bytes) -> None:
        """Count the next part of the text, reduced to brackets and quotes."""
        for mark in marks:
            if mark == QUOTE:
                self.in_string = not self.in_string
            elif not self.in_string:
                step = 1 if mark in b"[{" else -1
                self.depth += step
                self.opened += step > 0
                self.closed += step < 0
                self.deepest = max(self.deepest, self.depth)

    def take_many(self, marks: bytes) -> None:
        """Do the same as `take` with NumPy, which is faster for long parts."""
        np = _load_numpy()
        quotes = np.cumsum(np.frombuffer(marks, np.uint8) == QUOTE) + self.in_string
        steps = np.where(quotes & 1, 0, np.frombuffer(marks.translate(_STEPS), np.int8))
        levels = np.cumsum(steps) + self.depth
        self.depth, self.in_string = int(levels[-1]), bool(quotes[-1] & 1)
        self.deepest = max(self.deepest, int(levels.max()))
        self.opened += int(np.count_nonzero(steps == 1))
        self.closed += int(np.count_nonzero(steps == -1))


def _is_shallow(marks: bytes) -> bool:
    """Return whether brackets and quotes certainly have no more than MAX_DEPTH levels; faster than to count them.

    Each round removes the innermost one or two levels. What stays is inside or outside a string as before: two quotes
    are removed together, and two brackets side by side are either both in a string or both not.
    """
    for _ in range(MAX_SHALLOW_ROUNDS):
        length, marks = len(marks), marks.replace(b'""', b"").replace(b"[]", b"").replace(b"{}", b"")
        if len(marks) in (0, length):
            break
    return not marks


def _check_shape(body: bytes, opened: int) -> None:
    """Count levels and containers in linear time. Raises InvalidRequest.

    Ignores brackets inside strings. For invalid JSON the counts are meaningless; the decoder rejects it later.
    """
    # Without an escaped quote each quote starts or ends a string. The patterns take a third of the time of `in`.
    if _ESCAPED_QUOTE.search(body):
        # First: otherwise the quote after an escaped backslash would look escaped.
        if _ESCAPED_BACKSLASH.search(body):
            body = body.replace(b"\\\\", b"")
        body = body.replace(rb"\"", b"")
    marks = body.translate(None, _OTHERS)
    if opened <= MAX_CONTAINERS and len(marks) <= BLOCK_BYTES and _is_shallow(marks):
        return
    shape = _Shape()
    for start in range(0, len(marks), BLOCK_BYTES):
        block = marks[start : start + BLOCK_BYTES]
        if len(block) < NUMPY_MIN_BYTES or _load_numpy() is None:
            shape.take(block)
        else:
            shape.take_many(block)
        if shape.deepest > MAX_DEPTH:
            raise InvalidRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
        if max(shape.opened, shape.closed) > MAX_CONTAINERS:
            raise InvalidRequest(f"The JSON has more than {MAX_CONTAINERS:,} arrays and objects.")
