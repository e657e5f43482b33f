"""Evaluation of JsonLogic rules, limited in steps, time and memory so that no rule can block the server.

The operators on values are in `jsonlogic_operators`; here are those that control the evaluation of their arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from stentor_vault.jsontext import JsonObject
from stentor_vault.server.search.jsonlogic_operators import MAX_NESTING, OPERATORS, InvalidRule, is_truthy, to_string

MAX_STEPS, MAX_SECONDS = 5_000_000, 10.0
"""Limits of one search over all notes."""
MAX_COMPUTED = 20_000_000
"""Limit of what a rule computes for one note: characters of its texts, and items of the lists that it merges."""
MAX_RESULT_LENGTH = 100_000_000
"""Limit of all results of a search, in characters."""
Arguments = list[Any]


class RuleData:
    """The data of a rule; a subclass computes expensive fields only when the rule reads them."""

    def get_field(self, name: str) -> Any:
        """Return the field's value, None for an unknown field."""
        return self.to_dict().get(name)

    def to_dict(self) -> JsonObject:
        """Return all fields."""
        raise NotImplementedError


class JsonLogicRule:
    """One JsonLogic rule, for one search: the limits count all its evaluations together.

    Evaluation raises InvalidRule for an unknown operator and when a limit is exceeded.
    """

    def __init__(self, rule: Any, max_steps: int = MAX_STEPS) -> None:
        self._rule = rule
        self._steps_left = max_steps
        self._computed_left = MAX_COMPUTED
        self._result_left = MAX_RESULT_LENGTH
        self._deadline = time.monotonic() + MAX_SECONDS
        # Operators that evaluate only some of their arguments, or evaluate them several times.
        self._control_operators: dict[str, Callable[[Arguments, Any], Any]] = {
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

    def find_matches(self, notes: Iterable[RuleData]) -> list[JsonObject]:
        """Return `{filename, result}` of each note with a truthy result; an empty list or object does not match."""
        matches = []
        for note in notes:
            result = self.evaluate(note)
            if is_truthy(result) and result != {}:
                self._count_result(result)
                matches.append({"filename": note.get_field("path"), "result": result})
        return matches

    def evaluate(self, data: Any) -> Any:
        """Return the rule's result for the data, a RuleData or a JSON value."""
        self._computed_left = MAX_COMPUTED
        return self._apply(self._rule, data)

    def _apply(self, rule: Any, data: Any) -> Any:
        self._count_step()
        if isinstance(rule, list):
            return [self._apply(item, data) for item in rule]
        # In JsonLogic an object with several keys is data, not a rule.
        if not isinstance(rule, dict) or len(rule) != 1:
            return rule
        [(name, argument)] = rule.items()
        args = argument if isinstance(argument, list) else [argument]
        control_operator = self._control_operators.get(name)
        if control_operator is not None:
            return control_operator(args, data)
        operator = OPERATORS.get(name)
        if operator is None:
            raise InvalidRule(f"{name[:80]!r} is not an operator.")
        result = operator([self._apply(arg, data) for arg in args])
        if isinstance(result, (str, list)):
            self._computed_left -= len(result)
            if self._computed_left < 0:
                raise InvalidRule("The rule computes too much text for one note; simplify it.")
        return result

    def _count_result(self, result: Any) -> None:
        """Count each value as often as the response has it: a list may have the same one many times.

        Raises InvalidRule for a result that is too long or too deep for the response.
        """
        pending: list[tuple[Any, int]] = [(result, 1)]
        while pending:
            value, depth = pending.pop()
            self._count_step()
            if isinstance(value, str):
                self._result_left -= len(value)
            if isinstance(value, dict):
                value = [*value, *value.values()]
            if isinstance(value, list):
                if depth > MAX_NESTING:
                    raise InvalidRule(f"The result is nested deeper than {MAX_NESTING} levels.")
                self._steps_left -= len(value)
                pending += [(item, depth + 1) for item in value]
            if self._result_left < 0:
                raise InvalidRule("The results are too long; select fewer notes or shorter results.")

    def _count_step(self) -> None:
        self._steps_left -= 1
        # Reading the clock at every step would slow evaluation down.
        if self._steps_left < 0 or (self._steps_left % 256 == 0 and time.monotonic() > self._deadline):
            raise InvalidRule("The rule takes too much work on this vault; simplify it or search with several rules.")

    def _evaluate_arg(self, args: Arguments, n: int, data: Any) -> Any:
        return self._apply(args[n], data) if n < len(args) else None

    def _evaluate_items(self, args: Arguments, data: Any) -> list[Any]:
        items = self._evaluate_arg(args, 0, data)
        return items if isinstance(items, list) else []

    def _if(self, args: Arguments, data: Any) -> Any:
        n = 0
        while n + 1 < len(args):
            if is_truthy(self._apply(args[n], data)):
                return self._apply(args[n + 1], data)
            n += 2
        return self._evaluate_arg(args, n, data)

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
        value = look_up(self._evaluate_arg(args, 0, data), data)
        return self._evaluate_arg(args, 1, data) if value is None else value

    def _missing(self, args: Arguments, data: Any) -> list[Any]:
        names = [self._apply(arg, data) for arg in args]
        if names and isinstance(names[0], list):
            names = names[0]
        return [name for name in names if look_up(name, data) in (None, "")]

    def _missing_some(self, args: Arguments, data: Any) -> list[Any]:
        required, names = self._evaluate_arg(args, 0, data), self._evaluate_arg(args, 1, data)
        if not isinstance(names, list) or not isinstance(required, int):
            raise InvalidRule("missing_some takes a number and a list of names.")
        missing = self._missing([names], data)
        return [] if len(names) - len(missing) >= required else missing

    def _filter(self, args: Arguments, data: Any) -> list[Any]:
        return [item for item in self._evaluate_items(args, data) if is_truthy(self._evaluate_arg(args, 1, item))]

    def _map(self, args: Arguments, data: Any) -> list[Any]:
        return [self._evaluate_arg(args, 1, item) for item in self._evaluate_items(args, data)]

    def _reduce(self, args: Arguments, data: Any) -> Any:
        value = self._evaluate_arg(args, 2, data)
        for item in self._evaluate_items(args, data):
            value = self._evaluate_arg(args, 1, {"current": item, "accumulator": value})
        return value

    def _all(self, args: Arguments, data: Any) -> bool:
        items = self._evaluate_items(args, data)
        return bool(items) and all(is_truthy(self._evaluate_arg(args, 1, item)) for item in items)

    def _some(self, args: Arguments, data: Any) -> bool:
        return any(is_truthy(self._evaluate_arg(args, 1, item)) for item in self._evaluate_items(args, data))


def look_up(name: Any, data: Any) -> Any:
    """Return the value at a path such as `a.b.0`, all data for an empty path, None for a missing value."""
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
    if isinstance(data, (list, str)):
        if name == "length":
            return len(data)
        # Bounded length: int() raises ValueError for more than 4,300 digits.
        if name.isascii() and name.isdigit() and len(name) < 10:
            return data[int(name)] if int(name) < len(data) else None
    return None
