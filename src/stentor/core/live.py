"""Live streams: deliver the events and tokens of a task to its watchers, in this process and in others.

Never the source of truth: events are in the run log and are only announced here; tokens are stored in memory while the
attempt runs. A watcher that is too slow is dropped instead of delaying the others, and resumes from the run log. With
several processes, each one announces what it watches for half a minute and the others send the changes to it alone; a
message that is lost on the way is made up for by polling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from stentor.core.fanout import (
    MAX_BATCH_CHARACTERS,
    Address,
    Fanout,
    Reconnected,
    TaskChanged,
    TaskWatched,
    TokenBatch,
)

__all__ = ["MAX_QUEUED", "MAX_TOKENS", "TERMINAL_EVENTS", "Hub", "RunLogChanged", "StreamedToken", "TaskWatcher"]


MAX_QUEUED = 1_000
"""Messages that a watcher may be behind before it is dropped."""
MAX_TOKENS = 10_000
"""Tokens stored for each attempt, for watchers that start late."""
POLL_SECONDS = 2.0
"""How often a watcher reads the run log if other processes write to it too."""
# Three renewals in the time of one interest: two lost messages do not end a stream.
INTEREST_SECONDS, RENEW_SECONDS = 30.0, 10.0
"""How long a process's interest in a task lasts, and how often it is renewed."""

TERMINAL_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
"""Events after which the tokens of a task are deleted, because the output is in the database."""

TaskKey = tuple[str, str]


