"""Names for a version that could not be merged and stays beside its note, as Obsidian's users know them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from stentor.core.clock import SECOND
from stentor.domains.notes.paths import MAX_PATH, MAX_SEGMENT_BYTES

MOST = 1_000
LONGEST_SUFFIX = 16
"""Bytes of what counts as the kind of a file, and is never cut."""


def names(path: str, now: int) -> Iterator[str]:
    """Names for copies that are made at this time (in microseconds), in the order in which they are to be tried."""
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix.encode()) > LONGEST_SUFFIX:
        stem, dot, suffix = name, "", ""
    when = datetime.fromtimestamp(now / SECOND, UTC).strftime("%Y%m%d%H%M%S")
    for number in range(1, MOST + 1):
        end = f" (Conflicted copy stentor {when}{f' {number}' if number > 1 else ''}){dot}{suffix}"
        room = MAX_PATH - len(folder) - len(slash) - len(end)
        yield f"{folder}{slash}{_cut(stem, MAX_SEGMENT_BYTES - len(end.encode()))[: max(room, 0)]}{end}"


def _cut(text: str, size: int) -> str:
    """As much of the text as these bytes hold."""
    return text.encode()[:size].decode(errors="ignore")
