"""Decode JSON of clients strictly and within limits; encode JSON for responses.

The limits are checked before the decoder runs, because msgspec raises RecursionError for deep input and is not
interrupted while it builds many objects.
"""

from __future__ import annotations

import re
from itertools import accumulate
from math import isinf
from typing import Any, TypeAlias

import msgspec

from stentor_vault.errors import InvalidRequest

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object of the caller (frontmatter, an instruction), or a document under construction for a response."""

MAX_DEPTH = 100
MAX_CONTAINERS = 200_000
"""Arrays and objects of one text."""
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_STRINGS = re.compile(rb'(?:"[^"]*")+')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _parse_float(text: str) -> float:
    # msgspec itself takes 30 microseconds for a number such as 1e308: a body full of them would block the event loop.
    value = float(text)
    if isinf(value):
        raise ValueError("Number out of range")
    return value


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_parse_float)
encode = msgspec.json.Encoder().encode


def decode(body: bytes) -> Any:
    """Decode a JSON text of a client. Raises InvalidRequest with the reason."""
    # So few brackets cannot exceed a limit, and most requests have no more.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_shape(body)
    try:
        return _decoder.decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The JSON has a number out of range: {error}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def _check_shape(body: bytes) -> None:
    """Count levels and containers, without brackets inside strings. Raises InvalidRequest."""
    if b"\\" in body:  # only strings contain backslashes; without them each quote starts or ends a string
        body = body.replace(b"\\\\", b"").replace(rb"\"", b"")
    marks = _STRINGS.sub(b"", body.translate(None, _NOT_MARKS)).replace(b'"', b"")
    opened = marks.count(b"[") + marks.count(b"{")
    if max(opened, len(marks) - opened) > MAX_CONTAINERS:
        raise InvalidRequest(f"The JSON has more than {MAX_CONTAINERS:,} arrays and objects.")
    if max(accumulate(_STEPS[mark] for mark in marks), default=0) > MAX_DEPTH:
        raise InvalidRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