class Hub:
    """Delivers the events and tokens of tasks to watchers.

    `closing` is set when the service shuts down; waiters and streams must end then.
    """

    def __init__(self, fanout: Fanout | None = None) -> None:
        self.closing = asyncio.Event()
        self.listeners: list[Callable[[str, str, list[Any]], None]] = []
        """Called on the event loop with tenant, task id and events of every change of a task; must be fast."""
        self._watchers: dict[TaskKey, list[TaskWatcher]] = {}
        self._tokens: dict[TaskKey, list[StreamedToken]] = {}
        self._remote = None if fanout is None or fanout.is_single_process else RemoteWatchers(fanout, self)

    @contextmanager
    def watch(self, tenant: str, task_id: str) -> Iterator[TaskWatcher]:
        """Yield a watcher that receives, in order, everything that is published while the block runs."""
        # Registered before the block runs: a caller that then reads the run log cannot miss what comes in between.
        key, watcher = (tenant, task_id), TaskWatcher(POLL_SECONDS if self._remote else None)
        self._watchers.setdefault(key, []).append(watcher)
        if self._remote:
            self._remote.watch(key)
        try:
            yield watcher
        finally:
            self._watchers[key].remove(watcher)
            if not self._watchers[key]:
                del self._watchers[key]
                if self._remote:
                    self._remote.leave(key)

    def renew_interest(self) -> None:
        """Renew the interest in watched tasks at other processes. Call every few seconds."""
        if self._remote:
            self._remote.renew_interest()

    def watched_tasks(self) -> list[TaskKey]:
        """Return the tasks that are watched in this process."""
        return list(self._watchers)

    def publish(self, tenant: str, task_id: str, messages: list[Any]) -> None:
        """Queue the messages for the watchers in this process."""
        for watcher in self._watchers.get((tenant, task_id), ()):
            for message in messages:
                watcher.put(message)

    def publish_events(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """Deliver committed events of a task to its watchers and the listeners.

        Call it after the commit: a watcher that reacts by reading the run log must find the events there.
        """
        for listener in self.listeners:
            listener(tenant, task_id, events)
        self.publish(tenant, task_id, events)
        if self._remote:
            # Only that something changed: the others read the events from the run log.
            self._remote.changed((tenant, task_id))
        if any(event.event_type in TERMINAL_EVENTS for event in events):
            self.drop_tokens(tenant, task_id)

    def append_token(self, tenant: str, task_id: str, attempt: str, text: str) -> None:
        """Add a token of the running attempt and deliver it to all watchers."""
        tokens = self._tokens.get((tenant, task_id))
        n = tokens[-1].n + 1 if tokens and tokens[0].attempt == attempt else 1
        token = StreamedToken(attempt, n, text)
        self.add_token(tenant, task_id, token)
        if self._remote:
            self._remote.token((tenant, task_id), token)

    def add_token(self, tenant: str, task_id: str, token: StreamedToken) -> None:
        """Store a token and deliver it to the watchers in this process."""
        tokens = self._tokens.setdefault((tenant, task_id), [])
        if tokens and tokens[0].attempt != token.attempt:
            tokens.clear()  # a retry starts its output from the beginning
        if len(tokens) == MAX_TOKENS:
            del tokens[0]
        tokens.append(token)
        self.publish(tenant, task_id, [token])

    def notify_changed(self, tenant: str, task_id: str) -> None:
        """Make the watchers in this process read the run log."""
        self.publish(tenant, task_id, [RunLogChanged()])

    def tokens(self, tenant: str, task_id: str) -> list[StreamedToken]:
        """Return the tokens so far of the running attempt."""
        return list(self._tokens.get((tenant, task_id), ()))

    def drop_tokens(self, tenant: str, task_id: str) -> None:
        """Delete the tokens of an attempt that has ended; its output is in the task's row."""
        self._tokens.pop((tenant, task_id), None)


class StreamedToken(msgspec.Struct, frozen=True):
    """A piece of streamed output: the n-th (from 1) of the attempt that started with the event `attempt`."""

    attempt: str
    n: int
    text: str


class RunLogChanged(msgspec.Struct, frozen=True):
    """The run log may have new events of the task, written by another process."""


class TaskWatcher:
    """A bounded queue of messages; `has_overflowed` if it was ever full.

    With `poll_seconds`, `get` returns RunLogChanged after that time without a message, because messages from other
    processes may be lost.
    """

    def __init__(self, poll_seconds: float | None = None) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(MAX_QUEUED)
        self._every = poll_seconds
        self.has_overflowed = False

    def put(self, message: Any) -> None:
        """Queue a message; never waits."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            # The reader of the queue ends its stream then; the client resumes from the run log.
            self.has_overflowed = True

    async def get(self) -> Any:
        """Wait for the next message."""
        try:
            async with asyncio.timeout(self._every):
                return await self._queue.get()
        except TimeoutError:
            return RunLogChanged()

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


class LocalWatchers(Protocol):
    """The part of the hub that `RemoteWatchers` uses."""

    def watched_tasks(self) -> list[TaskKey]: ...
    def tokens(self, tenant: str, task_id: str) -> list[StreamedToken]: ...
    def add_token(self, tenant: str, task_id: str, token: StreamedToken) -> None: ...
    def notify_changed(self, tenant: str, task_id: str) -> None: ...
    def drop_tokens(self, tenant: str, task_id: str) -> None: ...


class RemoteWatchers:
    """Connects the hub to the watchers in other processes, and its own watchers to the tasks that run there."""

    def __init__(self, fanout: Fanout, local: LocalWatchers, clock: Callable[[], float] = time.monotonic) -> None:
        self._fanout = fanout
        self._local = local
        self._clock = clock
        self._interest: dict[TaskKey, dict[Address, float]] = {}
        """Which other processes are interested in a task, and until when."""
        self._announced_at: dict[TaskKey, float] = {}
        """When this process last announced its interest in a task."""
        self._mirrored: set[TaskKey] = set()
        """Tasks whose tokens here are copies of another process's."""
        fanout.subscribe(TaskWatched, self._on_watched)
        fanout.subscribe(TaskChanged, lambda message: local.notify_changed(message.tenant, message.task_id))
        fanout.subscribe(TokenBatch, self._on_tokens)
        fanout.subscribe(Reconnected, lambda _: self._on_reconnect())

    def watch(self, key: TaskKey) -> None:
        """Announce that a task is watched in this process."""
        self._announced_at[key] = self._clock()
        self._fanout.send(TaskWatched(*key, process=self._fanout.own_id))

    def leave(self, key: TaskKey) -> None:
        """Forget a task that is no longer watched in this process."""
        self._announced_at.pop(key, None)
        if key in self._mirrored:
            self._mirrored.discard(key)
            # Copies that are not kept up to date without a watcher.
            self._local.drop_tokens(*key)

    def renew_interest(self) -> None:
        """Announce this process's interest again, and forget the expired interest of others.

        Interest expires because a process that dies cannot withdraw it.
        """
        now = self._clock()
        # Not from the start: the tokens so far have arrived already.
        for key, announced_at in self._announced_at.items():
            if now - announced_at >= RENEW_SECONDS:
                self._announced_at[key] = now
                self._fanout.send(TaskWatched(*key, from_start=False, process=self._fanout.own_id))
        for key, interested in list(self._interest.items()):
            self._interest[key] = {process: until for process, until in interested.items() if until >= now}
            if not self._interest[key]:
                del self._interest[key]

    def changed(self, key: TaskKey) -> None:
        """Send a change of a task to the processes that watch it."""
        for process in self._interest.get(key, ()):
            self._fanout.send(TaskChanged(*key), process)

    def token(self, key: TaskKey, token: StreamedToken) -> None:
        """Send a token to the processes that watch the task."""
        self._mirrored.discard(key)  # the attempt now runs in this process
        for process in self._interest.get(key, ()):
            self._fanout.send(TokenBatch(*key, token.attempt, token.n, (token.text,)), process)

    def _on_watched(self, message: TaskWatched) -> None:
        key = message.tenant, message.task_id
        process = message.process or None
        self._interest.setdefault(key, {})[process] = self._clock() + INTEREST_SECONDS
        # Only the process that runs the attempt sends the earlier tokens; one with copies would repeat them.
        if message.from_start and key not in self._mirrored:
            self._send_all(key, self._local.tokens(*key), process)

    def _send_all(self, key: TaskKey, tokens: list[StreamedToken], to: Address) -> None:
        start = 0
        while start < len(tokens):
            end, size = start, 0
            while end < len(tokens) and (end == start or size + len(tokens[end].text) <= MAX_BATCH_CHARACTERS):
                size += len(tokens[end].text)
                end += 1
            texts = tuple(token.text for token in tokens[start:end])
            batch = TokenBatch(*key, tokens[start].attempt, tokens[start].n, texts, is_complete=start == 0)
            self._fanout.send(batch, to)
            start = end

    def _on_tokens(self, message: TokenBatch) -> None:
        """Add the tokens that are new here.

        A batch without the beginning of the attempt is ignored: this process has asked for all tokens already.
        """
        key = message.tenant, message.task_id
        if key not in self._announced_at:
            return
        tokens = self._local.tokens(*key)
        last = tokens[-1].n if tokens and tokens[0].attempt == message.attempt else 0
        if last == 0 and message.first_index > 1 and not message.is_complete:
            return
        self._mirrored.add(key)
        for n, text in enumerate(message.texts, message.first_index):
            if n > last:
                self._local.add_token(*key, StreamedToken(message.attempt, n, text))

    def _on_reconnect(self) -> None:
        for key in self._local.watched_tasks():
            self.watch(key)
            self._local.notify_changed(*key)
