"""What looks for changes again and again shares one transaction, when it looks at about the same moment.

A part of it that cannot be read takes down no other: then each is read by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from stentor.core.db.transaction import Tx

K = TypeVar("K")
T = TypeVar("T")
LOOP_ROUNDS = 5
"""Of the event loop, in which all whose timer went off at once come to look."""
ReadFunction = Callable[[Tx], Any]
RunRead = Callable[[ReadFunction], Awaitable[Any]]
PollQuery = Callable[[Tx], Callable[[], None]]
"""Reads, where the event loop does not wait; answers what takes it into the view, there."""


class _Written(Generic[K]):
    def __init__(self) -> None:
        self.keys: set[K] = set()


class ConcurrentWrites(Generic[K]):
    """What this process wrote while it looked at what others wrote: of that the look knows less than the process."""

    def __init__(self) -> None:
        self._looks: WeakSet[_Written[K]] = WeakSet()
        """Of the looks under way; one that nobody has any more is over, however it ended."""

    def record_write(self, key: K) -> None:
        for written in self._looks:
            written.keys.add(key)

    def start_poll(self, read: Callable[[Tx], T], apply: Callable[[T, set[K]], None]) -> PollQuery:
        """Begins now, before the transaction does; `take` is told what it is to pass over."""
        written = _Written[K]()
        self._looks.add(written)

        def taking(found: T) -> None:
            self._looks.discard(written)
            apply(found, written.keys)

        return lambda tx: partial(taking, read(tx))


async def apply_polls(read: RunRead, queries: Iterable[PollQuery]) -> None:
    """Each that can be read is taken in. Raises what the first of the others failed with."""
    found = await asyncio.gather(*map(read, queries), return_exceptions=True)
    for take in found:
        if not isinstance(take, BaseException):
            take()
    for error in found:
        if isinstance(error, BaseException):
            raise error


class PollBatch:
    def __init__(self, read: RunRead) -> None:
        self._read = read
        self._waiting: list[tuple[ReadFunction, asyncio.Future[Any]]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def poll(self, fn: ReadFunction) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((fn, future))
        if len(self._waiting) == 1:
            together = asyncio.create_task(self._look_together())
            self._under_way.add(together)
            together.add_done_callback(self._under_way.discard)
        return await future

    async def _look_together(self) -> None:
        for _ in range(LOOP_ROUNDS):
            await asyncio.sleep(0)
        waiting, self._waiting = self._waiting, []
        wanted = [(fn, future) for fn, future in waiting if not future.done()]
        try:
            found = await self._read(lambda tx: [fn(tx) for fn, _ in wanted])
        except Exception:  # noqa: BLE001 - whose fault it is, each hears by itself
            await asyncio.gather(*(self._alone(fn, future) for fn, future in wanted))
            return
        for (_, future), result in zip(wanted, found, strict=True):
            if not future.done():
                future.set_result(result)

    async def _alone(self, fn: ReadFunction, future: asyncio.Future[Any]) -> None:
        try:
            result = await self._read(fn)
        except Exception as error:  # noqa: BLE001 - handed to who looks
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(result)
