"""Live streams: what watchers of a task see at once, in this process and in others.

Live fan-out: what watchers of a task see at once.

Never the truth: events come from the run log and are only announced here; tokens are kept while the
attempt runs. A slow watcher is cut rather than waited for; it resumes from the run log. Where other processes
share the database, what concerns a watcher elsewhere is sent there, and what is lost on the way is found by looking.

What a watcher of a task is given, and its queue.

The part of the hub that other processes see: who watches what where, and what is sent there.

A process that watches a task says so now and then; for half a minute after that the others send it what they know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from stentor.core.fanout import Fanout, Reconnected, TaskChanged, TaskWatched, TokenBatch

__all__ = ["MAX_QUEUED", "MAX_TOKENS", "TERMINAL_EVENTS", "Hub", "RunLogChanged", "StreamedToken", "TaskWatcher"]


MAX_TOKENS = 10_000
"""Tokens kept per attempt for watchers that come late."""
POLL_SECONDS = 2.0
"""How often a watcher looks into the run log where other processes write to it too."""

TERMINAL_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
"""Events after which the tokens of a task are of no use."""

TaskKey = tuple[str, str]


class Hub:
    """`closing` is set when the service leaves: whoever waits here or streams from here ends then."""

    def __init__(self, fanout: Fanout | None = None) -> None:
        self.closing = asyncio.Event()
        self.listeners: list[Callable[[str, str, list[Any]], None]] = []
        """Called with tenant, task and events of every change of a task; they must be as good as free."""
        self._watchers: dict[TaskKey, list[TaskWatcher]] = {}
        self._tokens: dict[TaskKey, list[StreamedToken]] = {}
        self._elsewhere = None if fanout is None or fanout.is_single_process else RemoteWatchers(fanout, self)

    @contextmanager
    def watch(self, tenant: str, task_id: str) -> Iterator[TaskWatcher]:
        """A watcher that gets, in order, all that is published while the block runs."""
        key, watcher = (tenant, task_id), TaskWatcher(POLL_SECONDS if self._elsewhere else None)
        self._watchers.setdefault(key, []).append(watcher)
        if self._elsewhere:
            self._elsewhere.watch(key)
        try:
            yield watcher
        finally:
            self._watchers[key].remove(watcher)
            if not self._watchers[key]:
                del self._watchers[key]
                if self._elsewhere:
                    self._elsewhere.leave(key)

    def renew_interest(self) -> None:
        """To be called every few seconds."""
        if self._elsewhere:
            self._elsewhere.renew_interest()

    def watched_tasks(self) -> list[TaskKey]:
        """The tasks that somebody watches here."""
        return list(self._watchers)

    def publish(self, tenant: str, task_id: str, messages: list[Any]) -> None:
        for watcher in self._watchers.get((tenant, task_id), ()):
            for message in messages:
                watcher.put(message)

    def publish_events(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """Publish what the run log recorded of a task, and tell the listeners."""
        for listener in self.listeners:
            listener(tenant, task_id, events)
        self.publish(tenant, task_id, events)
        if self._elsewhere:
            self._elsewhere.changed((tenant, task_id))
        if any(event.event_type in TERMINAL_EVENTS for event in events):
            self.drop_tokens(tenant, task_id)

    def append_token(self, tenant: str, task_id: str, attempt: str, text: str) -> None:
        """Append a token to the running attempt and announce it."""
        kept = self._tokens.get((tenant, task_id))
        n = kept[-1].n + 1 if kept and kept[0].attempt == attempt else 1
        token = StreamedToken(attempt, n, text)
        self.add_token(tenant, task_id, token)
        if self._elsewhere:
            self._elsewhere.token((tenant, task_id), token)

    def add_token(self, tenant: str, task_id: str, token: StreamedToken) -> None:
        """Keep a token and show it to the watchers here."""
        kept = self._tokens.setdefault((tenant, task_id), [])
        if kept and kept[0].attempt != token.attempt:
            kept.clear()
        if len(kept) == MAX_TOKENS:
            del kept[0]
        kept.append(token)
        self.publish(tenant, task_id, [token])

    def notify_changed(self, tenant: str, task_id: str) -> None:
        """Have the watchers look into the run log."""
        self.publish(tenant, task_id, [RunLogChanged()])

    def tokens(self, tenant: str, task_id: str) -> list[StreamedToken]:
        """The tokens so far of the attempt that runs now."""
        return list(self._tokens.get((tenant, task_id), ()))

    def drop_tokens(self, tenant: str, task_id: str) -> None:
        """The attempt has ended; its answer is in the task's row."""
        self._tokens.pop((tenant, task_id), None)


MAX_QUEUED = 1_000
"""Messages a watcher may be behind before it is cut."""


