"""A series as the points of an SVG line: pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 600, 100
"""Units of the drawing, which is stretched to the place that it gets."""
DOTS = 40
"""Of more points only the line is drawn."""


class Line(msgspec.Struct, frozen=True):
    """`path` joins the points, `dots` are their places; both are path data."""

    path: str
    dots: str


def line(points: Sequence[tuple[int, float]], low: float, high: float, *, stepped: bool = False) -> Line | None:
    """Of (time, value), the oldest first; None of nothing. A single point is in the middle.

    A stepped line keeps a value until the next one.
    """
    if not points:
        return None
    start, end = points[0][0], points[-1][0]
    places = [(_x(time, start, end), _y(value, low, high)) for time, value in points]
    placed = [f"{x} {y}" for x, y in places]
    dots = placed if len(placed) <= DOTS else []
    steps = (f"H{x} V{y}" if stepped else f"L{x} {y}" for x, y in places[1:])
    return Line(" ".join((f"M{placed[0]}", *steps)), " ".join(f"M{place} h0" for place in dots))


def _x(time: int, start: int, end: int) -> str:
    share = (time - start) / (end - start) if end > start else 0.5
    return f"{WIDTH * share:.1f}"


def _y(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low else 0.5
    return f"{HEIGHT * (1 - max(0.0, min(1.0, share))):.1f}"
