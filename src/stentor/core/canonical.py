"""Canonical JSON after RFC 8785: one text for one value, whatever wrote it, so that its hash means something.

An integer beyond 2**53 keeps its digits, where the RFC has no integers but doubles.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

LARGEST_PLAIN = 21
"""Digits before the point that ECMAScript writes without an exponent."""


def text(value: Any) -> str:
    """The canonical text of what JSON can hold. Raises ValueError for NaN, infinities and other kinds of values."""
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(text, value)) + "]"
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text(item)}" for name, item in members) + "}"
    raise ValueError(f"JSON has no {type(value).__name__}.")


def digest(value: Any) -> str:
    """SHA-256 over the canonical text in UTF-8, in hex."""
    return hashlib.sha256(text(value).encode()).hexdigest()


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
