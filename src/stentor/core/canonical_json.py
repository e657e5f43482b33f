"""Canonical JSON after RFC 8785: one text for one value, whatever wrote it, so that its hash means something.

An integer beyond 2**53 keeps its digits, where the RFC has no integers but doubles.
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
"""Digits before the point that ECMAScript writes without an exponent."""


def dumps(value: Any) -> str:
    """The canonical text of what JSON can hold. Raises ValueError for NaN, infinities and other kinds of values."""
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumps, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(name)}:{dumps(value[name])}" for name in _ordered(value)) + "}"
    raise ValueError(f"JSON has no {type(value).__name__}.")


def row_encoder(names: Iterable[str]) -> Callable[[tuple[Any, ...]], bytes]:
    """A fast way for many objects that have the same names, with texts, integers and nulls as their values.

    It answers the canonical text in UTF-8 of an object whose values come in the order of `names`, at least two of
    plain letters.
    """
    given = tuple(names)
    ordered = _ordered(given)
    fields = {f"m{i}": name for i, name in enumerate(ordered)}
    members = msgspec.defstruct("Members", [(field, Any) for field in fields], rename=fields, gc=False)
    pick = itemgetter(*map(given.index, ordered))
    encode = msgspec.json.Encoder().encode
    return lambda values: encode(members(*pick(values)))


def _ordered(names: Iterable[str]) -> list[str]:
    """By their code units in UTF-16."""
    return sorted(names, key=lambda name: name.encode("utf-16-be"))


def digest(value: Any) -> str:
    """SHA-256 over the canonical text in UTF-8, in hex."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def _number(value: float) -> str:
    """As ECMAScript's Number.prototype.toString writes it."""
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
    return sign + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    """`digits` with the decimal point after `point` of them."""
    count = len(digits)
    if count <= point <= LARGEST_PLAIN:
        return digits + "0" * (point - count)
    if 0 < point <= LARGEST_PLAIN:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    exponent = point - 1
    return f"{digits[0]}{'.' + digits[1:] if count > 1 else ''}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
