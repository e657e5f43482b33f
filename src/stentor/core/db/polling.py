"""Batch the periodic reads of many pollers into one transaction, and protect local writes from stale polls.

Also read what other processes have just changed, before a request is refused for what is not in memory yet: a change
reaches the memory of the other processes some milliseconds after its commit, and a load balancer sends the next request
of the same caller to any of them.

A read that fails does not fail the others: then each one runs in a transaction of its own. The tick that wakes the
pollers at the same moment is in `core/timers`; `Database.poll` uses the batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from stentor.core.db.transaction import Tx

K = TypeVar("K")
T = TypeVar("T")
LOOP_ROUNDS = 5
"""Rounds of the event loop to wait, so that all pollers woken by the same tick join the batch."""
ReadFunction = Callable[[Tx], Any]
RunRead = Callable[[ReadFunction], Awaitable[Any]]
PollQuery = Callable[[Tx], Callable[[], None]]
"""Reads in a database thread and returns a function that applies the result on the event loop."""
BURST, PER_SECOND = 10, 1.0
"""Reads in a row, and how many more each second allows: made-up keys and ids must cause no load."""
MAX_WAIT_SECONDS = 2.0
"""How long a request waits for a read. After that it is answered from memory, as in an outage."""


class _WrittenKeys(Generic[K]):
    """The keys written during one poll; an object, because a WeakSet cannot hold a set."""

    def __init__(self) -> None:
        self.keys: set[K] = set()


class ConcurrentWrites(Generic[K]):
    """Records what this process writes during a poll, so that the poll does not overwrite it with older rows."""

    def __init__(self) -> None:
        # Weak: a poll that fails or is cancelled drops its reference, and so is forgotten without any cleanup.
        self._polls: WeakSet[_WrittenKeys[K]] = WeakSet()

    def record_write(self, key: K) -> None:
        """Note that this process wrote the key."""
        # Checked first: most of the time no poll runs, and to iterate over an empty WeakSet takes five calls.
        if self._polls:
            for written in self._polls:
                written.keys.add(key)

    def start_poll(self, read: Callable[[Tx], T], apply: Callable[[T, set[K]], None]) -> PollQuery:
        """Return the query of a poll; `apply` receives the result and the keys that it must skip.

        Local writes count from this call on, not from the start of the transaction: the transaction may start later,
        and a write between the two is skipped without need, but never lost.
        """
        written = _WrittenKeys[K]()
        self._polls.add(written)

        def finish(result: T) -> None:
            self._polls.discard(written)
            apply(result, written.keys)

        return lambda tx: partial(finish, read(tx))


async def apply_polls(read: RunRead, queries: Iterable[PollQuery]) -> None:
    """Run the queries and apply every one that succeeds; then raise the first error, if any."""
    results = await asyncio.gather(*map(read, queries), return_exceptions=True)
    for apply in results:
        if not isinstance(apply, BaseException):
            apply()
    for error in results:
        if isinstance(error, BaseException):
            raise error


class PollBatch:
    """Runs reads that arrive at about the same moment in one transaction."""

    def __init__(self, read: RunRead) -> None:
        self._read = read
        self._waiting: list[tuple[ReadFunction, asyncio.Future[Any]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def poll(self, fn: ReadFunction) -> Any:
        """Run `fn` with the next batch and return its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((fn, future))
        if len(self._waiting) == 1:
            # A task of its own: if the first poller is cancelled, the others still get their results.
            batch = asyncio.create_task(self._run_batch())
            self._running.add(batch)
            batch.add_done_callback(self._running.discard)
        return await future

    async def _run_batch(self) -> None:
        for _ in range(LOOP_ROUNDS):
            await asyncio.sleep(0)
        waiting, self._waiting = self._waiting, []
        pending = [(fn, future) for fn, future in waiting if not future.done()]
        try:
            results = await self._read(lambda tx: [fn(tx) for fn, _ in pending])
        except Exception:  # noqa: BLE001 - each read runs again, and only the one that fails gets the error
            await asyncio.gather(*(self._run_alone(fn, future) for fn, future in pending))
            return
        for (_, future), result in zip(pending, results, strict=True):
            if not future.done():
                future.set_result(result)

    async def _run_alone(self, fn: ReadFunction, future: asyncio.Future[Any]) -> None:
        try:
            result = await self._read(fn)
        except Exception as error:  # noqa: BLE001 - handed to the poller
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(result)


class CatchUp:
    """Runs `read`, which is None in a process that shares its database with no other: that one misses no change."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.read: Callable[[], Awaitable[None]] | None = None
        self._now = now
        self._left, self._counted_at = float(BURST), now()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, *, limited: bool = True) -> bool:
        """Read, or wait for a read that another request begins; return whether there was one.

        `limited` is for requests that name one thing: not all of their keys and ids exist.
        """
        if self.read is None:
            return False
        if self._running is not None:
            # It may have begun before the change that this request misses.
            await asyncio.wait({self._running}, timeout=MAX_WAIT_SECONDS)
        if self._running is None:
            if limited and not self._take():
                return False
            self._running = asyncio.create_task(self._run(self.read))
        await asyncio.wait({self._running}, timeout=MAX_WAIT_SECONDS)
        return True

    def _take(self) -> bool:
        now = self._now()
        self._left = min(BURST, self._left + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            # The request is answered from memory; the database logs an outage, the regular refresh any other error.
            with suppress(Exception):
                await read()
        finally:
            self._running = None
