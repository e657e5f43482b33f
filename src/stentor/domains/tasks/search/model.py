"""What the search index holds of a task, and what an index must offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stentor.domains.tasks.search.query import Phrase


class TaskText(msgspec.Struct, frozen=True):
    """The text of a task: its title, type, input, result and error, as stored and cut."""

    tenant: str
    task_id: str
    text: str


class Position(msgspec.Struct, frozen=True):
    """The last event of the run log that the index covers: its number and its id."""

    number: int
    event_id: str


class TaskIndex(Protocol):
    """The words of tasks. A task that is put again replaces itself and becomes the newest."""

    async def read_position(self) -> Position | None:
        """Return how far the index goes; None for an empty one."""
        ...

    async def put(self, texts: Sequence[TaskText], position: Position) -> None:
        """Add or replace texts, and set the position, in one transaction."""
        ...

    async def find(self, tenant: str, phrases: list[Phrase], before: int, limit: int) -> list[tuple[int, str]]:
        """Return (document, task id) of matches before a document, the newest first."""
        ...

    async def clear(self) -> None: ...

    async def close(self) -> None: ...
