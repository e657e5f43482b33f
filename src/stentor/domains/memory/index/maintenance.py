"""The port of long operations over all notes of a vault, and what their steps return."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

DifferenceProblem = Literal["missing", "stale", "gone", "invalid_name", "not_utf8", "too_large", "unwritten", "altered"]


class IndexDifference(msgspec.Struct, frozen=True):
    """A difference between the vault and the index, or between a task and its note.

    A note is "missing" or "stale" in the index or "gone" from the vault; "invalid_name", "not_utf8" and "too_large"
    are why the index cannot have it. A task's note is "unwritten" or "altered".
    """

    path: str
    problem: DifferenceProblem


class MaintenanceStep(msgspec.Struct, frozen=True):
    """One step of a long operation over all notes; `next` is the path to continue after, None at the end.

    `what` says what `done` counts: notes of the vault as the index has them, or notes of tasks.
    """

    done: int
    total: int
    next: str | None
    differences: list[IndexDifference] = []
    what: Literal["notes", "tasks"] = "notes"


class IndexMaintenance(Protocol):
    """Long operations over the whole vault, in steps; `after` is the `next` of the previous step, empty at first."""

    async def reindex(self, after: str, limit: int) -> MaintenanceStep: ...

    async def verify(self, after: str, limit: int) -> MaintenanceStep: ...
