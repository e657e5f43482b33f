"""Batch small blocking calls: items that arrive while a thread is busy go to it in one call.

One thread call for each item would cost more than the work itself, and threads that all wait for the interpreter
lock slow down each other and the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH_ITEMS = 32
"""Items per call: bounds how long the first one waits."""

_Waiting = tuple[Item, "asyncio.Future[Result]"]


class ThreadBatcher(Generic[Item, Result]):
    """Runs `work`, which returns one result per item in order, in at most `max_calls` concurrent threads.

    Belongs to one event loop at a time.
    """

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Result]], max_calls: int) -> None:
        self._work = work
        self._max_calls = max_calls
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._running_calls = 0

    async def submit(self, item: Item) -> Result:
        """Return the result for this item. Raises what `work` raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._start_calls()
        return await future

    def _start_calls(self) -> None:
        while self._running_calls < self._max_calls and (batch := self._take_batch()):
            call = asyncio.get_running_loop().run_in_executor(None, self._work, [item for item, _ in batch])
            self._running_calls += 1
            # `batch` as a default: the loop would otherwise give each callback the last one.
            call.add_done_callback(lambda done, batch=batch: self._deliver(batch, done))

    def _take_batch(self) -> list[_Waiting[Item, Result]]:
        """Take the next items, without those whose callers were cancelled."""
        batch: list[_Waiting[Item, Result]] = []
        while self._waiting and len(batch) < MAX_BATCH_ITEMS:
            item, future = self._waiting.popleft()
            if not future.done():
                batch.append((item, future))
        return batch

    def _deliver(self, batch: list[_Waiting[Item, Result]], call: asyncio.Future[Sequence[Result]]) -> None:
        self._running_calls -= 1
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        results = [None] * len(batch) if error else call.result()
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # its caller was cancelled during the call
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # pyrefly: ignore[bad-argument-type] - None only with an error
        self._start_calls()
