"""What a watcher of a task is given, and its queue."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

MAX_WAITING = 1_000
"""Messages a watcher may be behind before it is cut."""


class Token(msgspec.Struct, frozen=True):
    """One piece of an answer: the n-th of the attempt that started with event `attempt`."""

    attempt: str
    n: int
    text: str


class Look(msgspec.Struct, frozen=True):
    """The run log has something new of the task, written by another process."""


class Watcher:
    """A bounded queue; `cut` once it was full. One that may hear too little is told to look every `every` seconds."""

    def __init__(self, every: float | None = None) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)
        self._every = every
        self.cut = False

    def put(self, message: Any) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.cut = True

    async def get(self) -> Any:
        try:
            async with asyncio.timeout(self._every):
                return await self._queue.get()
        except TimeoutError:
            return Look()

    @property
    def empty(self) -> bool:
        return self._queue.empty()
