"""The dispatch engine: which task is the next for an agent, and what runs in this process.

Two engines stand behind one port: `lanes`, in memory, for a process that has the database to itself; and `rows`, for
several processes on one database. The task's row is the truth for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from stentor.core.db.polling import PollQuery
from stentor.domains.tasks.model import Claim, Queued
from stentor.domains.tasks.placement import Dispatch


class Engine(Dispatch, Protocol):
    """What tasks are offered to, with what execution needs of it besides."""

    refill_every: int
    """Ticks of the reconciler."""
    resting: Callable[[], list[str]]
    """Agents inside the service whose tasks are to wait, because their endpoint does not answer."""

    def depth(self) -> int:
        """Tasks that wait."""
        ...

    def running(self) -> int:
        """Tasks that this process carries out itself just now."""
        ...

    async def take(self, agent_id: str, most: int, lease: int) -> list[Claim]:
        """Claim up to `most` waiting tasks of an agent, the most urgent first; `lease` in microseconds."""
        ...

    async def arrival(self, agent_id: str, seconds: float) -> bool:
        """Wait until something may wait for the agent, at most `seconds`."""
        ...

    def queues(self) -> dict[str, int]:
        """How many tasks wait for each agent that any wait for, as far as this process knows."""
        ...

    def reassigned(self, agent_id: str, tasks: list[Queued]) -> None:
        """Tasks that waited for this agent wait for others now, as they say."""
        ...

    def resume(self, agent_ids: list[str]) -> None:
        """Agents are at rest no more."""
        ...

    def waiting(self) -> PollQuery:
        """A look at the rows for what nobody offered here."""
        ...

    def fresh(self) -> None:
        """What other processes changed in the registry is known here now."""
        ...

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[Claim]:
        """Take no more; what runs has so many seconds to end, less if there is a hurry. Answers what was stopped."""
        ...
