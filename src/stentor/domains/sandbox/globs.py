"""Globs of allowlists: `**` crosses folders, `*` and `?` do not, `**/` may be no folder at all. Pure.

Not by a regular expression: one that has to try again takes minutes for a path that an agent makes up for it. Here a
path is read once, and all places of the glob that it may be at are kept.
"""

from __future__ import annotations

from functools import lru_cache

_FOLDERS, _ALL, _WITHIN, _ONE = "**/", "**", "*", "?"
_WILD = (_FOLDERS, _ALL, _WITHIN)


def matches(pattern: str, path: str) -> bool:
    """Whether the whole path matches."""
    steps = _steps(pattern)
    places: set[int] = set()
    _enter(steps, 0, places)
    for char in path:
        following: set[int] = set()
        for place in places:
            _advance(steps, place, char, following)
        if not following:
            return False
        places = following
    return len(steps) in places


@lru_cache(1024)
def _steps(pattern: str) -> tuple[str, ...]:
    """The wildcards of a glob, and all else character by character."""
    found, at = [], 0
    while at < len(pattern):
        step = next((wild for wild in _WILD if pattern.startswith(wild, at)), pattern[at])
        found.append(step)
        at += len(step)
    return tuple(found)


def _enter(steps: tuple[str, ...], place: int, found: set[int]) -> None:
    """Be at a place, and behind it where a wildcard may stand for nothing. `~place` is within the folders of `**/`."""
    while place not in found:
        found.add(place)
        if place == len(steps) or steps[place] not in _WILD:
            return
        if steps[place] == _FOLDERS:
            found.add(~place)
        place += 1


def _advance(steps: tuple[str, ...], place: int, char: str, found: set[int]) -> None:
    """The places that a character leads to."""
    if place < 0:
        found.add(place)
        if char == "/":
            _enter(steps, ~place + 1, found)
        return
    step = steps[place] if place < len(steps) else _FOLDERS
    if step == _ALL or (step == _WITHIN and char != "/"):
        _enter(steps, place, found)
    elif (step == char and step not in (_WITHIN, _ONE)) or (step == _ONE and char != "/"):
        _enter(steps, place + 1, found)
