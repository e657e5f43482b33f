"""Notes that are pieces of one sequence, such as the turns of a conversation or the pages of a log. Pure.

A short piece says little by itself: "Yes, last Friday" answers the question in the piece before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

SUPPORT_BY_DISTANCE = {1: 0.25, 2: 0.12}
"""Share of a neighbour's score that a piece gets, by how many pieces they are apart. Source: ADR 59."""
WHOLE_CHARS = 360
"""Pieces of at most so many characters get this share in full, longer ones less and less."""
MIN_SUPPORT = 0.1
"""Support from which a piece that does not match by itself is a match: the answer beside the question."""
_LAST_NUMBER = re.compile(r"(\d{1,9})\D*$")


def find_support(scores: Mapping[str, float], lengths: Mapping[str, int], matches: Collection[str]) -> dict[str, float]:
    """Return what the matching pieces beside each note add to its score, by path; notes without such are left out.

    Only what a match has above the mean of all scores counts, so that being one of many pieces is no merit.
    """
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    places = {path: place for path in scores if (place := place_in_sequence(path)) is not None}
    above: dict[tuple[str, int], float] = {}
    for path in places.keys() & set(matches):
        above[places[path]] = max(above.get(places[path], 0.0), scores[path] - mean)
    supports: dict[str, float] = {}
    for path, (sequence, number) in places.items():
        support = sum(
            share * (above.get((sequence, number - distance), 0.0) + above.get((sequence, number + distance), 0.0))
            for distance, share in SUPPORT_BY_DISTANCE.items()
        )
        if support:
            supports[path] = support * min(1.0, WHOLE_CHARS / max(1, lengths[path]))
    return supports


def place_in_sequence(path: str) -> tuple[str, int] | None:
    """Return the sequence of a note and its number there, by the last number of the file name; None without one.

    `talk/turn-012 Ann.md` is number 12 of `talk/turn-`.
    """
    stem = path.removesuffix(".md")
    folder, slash, name = stem.rpartition("/")
    match = _LAST_NUMBER.search(name)
    return (f"{folder}{slash}{name[: match.start()]}", int(match[1])) if match else None
