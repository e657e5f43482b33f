"""Groups and orders the tests for several processes, so that none of them waits while there is work.

A test with a fixture of its module runs in one process with the others, so that the fixture is made once. Other tests
go in groups of a few of their module. A
test that waits for processes or for time goes alone, beside others that compute, and early enough that none runs last.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

GROUP = 12
"""Tests of one module that go together, although they share nothing."""
WAITING = ("tests/bench/", "tests/cli/", "tests/deploy/", "tests/examples/", "tests/faults/", "tests/processes/")
WAITING += ("tests/readme/", "packages/")
STARTS_SERVICE = {"serve", "serve_module"}


def group(item: pytest.Function, database: str | None, counts: Counter[str]) -> str | None:
    """Return the name of the group of a test, None for one that goes alone. `counts` has the tests grouped so far."""
    module = item.nodeid.partition("::")[0].removesuffix(".py").replace("/", ".")
    fixtures = item._fixtureinfo.name2fixturedefs.items()
    if any(one[-1].scope == "module" for name, one in fixtures if not name.startswith("_")):
        return module
    if waits(item):
        return None
    name = f"{module}.{database or 'any'}"
    counts[name] += 1
    return f"{name}.{(counts[name] - 1) // GROUP}"


def waits(item: pytest.Item) -> bool:
    """Whether a test waits for processes that it starts, so that others should run beside it."""
    if item.get_closest_marker("fault") or item.nodeid.startswith(WAITING):
        return True
    return not STARTS_SERVICE.isdisjoint(getattr(item, "fixturenames", ()))


def arrange(items: list[pytest.Item]) -> None:
    """Sort: the tests of the whole source first, as they take long; then large groups before small ones, and what waits
    spread among the first two thirds.
    """
    units = defaultdict[object, list[pytest.Item]](list)
    for item in items:
        marker = item.get_closest_marker("together")
        units[marker.args[0] if marker else item].append(item)
    first, waiting, others = list[list[pytest.Item]](), list[list[pytest.Item]](), list[list[pytest.Item]]()
    for unit in units.values():
        chosen = first if unit[0].nodeid.startswith("tests/test_") else waiting if waits(unit[0]) else others
        chosen.append(unit)
    others.sort(key=len, reverse=True)
    spread = [(number * 2 / 3 / len(waiting), unit) for number, unit in enumerate(waiting)]
    spread += [(number / len(others), unit) for number, unit in enumerate(others)]
    spread.sort(key=lambda placed: placed[0])
    items[:] = [item for unit in (*first, *(unit for _, unit in spread)) for item in unit]
