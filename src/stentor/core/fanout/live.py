"""Live streams: deliver the events and tokens of a task to its watchers, in this process and in others.

Never the source of truth: events are in the run log and are only announced here; tokens are stored in memory while the
attempt runs. A watcher that is too slow is dropped instead of delaying the others, and resumes from the run log. With
several processes, each one announces what it watches for half a minute and the others send those changes only to it; a
message that is lost on the way is made up for by polling.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from stentor.core.fanout import (
    MAX_BATCH_CHARACTERS,
    Fanout,
    Reconnected,
    TaskChanged,
    TaskWatched,
    TokenBatch,
)

__all__ = [
    "MAX_QUEUED",
    "MAX_TOKENS",
    "QUIET_SECONDS",
    "TERMINAL_EVENTS",
    "Hub",
    "RunLogChanged",
    "StreamedToken",
    "TaskWatcher",
]


MAX_QUEUED = 10_000
"""Messages that a watcher may be behind before it is dropped: more than a request with 1,000 long tokens makes."""
MAX_TOKENS, MAX_TOKEN_CHARACTERS = 10_000, 1_000_000
"""Tokens stored for each attempt, and their characters in all, for watchers that start late."""
QUIET_SECONDS = 60.0
"""After this time without a token it is checked whether the attempt has ended."""
POLL_SECONDS = 2.0
"""How often a watcher reads the run log if other processes write to it too."""
# An interest is renewed three times before it expires: two lost messages do not end a stream.
INTEREST_SECONDS, RENEW_SECONDS = 30.0, 10.0
"""How long a process's interest in a task lasts, and how often it is renewed."""

TERMINAL_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
"""Events after which the tokens of a task are deleted, because the output is in the database."""

TaskKey = tuple[str, str]
Listener = Callable[[str, str, list[Any]], None]
"""Takes tenant, task id and events of a change, on the event loop. Must be fast: every listener delays the others."""


class Hub:
    """Delivers the events and tokens of tasks to watchers.

    `closing` is set when the service shuts down; waiters and streams must end then.
    """

    def __init__(self, fanout: Fanout | None = None) -> None:
        self.closing = asyncio.Event()
        self.listeners: list[tuple[Listener, frozenset[str] | None]] = []
        """See `listen`."""
        self._watchers: dict[TaskKey, list[TaskWatcher]] = {}
        self._tokens: dict[TaskKey, AttemptTokens] = {}
        self._clock: Callable[[], float] = time.monotonic
        self._remote = None if fanout is None or fanout.is_single_process else RemoteWatchers(fanout, self)

    def listen(self, listener: Listener, event_types: Iterable[str] | None = None) -> None:
        """Call `listener` with each change of a task, or only with those that have an event of one of these types."""
        self.listeners.append((listener, None if event_types is None else frozenset(event_types)))

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
        event_types = {event.event_type for event in events}
        for listener, wanted in self.listeners:
            if wanted is None or not wanted.isdisjoint(event_types):
                listener(tenant, task_id, events)
        # Other processes may have committed earlier events that are not announced here yet: read those first.
        self.publish(tenant, task_id, [RunLogChanged(), *events] if self._remote else events)
        if self._remote:
            # Announces only that something changed: other processes read the events from the run log.
            self._remote.changed((tenant, task_id))
        if not TERMINAL_EVENTS.isdisjoint(event_types):
            self.drop_tokens(tenant, task_id)

    def append_token(self, tenant: str, task_id: str, attempt: str, text: str) -> None:
        """Add a text of the running attempt and deliver it to all watchers, a long one as several tokens."""
        number = self.last_number(tenant, task_id, attempt)
        # A message to another process is dropped if it is too large.
        for start in range(0, len(text), MAX_BATCH_CHARACTERS):
            number, piece = number + 1, text[start : start + MAX_BATCH_CHARACTERS]
            self.add_token(tenant, task_id, attempt, number, piece)
            if self._remote:
                self._remote.token((tenant, task_id), attempt, number, piece)

    async def wait_tokens_sent(self, tenant: str, task_id: str) -> None:
        """Wait until the tokens so far of a task have been sent to the other processes that watch it, if any."""
        if self._remote:
            await self._remote.wait_tokens_sent((tenant, task_id))

    def add_token(
        self, tenant: str, task_id: str, attempt: str, number: int, text: str, process: str | None = None
    ) -> None:
        """Store the `number`-th token that a process received, None for this one; deliver it to the watchers here."""
        tokens = self._tokens.get((tenant, task_id))
        if tokens is None or tokens.attempt != attempt:  # a retry starts its output from the beginning
            tokens = self._tokens[tenant, task_id] = AttemptTokens(attempt)
        tokens.added_at = self._clock()
        self.publish(tenant, task_id, [tokens.add(number, text, process)])

    def last_number(self, tenant: str, task_id: str, attempt: str, process: str | None = None) -> int:
        """Return the number of the last token that a process, None for this one, received of the attempt; 0 if none."""
        tokens = self._tokens.get((tenant, task_id))
        return tokens.last_numbers.get(process, 0) if tokens is not None and tokens.attempt == attempt else 0

    def notify_changed(self, tenant: str, task_id: str) -> None:
        """Make the watchers in this process read the run log."""
        self.publish(tenant, task_id, [RunLogChanged()])

    def tokens(self, tenant: str, task_id: str) -> list[StreamedToken]:
        """Return the tokens so far of the running attempt."""
        tokens = self._tokens.get((tenant, task_id))
        return [] if tokens is None else list(tokens.tokens)

    def quiet_tasks(self) -> list[TaskKey]:
        """Return the tasks that have tokens here, but got none for QUIET_SECONDS: their attempts may have ended."""
        before = self._clock() - QUIET_SECONDS
        return [key for key, tokens in self._tokens.items() if tokens.added_at <= before]

    def drop_tokens(self, tenant: str, task_id: str) -> None:
        """Delete the tokens of an attempt that has ended; its output is in the task's row."""
        self._tokens.pop((tenant, task_id), None)


