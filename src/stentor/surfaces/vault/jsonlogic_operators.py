"""Why a rule cannot be evaluated.

Values of rules as JSON has them, with JavaScript's conversions, which JsonLogic is defined by. Pure.

Patterns of callers. RE2 takes time in proportion to the text, whatever the pattern: none can hang the server.

For that it has no references back and no looking around; a pattern with those is refused.

JsonLogic's operators on values that are evaluated already, and `glob` and `regexp`. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import re2

from stentor.core.errors import InvalidRequest


class InvalidRule(InvalidRequest):
    """The rule has an operator or a pattern that is none, or takes more work than it may."""


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MAX_SAFE_INTEGER = 2**53


def is_truthy(value: Any) -> bool:
    """An empty list is false, an empty object true, and so is "0"."""
    if isinstance(value, float) and math.isnan(value):
        return False
    return True if isinstance(value, dict) else bool(value)


def to_number(value: Any) -> float:
    """NaN for what is none."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float):
        return _float(value)
    if isinstance(value, dict):
        return math.nan
    text = to_string(value).strip()
    if not text:
        return 0.0
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def parse_leading_number(value: Any) -> float:
    """That at the begin of a text, such as 12 of "12 pieces"."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _float(value)
    found = _NUMBER.match(to_string(value).strip())
    return float(found[0]) if found else math.nan


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def to_json_number(value: float) -> Any:
    """A whole number as one; JSON has no other numbers than finite ones."""
    if not math.isfinite(value):
        return value
    return int(value) if value == int(value) and abs(value) < _MAX_SAFE_INTEGER else value


def to_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return ",".join("" if item is None else to_string(item) for item in value)
    if isinstance(value, dict):
        return "[object Object]"
    return "NaN" if isinstance(value, float) and math.isnan(value) else str(to_json_number(_float(value)))


def js_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "none" if value is None else "object"


def strict_equal(one: Any, other: Any) -> bool:
    """Strictly: of one kind and equal; lists and objects are only themselves."""
    if js_type(one) != js_type(other):
        return False
    return one is other if js_type(one) == "object" else bool(one == other)


def loose_equal(one: Any, other: Any) -> bool:
    """Loosely: 1 is "1" and true; null is itself alone."""
    kinds = js_type(one), js_type(other)
    if kinds[0] == kinds[1] or "none" in kinds:
        return strict_equal(one, other)
    if "object" in kinds and "string" in kinds:
        return to_string(one) == to_string(other)
    return to_number(one) == to_number(other)


def is_less(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one < other
    return to_number(one) < to_number(other)


def is_less_or_equal(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one <= other
    return to_number(one) <= to_number(other)


MAX_PATTERN_LENGTH, MAX_PROGRAM_SIZE = 500, 1_000
"""Of a pattern: characters, and steps of the program that it becomes."""
_MAX_MEMORY_BYTES = 4 * 1024 * 1024


def match_regexp(pattern: Any, text: Any) -> bool:
    """Whether the pattern is found anywhere in the text; false for what are no texts. Raises BadLogic."""
    if not isinstance(pattern, str) or not isinstance(text, str):
        return False
    return _compiled(pattern).search(text) is not None


def match_glob(pattern: Any, text: Any) -> bool:
    """Whether the whole text is like the pattern, whose `*` stands for any signs of one line."""
    if not isinstance(pattern, str) or not isinstance(text, str):
        return False
    return _compiled(".*".join(map(re2.escape, pattern.split("*")))).fullmatch(text) is not None


@lru_cache(256)
def _compiled(pattern: str) -> Any:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidRule(f"A pattern has {MAX_PATTERN_LENGTH} characters at most.")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidRule(f"The pattern {pattern!r} cannot be used: {_reason(error)}.") from None
    if compiled.programsize > MAX_PROGRAM_SIZE:
        raise InvalidRule(f"The pattern {pattern!r} repeats too much.")
    return compiled


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "it is malformed"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


MAX_TEXT_LENGTH, MAX_LIST_LENGTH = 1_000_000, 100_000


def _nth(args: list[Any], n: int) -> Any:
    return args[n] if n < len(args) else None


def _between(holds: Callable[[Any, Any], bool]) -> Callable[[list[Any]], bool]:
    """With three values the middle one lies between."""

    def check(args: list[Any]) -> bool:
        first = holds(_nth(args, 0), _nth(args, 1))
        return first and holds(args[1], args[2]) if len(args) > 2 else first

    return check


def _contains(args: list[Any]) -> bool:
    part, whole = _nth(args, 0), _nth(args, 1)
    if isinstance(whole, str):
        return to_string(part) in whole
    return isinstance(whole, list) and any(strict_equal(item, part) for item in whole)


def _concatenate(args: list[Any]) -> str:
    text = "".join("" if arg is None else to_string(arg) for arg in args)
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidRule(f"A text would have more than {MAX_TEXT_LENGTH} characters.")
    return text


def _substring(args: list[Any]) -> str:
    """From a place (from the end when negative), so many signs (up to so many from the end when negative)."""
    text, length = to_string(_nth(args, 0)), _nth(args, 2)
    start = _clamp_index(to_number(_nth(args, 1)), len(text))
    rest = text[start:] if start >= 0 else text[max(0, len(text) + start) :]
    return rest if length is None else rest[: _clamp_index(to_number(length), len(text))]


def _clamp_index(value: float, most: int) -> int:
    return 0 if math.isnan(value) else int(max(-most, min(most, value)))


def _sum(args: list[Any]) -> Any:
    return to_json_number(sum(map(parse_leading_number, args)))


def _product(args: list[Any]) -> Any:
    return to_json_number(math.prod(map(parse_leading_number, args)))


def _difference(args: list[Any]) -> Any:
    first = to_number(_nth(args, 0))
    return to_json_number(first - to_number(args[1]) if len(args) > 1 else -first)


def _quotient(args: list[Any]) -> Any:
    above, below = to_number(_nth(args, 0)), to_number(_nth(args, 1))
    if below == 0:
        return math.nan if above == 0 or math.isnan(above) else math.copysign(math.inf, above)
    return to_json_number(above / below)


def _remainder(args: list[Any]) -> Any:
    above, below = to_number(_nth(args, 0)), to_number(_nth(args, 1))
    return math.nan if below == 0 or not math.isfinite(above) else to_json_number(math.fmod(above, below))


def _least(args: list[Any]) -> Any:
    return to_json_number(min(map(to_number, args), default=math.inf))


def _greatest(args: list[Any]) -> Any:
    return to_json_number(max(map(to_number, args), default=-math.inf))


def _merged(args: list[Any]) -> list[Any]:
    merged = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
    if len(merged) > MAX_LIST_LENGTH:
        raise InvalidRule(f"A list would have more than {MAX_LIST_LENGTH} items.")
    return merged


OPERATORS: dict[str, Callable[[list[Any]], Any]] = {
    "==": lambda args: loose_equal(_nth(args, 0), _nth(args, 1)),
    "===": lambda args: strict_equal(_nth(args, 0), _nth(args, 1)),
    "!=": lambda args: not loose_equal(_nth(args, 0), _nth(args, 1)),
    "!==": lambda args: not strict_equal(_nth(args, 0), _nth(args, 1)),
    "<": _between(is_less),
    "<=": _between(is_less_or_equal),
    ">": _between(lambda one, other: is_less(other, one)),
    ">=": _between(lambda one, other: is_less_or_equal(other, one)),
    "!": lambda args: not is_truthy(_nth(args, 0)),
    "!!": lambda args: is_truthy(_nth(args, 0)),
    "in": _contains,
    "cat": _concatenate,
    "substr": _substring,
    "+": _sum,
    "*": _product,
    "-": _difference,
    "/": _quotient,
    "%": _remainder,
    "min": _least,
    "max": _greatest,
    "merge": _merged,
    "log": lambda args: _nth(args, 0),
    "glob": lambda args: match_glob(_nth(args, 0), _nth(args, 1)),
    "regexp": lambda args: match_regexp(_nth(args, 0), _nth(args, 1)),
}
