"""The attempts that run in this process, by task."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from stentor.core.errors import StoreUnavailable

Key = tuple[str, str]
log = logging.getLogger(__name__)


class Running:
    """`freed` is called with an agent's id whenever one of its attempts is over."""

    def __init__(self, freed: Callable[[str], None]) -> None:
        self._freed = freed
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self.of_agent: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, key: Key, agent_id: str, attempt: Coroutine[Any, Any, None]) -> None:
        self.of_agent[agent_id] += 1
        task = self._tasks[key] = asyncio.create_task(attempt)
        task.add_done_callback(lambda done: self._after(key, agent_id, done))

    def stop(self, key: Key) -> None:
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    async def end(self, seconds: float, hurry: asyncio.Event) -> None:
        """Wait until all have ended, at most so many seconds."""
        if not self._tasks or seconds <= 0:
            return
        ended = asyncio.ensure_future(asyncio.wait(self._tasks.values(), timeout=seconds))
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait([ended, hurried], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (ended, hurried):
            waiting.cancel()

    async def stop_all(self) -> None:
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _after(self, key: Key, agent_id: str, task: asyncio.Task[None]) -> None:
        self.of_agent[agent_id] -= 1
        if not self.of_agent[agent_id]:
            del self.of_agent[agent_id]
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()):
            # In an outage that would be a line for every task, and the database says it already.
            level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.ERROR
            log.log(level, "an attempt at task %s was left to the reconciler: %r", key[1], error)
        self._freed(agent_id)
