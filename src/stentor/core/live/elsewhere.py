"""The part of the hub that other processes see: who watches what where, and what is sent there.

A process that watches a task says so now and then; for half a minute after that the others send it what they know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from stentor.core.fanout import Changed, Fanout, Reconnected, Tokens, Watched
from stentor.core.live.messages import Token

INTEREST_SECONDS, REMIND_SECONDS = 30.0, 10.0
PIECE = 1_200
"""Characters of tokens in one message."""
Key = tuple[str, str]


class Here(Protocol):
    """What the hub does for others."""

    def watched(self) -> list[Key]: ...
    def tokens(self, tenant: str, task_id: str) -> list[Token]: ...
    def add(self, tenant: str, task_id: str, token: Token) -> None: ...
    def look(self, tenant: str, task_id: str) -> None: ...
    def forget(self, tenant: str, task_id: str) -> None: ...


class Elsewhere:
    def __init__(self, fanout: Fanout, here: Here, clock: Callable[[], float] = time.monotonic) -> None:
        self._fanout = fanout
        self._here = here
        self._clock = clock
        self._interest: dict[Key, float] = {}
        self._said: dict[Key, float] = {}
        self._mirrored: set[Key] = set()
        fanout.on(Watched, self._watched)
        fanout.on(Changed, lambda message: here.look(message.tenant, message.task_id))
        fanout.on(Tokens, self._tokens)
        fanout.on(Reconnected, lambda _: self._again())

    def watch(self, key: Key) -> None:
        """Somebody watches a task here."""
        self._said[key] = self._clock()
        self._fanout.send(Watched(*key))

    def leave(self, key: Key) -> None:
        """Nobody watches it here any more."""
        self._said.pop(key, None)
        if key in self._mirrored:
            self._mirrored.discard(key)
            self._here.forget(*key)

    def remind(self) -> None:
        """To be called every few seconds: interest ends by itself when nobody speaks of it."""
        now = self._clock()
        for key, said in self._said.items():
            if now - said >= REMIND_SECONDS:
                self._said[key] = now
                self._fanout.send(Watched(*key, new=False))
        for key in [key for key, until in self._interest.items() if until < now]:
            del self._interest[key]

    def changed(self, key: Key) -> None:
        if key in self._interest:
            self._fanout.send(Changed(*key))

    def token(self, key: Key, token: Token) -> None:
        self._mirrored.discard(key)  # the attempt runs here now
        if key in self._interest:
            self._fanout.send(Tokens(*key, token.attempt, token.n, (token.text,)))

    def _watched(self, message: Watched) -> None:
        key = message.tenant, message.task_id
        self._interest[key] = self._clock() + INTEREST_SECONDS
        if message.new and key not in self._mirrored:
            self._send_all(key, self._here.tokens(*key))

    def _send_all(self, key: Key, tokens: list[Token]) -> None:
        start = 0
        while start < len(tokens):
            end, size = start, 0
            while end < len(tokens) and (end == start or size + len(tokens[end].text) <= PIECE):
                size += len(tokens[end].text)
                end += 1
            texts = tuple(token.text for token in tokens[start:end])
            self._fanout.send(Tokens(*key, tokens[start].attempt, tokens[start].n, texts, whole=start == 0))
            start = end

    def _tokens(self, message: Tokens) -> None:
        """Add what is new; without their beginning they are of no use yet, and it has been asked for."""
        key = message.tenant, message.task_id
        if key not in self._said:
            return
        kept = self._here.tokens(*key)
        last = kept[-1].n if kept and kept[0].attempt == message.attempt else 0
        if last == 0 and message.first > 1 and not message.whole:
            return
        self._mirrored.add(key)
        for n, text in enumerate(message.texts, message.first):
            if n > last:
                self._here.add(*key, Token(message.attempt, n, text))

    def _again(self) -> None:
        for key in self._here.watched():
            self.watch(key)
            self._here.look(*key)
