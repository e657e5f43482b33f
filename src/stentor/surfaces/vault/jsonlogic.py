"""A rule evaluated over facts, within a number of steps and a time, so that no rule can hold the server up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from stentor.surfaces.vault.jsonlogic_operators import OPERATORS, InvalidRule, is_truthy, to_string

MAX_STEPS, MAX_SECONDS = 5_000_000, 10.0
"""Of one search."""
Arguments = list[Any]


class RuleData:
    """What a rule asks, of which the dear parts are made when it asks for them."""

    def get_field(self, name: str) -> Any:
        """None for what is not there."""
        return self.to_dict().get(name)

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError


class JsonLogicRule:
    """One JsonLogic rule. Raises BadLogic when it is evaluated and has what is no operator, or takes too long."""

    def __init__(self, rule: Any, max_steps: int = MAX_STEPS, max_seconds: float = MAX_SECONDS) -> None:
        self._rule = rule
        self._steps = max_steps
        self._until = time.monotonic() + max_seconds
        self._special: dict[str, Callable[[Arguments, Any], Any]] = {
            "if": self._if,
            "?:": self._if,
            "and": self._and,
            "or": self._or,
            "var": self._var,
            "missing": self._missing,
            "missing_some": self._missing_some,
            "filter": self._filter,
            "map": self._map,
            "reduce": self._reduce,
            "all": self._all,
            "some": self._some,
            "none": lambda args, data: not self._some(args, data),
        }

    def find_matches(self, notes: Iterable[RuleData]) -> list[dict[str, Any]]:
        """`{filename, result}` of each note for which the rule is true; empty lists and objects are not."""
        found = []
        for note in notes:
            result = self.evaluate(note)
            if is_truthy(result) and result != {}:
                found.append({"filename": note.get_field("path"), "result": result})
        return found

    def evaluate(self, data: Any) -> Any:
        return self._apply(self._rule, data)

    def _apply(self, rule: Any, data: Any) -> Any:
        self._count()
        if isinstance(rule, list):
            return [self._apply(item, data) for item in rule]
        if not isinstance(rule, dict) or len(rule) != 1:
            return rule
        [(name, given)] = rule.items()
        args = given if isinstance(given, list) else [given]
        special = self._special.get(name)
        if special is not None:
            return special(args, data)
        operator = OPERATORS.get(name)
        if operator is None:
            raise InvalidRule(f"{name[:80]!r} is no operator.")
        return operator([self._apply(arg, data) for arg in args])

    def _count(self) -> None:
        self._steps -= 1
        if self._steps < 0 or (self._steps % 256 == 0 and time.monotonic() > self._until):
            raise InvalidRule("The rule takes too much work over this vault; ask for less at once.")

    def _given(self, args: Arguments, n: int, data: Any) -> Any:
        return self._apply(args[n], data) if n < len(args) else None

    def _items(self, args: Arguments, data: Any) -> list[Any]:
        items = self._given(args, 0, data)
        return items if isinstance(items, list) else []

    def _if(self, args: Arguments, data: Any) -> Any:
        at = 0
        while at + 1 < len(args):
            if is_truthy(self._apply(args[at], data)):
                return self._apply(args[at + 1], data)
            at += 2
        return self._given(args, at, data)

    def _and(self, args: Arguments, data: Any) -> Any:
        value = None
        for arg in args:
            value = self._apply(arg, data)
            if not is_truthy(value):
                break
        return value

    def _or(self, args: Arguments, data: Any) -> Any:
        value = None
        for arg in args:
            value = self._apply(arg, data)
            if is_truthy(value):
                break
        return value

    def _var(self, args: Arguments, data: Any) -> Any:
        found = look_up(self._given(args, 0, data), data)
        return self._given(args, 1, data) if found is None else found

    def _missing(self, args: Arguments, data: Any) -> list[Any]:
        names = [self._apply(arg, data) for arg in args]
        if names and isinstance(names[0], list):
            names = names[0]
        return [name for name in names if look_up(name, data) in (None, "")]

    def _missing_some(self, args: Arguments, data: Any) -> list[Any]:
        need, names = self._given(args, 0, data), self._given(args, 1, data)
        if not isinstance(names, list) or not isinstance(need, int):
            raise InvalidRule("missing_some takes a number and a list of names.")
        missing = self._missing([names], data)
        return [] if len(names) - len(missing) >= need else missing

    def _filter(self, args: Arguments, data: Any) -> list[Any]:
        return [item for item in self._items(args, data) if is_truthy(self._given(args, 1, item))]

    def _map(self, args: Arguments, data: Any) -> list[Any]:
        return [self._given(args, 1, item) for item in self._items(args, data)]

    def _reduce(self, args: Arguments, data: Any) -> Any:
        value = self._given(args, 2, data)
        for item in self._items(args, data):
            value = self._given(args, 1, {"current": item, "accumulator": value})
        return value

    def _all(self, args: Arguments, data: Any) -> bool:
        items = self._items(args, data)
        return bool(items) and all(is_truthy(self._given(args, 1, item)) for item in items)

    def _some(self, args: Arguments, data: Any) -> bool:
        return any(is_truthy(self._given(args, 1, item)) for item in self._items(args, data))


def look_up(name: Any, data: Any) -> Any:
    """What `a.b.0` names in the data; all of it for no name; None for what is not there."""
    if name is None or name == "":
        return data.to_dict() if isinstance(data, RuleData) else data
    for part in to_string(name).split("."):
        data = _get_member(data, part)
        if data is None:
            return None
    return data


def _get_member(data: Any, name: str) -> Any:
    if isinstance(data, RuleData):
        return data.get_field(name)
    if isinstance(data, dict):
        return data.get(name)
    if isinstance(data, list | str):
        if name == "length":
            return len(data)
        if name.isascii() and name.isdigit() and len(name) < 10:
            return data[int(name)] if int(name) < len(data) else None
    return None
