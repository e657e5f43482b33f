"""Live fan-out: what watchers of a task see at once.

Never the truth: events come from the run log and are only announced here; tokens are kept while the
attempt runs. A slow watcher is cut rather than waited for; it resumes from the run log. Where other processes
share the database, what concerns a watcher elsewhere is sent there, and what is lost on the way is found by looking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stentor.core.fanout import Fanout
from stentor.core.live.elsewhere import Elsewhere
from stentor.core.live.messages import Look, Token, Watcher

MAX_TOKENS = 10_000
"""Tokens kept per attempt for watchers that come late."""
LOOK_SECONDS = 2.0
"""How often a watcher looks into the run log where other processes write to it too."""

ENDINGS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
"""Events after which the tokens of a task are of no use."""

Key = tuple[str, str]


class Hub:
    """`closing` is set when the service leaves: whoever waits here or streams from here ends then."""

    def __init__(self, fanout: Fanout | None = None) -> None:
        self.closing = asyncio.Event()
        self.listeners: list[Callable[[str, str, list[Any]], None]] = []
        """Called with tenant, task and events of every change of a task; they must be as good as free."""
        self._watchers: dict[Key, list[Watcher]] = {}
        self._tokens: dict[Key, list[Token]] = {}
        self._elsewhere = None if fanout is None or fanout.alone else Elsewhere(fanout, self)

    @contextmanager
    def watch(self, tenant: str, task_id: str) -> Iterator[Watcher]:
        """A watcher that gets, in order, all that is published while the block runs."""
        key, watcher = (tenant, task_id), Watcher(LOOK_SECONDS if self._elsewhere else None)
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

    def remind(self) -> None:
        """To be called every few seconds."""
        if self._elsewhere:
            self._elsewhere.remind()

    def watched(self) -> list[Key]:
        """The tasks that somebody watches here."""
        return list(self._watchers)

    def publish(self, tenant: str, task_id: str, messages: list[Any]) -> None:
        for watcher in self._watchers.get((tenant, task_id), ()):
            for message in messages:
                watcher.put(message)

    def announce(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """Publish what the run log recorded of a task, and tell the listeners."""
        for listener in self.listeners:
            listener(tenant, task_id, events)
        self.publish(tenant, task_id, events)
        if self._elsewhere:
            self._elsewhere.changed((tenant, task_id))
        if any(event.event_type in ENDINGS for event in events):
            self.forget(tenant, task_id)

    def token(self, tenant: str, task_id: str, attempt: str, text: str) -> None:
        """Append a token to the running attempt and announce it."""
        kept = self._tokens.get((tenant, task_id))
        n = kept[-1].n + 1 if kept and kept[0].attempt == attempt else 1
        token = Token(attempt, n, text)
        self.add(tenant, task_id, token)
        if self._elsewhere:
            self._elsewhere.token((tenant, task_id), token)

    def add(self, tenant: str, task_id: str, token: Token) -> None:
        """Keep a token and show it to the watchers here."""
        kept = self._tokens.setdefault((tenant, task_id), [])
        if kept and kept[0].attempt != token.attempt:
            kept.clear()
        if len(kept) == MAX_TOKENS:
            del kept[0]
        kept.append(token)
        self.publish(tenant, task_id, [token])

    def look(self, tenant: str, task_id: str) -> None:
        """Have the watchers look into the run log."""
        self.publish(tenant, task_id, [Look()])

    def tokens(self, tenant: str, task_id: str) -> list[Token]:
        """The tokens so far of the attempt that runs now."""
        return list(self._tokens.get((tenant, task_id), ()))

    def forget(self, tenant: str, task_id: str) -> None:
        """The attempt has ended; its answer is in the task's row."""
        self._tokens.pop((tenant, task_id), None)
