"""JsonLogic's operators on values that are evaluated already, and `glob` and `regexp`. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stentor.surfaces.vault.logic import patterns
from stentor.surfaces.vault.logic.faults import BadLogic
from stentor.surfaces.vault.logic.values import (
    alike,
    at_most,
    leading_number,
    less,
    number,
    same,
    string,
    tidy,
    truthy,
)

LONGEST_TEXT, LONGEST_LIST = 1_000_000, 100_000


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
        return string(part) in whole
    return isinstance(whole, list) and any(same(item, part) for item in whole)


def _joined(args: list[Any]) -> str:
    text = "".join("" if arg is None else string(arg) for arg in args)
    if len(text) > LONGEST_TEXT:
        raise BadLogic(f"A text would have more than {LONGEST_TEXT} characters.")
    return text


def _cut(args: list[Any]) -> str:
    """From a place (from the end when negative), so many signs (up to so many from the end when negative)."""
    text, length = string(_nth(args, 0)), _nth(args, 2)
    start = _whole(number(_nth(args, 1)), len(text))
    rest = text[start:] if start >= 0 else text[max(0, len(text) + start) :]
    return rest if length is None else rest[: _whole(number(length), len(text))]


def _whole(value: float, most: int) -> int:
    return 0 if math.isnan(value) else int(max(-most, min(most, value)))


def _sum(args: list[Any]) -> Any:
    return tidy(sum(map(leading_number, args)))


def _product(args: list[Any]) -> Any:
    return tidy(math.prod(map(leading_number, args)))


def _difference(args: list[Any]) -> Any:
    first = number(_nth(args, 0))
    return tidy(first - number(args[1]) if len(args) > 1 else -first)


def _quotient(args: list[Any]) -> Any:
    above, below = number(_nth(args, 0)), number(_nth(args, 1))
    if below == 0:
        return math.nan if above == 0 or math.isnan(above) else math.copysign(math.inf, above)
    return tidy(above / below)


def _rest(args: list[Any]) -> Any:
    above, below = number(_nth(args, 0)), number(_nth(args, 1))
    return math.nan if below == 0 or not math.isfinite(above) else tidy(math.fmod(above, below))


def _least(args: list[Any]) -> Any:
    return tidy(min(map(number, args), default=math.inf))


def _greatest(args: list[Any]) -> Any:
    return tidy(max(map(number, args), default=-math.inf))


def _merged(args: list[Any]) -> list[Any]:
    merged = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
    if len(merged) > LONGEST_LIST:
        raise BadLogic(f"A list would have more than {LONGEST_LIST} items.")
    return merged


OPERATORS: dict[str, Callable[[list[Any]], Any]] = {
    "==": lambda args: alike(_nth(args, 0), _nth(args, 1)),
    "===": lambda args: same(_nth(args, 0), _nth(args, 1)),
    "!=": lambda args: not alike(_nth(args, 0), _nth(args, 1)),
    "!==": lambda args: not same(_nth(args, 0), _nth(args, 1)),
    "<": _between(less),
    "<=": _between(at_most),
    ">": _between(lambda one, other: less(other, one)),
    ">=": _between(lambda one, other: at_most(other, one)),
    "!": lambda args: not truthy(_nth(args, 0)),
    "!!": lambda args: truthy(_nth(args, 0)),
    "in": _contains,
    "cat": _joined,
    "substr": _cut,
    "+": _sum,
    "*": _product,
    "-": _difference,
    "/": _quotient,
    "%": _rest,
    "min": _least,
    "max": _greatest,
    "merge": _merged,
    "log": lambda args: _nth(args, 0),
    "glob": lambda args: patterns.glob(_nth(args, 0), _nth(args, 1)),
    "regexp": lambda args: patterns.regexp(_nth(args, 0), _nth(args, 1)),
}
