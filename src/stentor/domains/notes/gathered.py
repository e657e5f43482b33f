"""Small pieces of blocking work done together: what comes while a thread is busy goes to it in one call.

A call in a thread for each would cost more than the work, and threads that all wait for the interpreter slow down
each other and the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")

MOST = 32
"""Pieces of one call at most: bounds the wait of the first one."""

_Waiting = tuple[W, "asyncio.Future[R]"]


class Gathered(Generic[W, R]):
    """`work` answers a result for each piece, in their order; `most` calls of it are under way at the same time.

    For one event loop at a time.
    """

    def __init__(self, work: Callable[[Sequence[W]], Sequence[R]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: deque[_Waiting[W, R]] = deque()
        self._calls = 0

    async def do(self, piece: W) -> R:
        """The result of this piece. Raises what `work` raises."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((piece, future))
        self._start()
        return await future

    def _start(self) -> None:
        while self._calls < self._most and (taken := self._take()):
            call = asyncio.get_running_loop().run_in_executor(None, self._work, [piece for piece, _ in taken])
            self._calls += 1
            call.add_done_callback(lambda done, taken=taken: self._answer(taken, done))  # type: ignore[misc]

    def _take(self) -> list[_Waiting[W, R]]:
        """The next ones whose callers have not left."""
        taken: list[_Waiting[W, R]] = []
        while self._waiting and len(taken) < MOST:
            one = self._waiting.popleft()
            if not one[1].done():
                taken.append(one)
        return taken

    def _answer(self, taken: list[_Waiting[W, R]], done: asyncio.Future[Sequence[R]]) -> None:
        self._calls -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        results = [None] * len(taken) if error else done.result()
        for (_, future), result in zip(taken, results, strict=True):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]
        self._start()