class StreamedToken(msgspec.Struct, frozen=True):
    """One piece of an answer: the n-th of the attempt that started with event `attempt`."""

    attempt: str
    n: int
    text: str


class RunLogChanged(msgspec.Struct, frozen=True):
    """The run log has something new of the task, written by another process."""


class TaskWatcher:
    """A bounded queue; `cut` once it was full. One that may hear too little is told to look every `every` seconds."""

    def __init__(self, poll_seconds: float | None = None) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(MAX_QUEUED)
        self._every = poll_seconds
        self.is_cut = False

    def put(self, message: Any) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.is_cut = True

    async def get(self) -> Any:
        try:
            async with asyncio.timeout(self._every):
                return await self._queue.get()
        except TimeoutError:
            return RunLogChanged()

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


INTEREST_SECONDS, RENEW_SECONDS = 30.0, 10.0
MAX_CHUNK_CHARACTERS = 1_200
"""Characters of tokens in one message."""
WatchedKey = tuple[str, str]


class LocalWatchers(Protocol):
    """What the hub does for others."""

    def watched_tasks(self) -> list[WatchedKey]: ...
    def tokens(self, tenant: str, task_id: str) -> list[StreamedToken]: ...
    def add_token(self, tenant: str, task_id: str, token: StreamedToken) -> None: ...
    def notify_changed(self, tenant: str, task_id: str) -> None: ...
    def drop_tokens(self, tenant: str, task_id: str) -> None: ...


class RemoteWatchers:
    def __init__(self, fanout: Fanout, here: LocalWatchers, clock: Callable[[], float] = time.monotonic) -> None:
        self._fanout = fanout
        self._here = here
        self._clock = clock
        self._interest: dict[WatchedKey, float] = {}
        self._said: dict[WatchedKey, float] = {}
        self._mirrored: set[WatchedKey] = set()
        fanout.subscribe(TaskWatched, self._watched)
        fanout.subscribe(TaskChanged, lambda message: here.notify_changed(message.tenant, message.task_id))
        fanout.subscribe(TokenBatch, self._tokens)
        fanout.subscribe(Reconnected, lambda _: self._again())

    def watch(self, key: WatchedKey) -> None:
        """Somebody watches a task here."""
        self._said[key] = self._clock()
        self._fanout.send(TaskWatched(*key))

    def leave(self, key: WatchedKey) -> None:
        """Nobody watches it here any more."""
        self._said.pop(key, None)
        if key in self._mirrored:
            self._mirrored.discard(key)
            self._here.drop_tokens(*key)

    def renew_interest(self) -> None:
        """To be called every few seconds: interest ends by itself when nobody speaks of it."""
        now = self._clock()
        for key, said in self._said.items():
            if now - said >= RENEW_SECONDS:
                self._said[key] = now
                self._fanout.send(TaskWatched(*key, from_start=False))
        for key in [key for key, until in self._interest.items() if until < now]:
            del self._interest[key]

    def changed(self, key: WatchedKey) -> None:
        if key in self._interest:
            self._fanout.send(TaskChanged(*key))

    def token(self, key: WatchedKey, token: StreamedToken) -> None:
        self._mirrored.discard(key)  # the attempt runs here now
        if key in self._interest:
            self._fanout.send(TokenBatch(*key, token.attempt, token.n, (token.text,)))

    def _watched(self, message: TaskWatched) -> None:
        key = message.tenant, message.task_id
        self._interest[key] = self._clock() + INTEREST_SECONDS
        if message.from_start and key not in self._mirrored:
            self._send_all(key, self._here.tokens(*key))

    def _send_all(self, key: WatchedKey, tokens: list[StreamedToken]) -> None:
        start = 0
        while start < len(tokens):
            end, size = start, 0
            while end < len(tokens) and (end == start or size + len(tokens[end].text) <= MAX_CHUNK_CHARACTERS):
                size += len(tokens[end].text)
                end += 1
            texts = tuple(token.text for token in tokens[start:end])
            self._fanout.send(TokenBatch(*key, tokens[start].attempt, tokens[start].n, texts, is_complete=start == 0))
            start = end

    def _tokens(self, message: TokenBatch) -> None:
        """Add what is new; without their beginning they are of no use yet, and it has been asked for."""
        key = message.tenant, message.task_id
        if key not in self._said:
            return
        kept = self._here.tokens(*key)
        last = kept[-1].n if kept and kept[0].attempt == message.attempt else 0
        if last == 0 and message.first_index > 1 and not message.is_complete:
            return
        self._mirrored.add(key)
        for n, text in enumerate(message.texts, message.first_index):
            if n > last:
                self._here.add_token(*key, StreamedToken(message.attempt, n, text))

    def _again(self) -> None:
        for key in self._here.watched_tasks():
            self.watch(key)
            self._here.notify_changed(*key)
