"""JsonLogic's operators on evaluated arguments, with JavaScript's conversions, and `glob` and `regexp`. Pure.

JsonLogic is defined by JavaScript's semantics: truthiness, loose equality, conversion to numbers and strings.
Patterns come from callers and run on RE2, whose time is linear in the text; it has no backreferences and no
lookaround, and a pattern with these raises InvalidRule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from stentor_vault.errors import InvalidRequest


class InvalidRule(InvalidRequest):
    """The rule has an unknown operator or an invalid pattern, or exceeds a limit."""


MAX_PATTERN_LENGTH, MAX_PROGRAM_SIZE = 500, 1_000
"""Limits of a pattern: characters, and instructions of the compiled program."""
MAX_TEXT_LENGTH, MAX_LIST_LENGTH = 1_000_000, 100_000
"""Limits of a computed value: characters of a text, items of a list."""
MAX_NESTING = 200
"""Limit of the levels of lists and objects in a value that is made a text or a result."""
_MAX_MEMORY_BYTES = 4 * 1024 * 1024
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MAX_SAFE_INTEGER = 2**53  # above it JavaScript's numbers, which are floats, skip integers


def is_truthy(value: Any) -> bool:
    """Return JsonLogic's truth of a value: an empty list is false, an empty object and "0" are true."""
    if isinstance(value, float) and math.isnan(value):
        return False
    return True if isinstance(value, dict) else bool(value)


def to_number(value: Any) -> float:
    """Convert a value to a number, NaN if it is not one."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float):
        return _to_float(value)
    if isinstance(value, dict):
        return math.nan
    text = to_string(value).strip()
    if not text:
        return 0.0
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def parse_leading_number(value: Any) -> float:
    """Return the number at the beginning of a text, such as 12 of "12 items", like JavaScript's parseFloat."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _to_float(value)
    match = _NUMBER.match(to_string(value).strip())
    return float(match[0]) if match else math.nan


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def to_json_number(value: float) -> Any:
    """Return a whole number as an int, any other number as it is."""
    if not math.isfinite(value):
        return value
    return int(value) if value == int(value) and abs(value) < _MAX_SAFE_INTEGER else value


def to_string(value: Any) -> str:
    """Convert a value to a string as JavaScript does."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return ",".join(_list_texts(value))
    if isinstance(value, dict):
        return "[object Object]"
    return "NaN" if isinstance(value, float) and math.isnan(value) else str(to_json_number(_to_float(value)))


def _list_texts(value: list[Any]) -> list[str]:
    """Return the texts of all values in a list and the lists in it. Raises InvalidRule above the limits.

    A list may have the same one many times, so that a small one has a text of any length.
    """
    texts, size = list[str](), 0
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, list) and item:
            if depth > MAX_NESTING:
                raise InvalidRule(f"A list is nested deeper than {MAX_NESTING} levels.")
            size += len(item)
            pending += [(inner, depth + 1) for inner in reversed(item)]
        else:
            texts.append("" if item is None or item == [] else to_string(item))
            size += len(texts[-1])
        if size > MAX_TEXT_LENGTH:
            raise InvalidRule(f"The text of a list would have more than {MAX_TEXT_LENGTH} characters.")
    return texts


def js_type(value: Any) -> str:
    """Return the name of the value's JavaScript type; "none" for null."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "none" if value is None else "object"


def strict_equal(left: Any, right: Any) -> bool:
    """Return JavaScript's `===`: same type and equal; lists and objects are compared by identity."""
    if js_type(left) != js_type(right):
        return False
    return left is right if js_type(left) == "object" else bool(left == right)


def loose_equal(left: Any, right: Any) -> bool:
    """Return JavaScript's `==`: 1 equals "1" and true; null equals only null."""
    types = js_type(left), js_type(right)
    if types[0] == types[1] or "none" in types:
        return strict_equal(left, right)
    if "object" in types and "string" in types:
        return to_string(left) == to_string(right)
    return to_number(left) == to_number(right)


def is_less(left: Any, right: Any) -> bool:
    """Return JavaScript's `<`: two strings are compared as text, everything else as numbers."""
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    return to_number(left) < to_number(right)


def is_less_or_equal(left: Any, right: Any) -> bool:
    """Return JavaScript's `<=`: two strings are compared as text, everything else as numbers."""
    # Not "not is_less(right, left)": every comparison with NaN is false.
    if isinstance(left, str) and isinstance(right, str):
        return left <= right
    return to_number(left) <= to_number(right)


def match_regexp(pattern: Any, text: Any) -> bool:
    """Return whether the pattern occurs in the text; False unless both are strings. Raises InvalidRule."""
    if not isinstance(pattern, str) or not isinstance(text, str):
        return False
    return _compile(pattern).search(text) is not None


