"""What to do when a part gives out, one after the other: each a change of the installation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.scale.installation import Installation
from bench.scale.model import Part, Units, first, limit, named

Change = Callable[[Installation], Installation]


@dataclass(frozen=True)
class Remedy:
    """`kind`: "settings" are those of Stentor, "operation" is a change of what stands around it.

    `part`: the one that it relieves.
    """

    name: str
    kind: str
    part: str
    change: Change


@dataclass(frozen=True)
class Stage:
    """After the remedies so far: the part that is fullest, how many times the installation it carries, and how many
    tasks an hour with the same processes and agents.

    `relieved`: utilisation of the last remedy's part before and after it.
    """

    remedy: Remedy | None
    installation: Installation
    first: Part
    limit: float
    tasks_per_hour: float
    relieved: tuple[float, float] = (0.0, 0.0)


def stages(start: Installation, costs: Units, remedies: tuple[Remedy, ...]) -> Iterator[Stage]:
    """As it is, and after each remedy with those before it."""
    now = start
    yield _stage(now, costs)
    for remedy in remedies:
        before, now = now, remedy.change(now)
        relieved = [named(one, costs, remedy.part).utilisation for one in (before, now)]
        yield replace(_stage(now, costs), remedy=remedy, relieved=(relieved[0], relieved[1]))


def _stage(now: Installation, costs: Units) -> Stage:
    tasks = now.tasks_per_hour * limit(now, costs, grow=Installation.busier)
    return Stage(None, now, first(now, costs), limit(now, costs), tasks)
