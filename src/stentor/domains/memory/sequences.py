"""Notes that are pieces of one sequence, such as the turns of a conversation or the pages of a log. Pure.

A short piece says little by itself: "Yes, last Friday" answers the question in the piece before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SUPPORT_BY_DISTANCE = {1: 0.25, 2: 0.12}
"""Share of a neighbour's score that a piece gets, by how many pieces they are apart. Source: ADR 59."""
WHOLE_CHARS = 360
"""Length (characters) up to which a piece gets all of that; a longer one stands more and more for itself."""
_LAST_NUMBER = re.compile(r"(\d{1,9})\D*$")


def add_support(pieces: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return the scores by path, each with the support of the pieces beside it; given are scores and lengths.

    Only what a neighbour has above the mean counts, so that being one of many pieces is no merit.
    """
    mean = sum(score for score, _ in pieces.values()) / len(pieces) if pieces else 0.0
    places = {path: place for path in pieces if (place := place_in_sequence(path)) is not None}
    above: dict[tuple[str, int], float] = {}
    for path, place in places.items():
        above[place] = max(above.get(place, 0.0), pieces[path][0] - mean)
    supported = {path: score for path, (score, _) in pieces.items()}
    for path, (sequence, number) in places.items():
        support = sum(
            share * (above.get((sequence, number - distance), 0.0) + above.get((sequence, number + distance), 0.0))
            for distance, share in SUPPORT_BY_DISTANCE.items()
        )
        supported[path] += support * min(1.0, WHOLE_CHARS / max(1, pieces[path][1]))
    return supported


def place_in_sequence(path: str) -> tuple[str, int] | None:
    """Return the sequence of a note and its number there, by the last number of the file name; None without one.

    `talk/turn-012 Ann.md` is number 12 of `talk/turn-`.
    """
    stem = path.removesuffix(".md")
    folder, slash, name = stem.rpartition("/")
    match = _LAST_NUMBER.search(name)
    return (f"{folder}{slash}{name[: match.start()]}", int(match[1])) if match else None