class StreamedToken(msgspec.Struct, frozen=True):
    """A piece of streamed output: the n-th (from 1) of the attempt that started with the event `attempt`.

    `process` received it, None for this one.
    """

    attempt: str
    n: int
    text: str
    process: str | None = None


class AttemptTokens:
    """The tokens of an attempt, in the order in which they arrived here.

    A worker's requests may go to several processes, so each process numbers what it received.
    """

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.tokens: deque[StreamedToken] = deque()
        self._characters = 0
        self.last_numbers: dict[str | None, int] = {}
        """The number of the last token of each process."""
        self.added_at = 0.0
        """When the last one arrived, in seconds of the hub's clock."""

    def add(self, number: int, text: str, process: str | None) -> StreamedToken:
        last = self.tokens[-1].n if self.tokens else 0
        # If all tokens come from one process, they keep its numbers, even here, where the first ones may be missing.
        token = StreamedToken(self.attempt, max(last + 1, number), text, process)
        self.tokens.append(token)
        self._characters += len(text)
        while len(self.tokens) > MAX_TOKENS or self._characters > MAX_TOKEN_CHARACTERS:
            self._characters -= len(self.tokens.popleft().text)
        self.last_numbers[process] = number
        return token


class RunLogChanged(msgspec.Struct, frozen=True):
    """The run log may have new events of the task, written by another process."""


class TaskWatcher:
    """A bounded queue of messages; `has_overflowed` if it was ever full.

    With `poll_seconds`, `get` returns RunLogChanged after that time without a message, because messages from other
    processes may be lost.
    """

    def __init__(self, poll_seconds: float | None) -> None:
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


class RemoteWatchers:
    """Connects the hub to the watchers in other processes, and its own watchers to the tasks that run there."""

    def __init__(self, fanout: Fanout, local: Hub) -> None:
        self._fanout = fanout
        self._local = local
        self._clock: Callable[[], float] = time.monotonic
        self._interest: dict[TaskKey, dict[str, float]] = {}
        """Which other processes are interested in a task, and until when."""
        self._announced_at: dict[TaskKey, float] = {}
        """When this process last announced its interest in a task."""
        fanout.subscribe(TaskWatched, self._on_watched)
        fanout.subscribe(TaskChanged, lambda message: local.notify_changed(message.tenant, message.task_id))
        fanout.subscribe(TokenBatch, self._on_tokens)
        fanout.subscribe(Reconnected, lambda _: self._on_reconnect())

    def watch(self, key: TaskKey) -> None:
        """Announce that a task is watched in this process."""
        self._announced_at[key] = self._clock()
        self._fanout.send(TaskWatched(*key, from_start=True, process=self._fanout.own_id))

    def leave(self, key: TaskKey) -> None:
        """Forget a task that is no longer watched in this process."""
        self._announced_at.pop(key, None)
        if all(token.process is not None for token in self._local.tokens(*key)):
            # Deletes the copies, which are not kept up to date without a watcher.
            self._local.drop_tokens(*key)

    def renew_interest(self) -> None:
        """Announce this process's interest again, and forget the expired interest of others.

        Interest expires because a process that dies cannot withdraw it.
        """
        now = self._clock()
        # Does not request tokens from the start: the ones so far have already arrived.
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

    def token(self, key: TaskKey, attempt: str, number: int, text: str) -> None:
        """Send the `number`-th token that this process received to the processes that watch the task."""
        for process in self._interest.get(key, ()):
            self._fanout.send(
                TokenBatch(*key, attempt, number, (text,), is_complete=False, process=self._fanout.own_id), process
            )

    async def wait_tokens_sent(self, key: TaskKey) -> None:
        if self._interest.get(key):
            await self._fanout.wait_sent()

    def _on_watched(self, message: TaskWatched) -> None:
        key = message.tenant, message.task_id
        self._interest.setdefault(key, {})[message.process] = self._clock() + INTEREST_SECONDS
        if message.from_start:
            # Does not send the copies: each process sends what it received itself.
            self._send_all(key, [token for token in self._local.tokens(*key) if token.process is None], message.process)

    def _send_all(self, key: TaskKey, tokens: list[StreamedToken], to: str) -> None:
        start = 0
        first = self._local.last_number(*key, tokens[0].attempt) - len(tokens) + 1 if tokens else 0
        while start < len(tokens):
            end, size = start, 0
            while end < len(tokens) and (end == start or size + len(tokens[end].text) <= MAX_BATCH_CHARACTERS):
                size += len(tokens[end].text)
                end += 1
            texts = tuple(token.text for token in tokens[start:end])
            batch = TokenBatch(*key, tokens[start].attempt, first + start, texts, start == 0, self._fanout.own_id)
            self._fanout.send(batch, to)
            start = end

    def _on_tokens(self, message: TokenBatch) -> None:
        """Add the tokens that are new here.

        A batch without the beginning of the attempt is ignored: this process has already requested all tokens.
        """
        key = message.tenant, message.task_id
        if key not in self._announced_at:
            return
        last = self._local.last_number(*key, message.attempt, message.process)
        if last == 0 and message.first_index > 1 and not message.is_complete:
            return
        for n, text in enumerate(message.texts, message.first_index):
            if n > last:
                self._local.add_token(*key, message.attempt, n, text, message.process)

    def _on_reconnect(self) -> None:
        for key in self._local.watched_tasks():
            self.watch(key)
            self._local.notify_changed(*key)
