"""Live fan-out within the process: what watchers of a task see at once.

Never the truth: events come from the run log and are only announced here; tokens are kept while the
attempt runs. A slow watcher is cut rather than waited for; it resumes from the run log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

MAX_WAITING = 1_000
"""Messages a watcher may be behind before it is cut."""
MAX_TOKENS = 10_000
"""Tokens kept per attempt for watchers that come late."""

ENDINGS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
"""Events after which the tokens of a task are of no use."""

Key = tuple[str, str]


class Token(msgspec.Struct, frozen=True):
    """One piece of an answer: the n-th of the attempt that started with event `attempt`."""

    attempt: str
    n: int
    text: str


class Watcher:
    """A bounded queue; `cut` once it was full."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)
        self.cut = False

    def put(self, message: Any) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.cut = True

    async def get(self) -> Any:
        return await self._queue.get()

    @property
    def empty(self) -> bool:
        return self._queue.empty()


class Hub:
    """`closing` is set when the service leaves: whoever waits here or streams from here ends then."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.listeners: list[Callable[[str, str, list[Any]], None]] = []
        """Called with tenant, task and events of every change of a task; they must be as good as free."""
        self._watchers: dict[Key, list[Watcher]] = {}
        self._tokens: dict[Key, list[Token]] = {}

    @contextmanager
    def watch(self, tenant: str, task_id: str) -> Iterator[Watcher]:
        """A watcher that gets, in order, all that is published while the block runs."""
        key, watcher = (tenant, task_id), Watcher()
        self._watchers.setdefault(key, []).append(watcher)
        try:
            yield watcher
        finally:
            self._watchers[key].remove(watcher)
            if not self._watchers[key]:
                del self._watchers[key]

    def publish(self, tenant: str, task_id: str, messages: list[Any]) -> None:
        for watcher in self._watchers.get((tenant, task_id), ()):
            for message in messages:
                watcher.put(message)

    def announce(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """Publish what the run log recorded of a task, and tell the listeners."""
        for listener in self.listeners:
            listener(tenant, task_id, events)
        self.publish(tenant, task_id, events)
        if any(event.event_type in ENDINGS for event in events):
            self.forget(tenant, task_id)

    def token(self, tenant: str, task_id: str, attempt: str, text: str) -> None:
        """Append a token to the running attempt and announce it."""
        kept = self._tokens.setdefault((tenant, task_id), [])
        if kept and kept[0].attempt != attempt:
            kept.clear()
        token = Token(attempt, kept[-1].n + 1 if kept else 1, text)
        if len(kept) == MAX_TOKENS:
            del kept[0]
        kept.append(token)
        self.publish(tenant, task_id, [token])

    def tokens(self, tenant: str, task_id: str) -> list[Token]:
        """The tokens so far of the attempt that runs now."""
        return list(self._tokens.get((tenant, task_id), ()))

    def forget(self, tenant: str, task_id: str) -> None:
        """The attempt has ended; its answer is in the task's row."""
        self._tokens.pop((tenant, task_id), None)
