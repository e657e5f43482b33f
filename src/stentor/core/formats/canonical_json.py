"""Canonical JSON (RFC 8785): exactly one text for each value, so that other programs can reproduce its hash.

One deviation: an integer beyond 2**53 keeps its digits, although the RFC treats all numbers as doubles. For JSON of
requests and responses see `jsontext`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import msgspec

LARGEST_PLAIN = 21
"""Digits before the decimal point that ECMAScript writes without an exponent."""


def dumps(value: Any) -> str:
    """Return the canonical text of a value. Raises ValueError for NaN, infinities and types that JSON does not have."""
    # Before int: in Python a bool is one, and would be written as `True`.
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _format_number(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(name)}:{dumps(value[name])}" for name in _sort_names(value)) + "}"
    raise ValueError(f"JSON has no {type(value).__name__}.")


def row_encoder(names: Iterable[str]) -> Callable[[tuple[Any, ...]], bytes]:
    """Return a fast encoder for many objects with the same member names.

    It takes the values (texts, integers and None) in the order of `names`, and returns the canonical text in UTF-8.
    There must be at least two names, of plain letters.
    """
    columns = tuple(names)
    ordered = _sort_names(columns)
    fields = {f"m{i}": name for i, name in enumerate(ordered)}
    # A struct is encoded in the order of its fields, so defining them sorted makes its text canonical. The names are
    # only renamed to m0, m1 ... because a column may be called like a Python keyword.
    members = msgspec.defstruct("Members", [(field, Any) for field in fields], rename=fields, gc=False)
    # With one name itemgetter would return a bare value, hence the two.
    pick = itemgetter(*map(columns.index, ordered))
    encode = msgspec.json.Encoder().encode
    return lambda values: encode(members(*pick(values)))


def _sort_names(names: Iterable[str]) -> list[str]:
    """Sort by UTF-16 code units, as the RFC demands."""
    return sorted(names, key=lambda name: name.encode("utf-16-be"))


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical text in UTF-8, in hex."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def _format_number(value: float) -> str:
    """Format a number like ECMAScript's Number.prototype.toString."""
    if not math.isfinite(value):
        raise ValueError("JSON has no such number.")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return sign + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    """Return the digits with the decimal point after the first `point` digits."""
    count = len(digits)
    if count <= point <= LARGEST_PLAIN:
        return digits + "0" * (point - count)
    if 0 < point <= LARGEST_PLAIN:
        return f"{digits[:point]}.{digits[point:]}"
    # ECMAScript's bounds: plain digits from 1e-6 up to below 1e21, an exponent outside.
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    exponent = point - 1
    return f"{digits[0]}{'.' + digits[1:] if count > 1 else ''}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
