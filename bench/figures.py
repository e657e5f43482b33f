"""A measured figure, its target, and the tables that figures are shown in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A limit in the figure's own unit; `least` says whether the figure must be at least or at most that."""

    limit: float
    least: bool

    def headroom(self, value: float) -> float:
        """How many times the target is kept: 1 is just kept, below 1 is missed."""
        return value / self.limit if self.least else self.limit / value if value else math.inf


def at_least(limit: float) -> Target:
    return Target(limit, True)


def at_most(limit: float) -> Target:
    return Target(limit, False)


@dataclass(frozen=True)
class Figure:
    """One measured number. `note` is its spread or companion; `method` says in one line how it came about."""

    name: str
    value: float
    unit: str
    method: str
    target: Target | None = None
    note: str = ""

    @property
    def shown(self) -> str:
        return f"{number(self.value)} {self.unit}" + (f" ({self.note})" if self.note else "")

    @property
    def target_shown(self) -> str:
        if self.target is None:
            return ""
        return f"{'≥' if self.target.least else '≤'} {number(self.target.limit)} {self.unit}"

    @property
    def headroom_shown(self) -> str:
        if self.target is None:
            return ""
        kept = self.target.headroom(self.value)
        return f"{kept:.2f}" + (" (missed)" if kept < 1 else "")

    def cells(self) -> tuple[str, str, str, str, str]:
        return self.name, self.shown, self.target_shown, self.headroom_shown, self.method


@dataclass(frozen=True)
class Area:
    """The figures of one bench."""

    name: str
    title: str
    figures: list[Figure]


HEADINGS = ("figure", "measured", "target", "times the target", "method")


def markdown(areas: Sequence[Area]) -> str:
    """A heading and a table per area, as they stand in the README."""
    parts = []
    for area in areas:
        rows = [HEADINGS, ("---", "---:", "---:", "---:", "---"), *(f.cells() for f in area.figures)]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"### `{area.name}`: {area.title}\n\n{table}\n")
    return "\n".join(parts)


def plain(areas: Sequence[Area]) -> dict[str, Any]:
    """For `--json`: area to its figures, each with `headroom` where it has a target."""
    return {area.name: [_plain(figure) for figure in area.figures] for area in areas}


def _plain(figure: Figure) -> dict[str, Any]:
    headroom = None if figure.target is None else round(figure.target.headroom(figure.value), 3)
    return {**asdict(figure), "headroom": headroom}


def number(value: float) -> str:
    """Three significant digits, whole thousands in full: 1,234 and 12.3 and 0.123."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return "1 round"
    return f"{number(min(values))} to {number(max(values))}, {len(values)} rounds"
