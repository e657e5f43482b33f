"""Values of rules as JSON has them, with JavaScript's conversions, which JsonLogic is defined by. Pure."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE = 2**53


def truthy(value: Any) -> bool:
    """An empty list is false, an empty object true, and so is "0"."""
    if isinstance(value, float) and math.isnan(value):
        return False
    return True if isinstance(value, dict) else bool(value)


def number(value: Any) -> float:
    """NaN for what is none."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float):
        return _float(value)
    if isinstance(value, dict):
        return math.nan
    text = string(value).strip()
    if not text:
        return 0.0
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def leading_number(value: Any) -> float:
    """That at the begin of a text, such as 12 of "12 pieces"."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _float(value)
    found = _NUMBER.match(string(value).strip())
    return float(found[0]) if found else math.nan


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def tidy(value: float) -> Any:
    """A whole number as one; JSON has no other numbers than finite ones."""
    if not math.isfinite(value):
        return value
    return int(value) if value == int(value) and abs(value) < _WHOLE else value


def string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return ",".join("" if item is None else string(item) for item in value)
    if isinstance(value, dict):
        return "[object Object]"
    return "NaN" if isinstance(value, float) and math.isnan(value) else str(tidy(_float(value)))


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "none" if value is None else "object"


def same(one: Any, other: Any) -> bool:
    """Strictly: of one kind and equal; lists and objects are only themselves."""
    if kind(one) != kind(other):
        return False
    return one is other if kind(one) == "object" else bool(one == other)


def alike(one: Any, other: Any) -> bool:
    """Loosely: 1 is "1" and true; null is itself alone."""
    kinds = kind(one), kind(other)
    if kinds[0] == kinds[1] or "none" in kinds:
        return same(one, other)
    if "object" in kinds and "string" in kinds:
        return string(one) == string(other)
    return number(one) == number(other)


def less(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one < other
    return number(one) < number(other)


def at_most(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one <= other
    return number(one) <= number(other)