def match_glob(pattern: Any, text: Any) -> bool:
    """Return whether the pattern matches the whole text; `*` matches any characters except line ends."""
    if not isinstance(pattern, str) or not isinstance(text, str):
        return False
    return _compile(".*".join(map(_re2().escape, pattern.split("*")))).fullmatch(text) is not None


def _re2() -> Any:
    import re2  # on first use: it takes 3 MB, and most vaults are never searched by patterns

    return re2


@lru_cache(256)
def _compile(pattern: str) -> Any:
    re2 = _re2()
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidRule(f"The pattern has more than {MAX_PATTERN_LENGTH} characters.")
    options = re2.Options()
    # RE2 would write invalid patterns of callers to standard error.
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidRule(f"The pattern {pattern!r} is invalid: {_reason(error)}.") from None
    if compiled.programsize > MAX_PROGRAM_SIZE:
        raise InvalidRule(f"The pattern {pattern!r} is too complex; use fewer or smaller repetitions.")
    return compiled


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "malformed"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _nth(args: list[Any], n: int) -> Any:
    return args[n] if n < len(args) else None


def _chain(compare: Callable[[Any, Any], bool]) -> Callable[[list[Any]], bool]:
    """Return an operator that compares two values, or three as in `1 < x < 3`."""

    def operator(args: list[Any]) -> bool:
        result = compare(_nth(args, 0), _nth(args, 1))
        return result and compare(args[1], args[2]) if len(args) > 2 else result

    return operator


def _contains(args: list[Any]) -> bool:
    member, container = _nth(args, 0), _nth(args, 1)
    if isinstance(container, str):
        return to_string(member) in container
    return isinstance(container, list) and any(strict_equal(item, member) for item in container)


def _concatenate(args: list[Any]) -> str:
    text = "".join("" if arg is None else to_string(arg) for arg in args)
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidRule(f"cat: the result would have more than {MAX_TEXT_LENGTH} characters.")
    return text


def _substring(args: list[Any]) -> str:
    """Return `length` characters from `start`; a negative start or length counts from the end of the text."""
    text, length = to_string(_nth(args, 0)), _nth(args, 2)
    start = _clamp_index(to_number(_nth(args, 1)), len(text))
    rest = text[start:] if start >= 0 else text[max(0, len(text) + start) :]
    return rest if length is None else rest[: _clamp_index(to_number(length), len(text))]


def _clamp_index(value: float, limit: int) -> int:
    return 0 if math.isnan(value) else int(max(-limit, min(limit, value)))


def _sum(args: list[Any]) -> Any:
    return to_json_number(sum(map(parse_leading_number, args)))


def _product(args: list[Any]) -> Any:
    return to_json_number(math.prod(map(parse_leading_number, args)))


def _difference(args: list[Any]) -> Any:
    first = to_number(_nth(args, 0))
    return to_json_number(first - to_number(args[1]) if len(args) > 1 else -first)


def _quotient(args: list[Any]) -> Any:
    dividend, divisor = to_number(_nth(args, 0)), to_number(_nth(args, 1))
    if divisor == 0:
        return math.nan if dividend == 0 or math.isnan(dividend) else math.copysign(math.inf, dividend)
    return to_json_number(dividend / divisor)


def _remainder(args: list[Any]) -> Any:
    # fmod, not %: JavaScript's remainder has the sign of the dividend.
    dividend, divisor = to_number(_nth(args, 0)), to_number(_nth(args, 1))
    return math.nan if divisor == 0 or not math.isfinite(dividend) else to_json_number(math.fmod(dividend, divisor))


def _minimum(args: list[Any]) -> Any:
    return to_json_number(min(map(to_number, args), default=math.inf))


def _maximum(args: list[Any]) -> Any:
    return to_json_number(max(map(to_number, args), default=-math.inf))


def _merge(args: list[Any]) -> list[Any]:
    merged = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
    if len(merged) > MAX_LIST_LENGTH:
        raise InvalidRule(f"merge: the result would have more than {MAX_LIST_LENGTH} items.")
    return merged


OPERATORS: dict[str, Callable[[list[Any]], Any]] = {
    "==": lambda args: loose_equal(_nth(args, 0), _nth(args, 1)),
    "===": lambda args: strict_equal(_nth(args, 0), _nth(args, 1)),
    "!=": lambda args: not loose_equal(_nth(args, 0), _nth(args, 1)),
    "!==": lambda args: not strict_equal(_nth(args, 0), _nth(args, 1)),
    "<": _chain(is_less),
    "<=": _chain(is_less_or_equal),
    ">": _chain(lambda left, right: is_less(right, left)),
    ">=": _chain(lambda left, right: is_less_or_equal(right, left)),
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
    "min": _minimum,
    "max": _maximum,
    "merge": _merge,
    "log": lambda args: _nth(args, 0),
    "glob": lambda args: match_glob(_nth(args, 0), _nth(args, 1)),
    "regexp": lambda args: match_regexp(_nth(args, 0), _nth(args, 1)),
}
