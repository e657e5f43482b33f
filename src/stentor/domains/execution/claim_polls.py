"""The long polls of workers in one process of several. Each looks for a task at its start and then at each hint.

A hint wakes one poll. One that ends without having looked hands its hint back, so none is lost with a poll that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from stentor.domains.tasks.model import TaskClaim

Look = Callable[[str, int, int], Awaitable[list[TaskClaim] | None]]
"""Claims up to a number of tasks of an agent for a lease; None if the queue could not be read yet."""


class ClaimPoll:
    """The poll of one worker, a `TaskPoll`."""

    def __init__(self, agent_id: str, look: Look) -> None:
        self._agent_id = agent_id
        self._look = look
        self._is_new = True
        self.hinted = asyncio.Event()
        """Set while there may be a task that this poll has not looked for."""

    async def claim(self, limit: int, lease: int) -> list[TaskClaim]:
        """Claim tasks; costs no query unless the poll has just begun or there was a hint since."""
        was_hinted = self.hinted.is_set()
        if not was_hinted and not self._is_new:
            return []
        # Before the look: a hint that comes while it runs may be of a task that it does not see.
        self.hinted.clear()
        self._is_new = False
        try:
            claims = await self._look(self._agent_id, limit, lease)
        except BaseException:
            if was_hinted:
                self.hinted.set()
            raise
        if claims is None:
            self.hinted.set()
        return claims or []

    async def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a hint. Return False on a timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self.hinted.wait()
        except TimeoutError:
            return False
        return True


class ClaimPolls:
    """All polls of a process. `hand_back` is called with the agent of a hint whose poll has ended."""

    def __init__(self, look: Look, hand_back: Callable[[str], None]) -> None:
        self._look = look
        self._hand_back = hand_back
        self._by_agent: dict[str, list[ClaimPoll]] = {}

    @contextmanager
    def open(self, agent_id: str) -> Iterator[ClaimPoll]:
        poll = ClaimPoll(agent_id, self._look)
        polls = self._by_agent.setdefault(agent_id, [])
        polls.append(poll)
        try:
            yield poll
        finally:
            polls.remove(poll)
            if not polls:
                del self._by_agent[agent_id]
            if poll.hinted.is_set():
                self._hand_back(agent_id)

    def wake_one(self, agent_id: str) -> bool:
        """Have one poll look for a task; False if none waits that has no hint yet."""
        poll = next((poll for poll in self._by_agent.get(agent_id, ()) if not poll.hinted.is_set()), None)
        if poll is not None:
            poll.hinted.set()
        return poll is not None

    def count(self, agent_id: str) -> int:
        return len(self._by_agent.get(agent_id, ()))
