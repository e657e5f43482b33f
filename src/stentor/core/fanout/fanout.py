"""Sends what waits every few milliseconds, and gives what comes to whoever asked for its kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stentor.core import ids
from stentor.core.fanout import messages
from stentor.core.fanout.messages import Message, Reconnected, Tokens

FLUSH_SECONDS = 0.01
MOST_WAITING = 20_000
"""Messages that may wait to be sent; more are dropped."""
PAUSE_SECONDS, LONGEST_PAUSE = 0.2, 10.0
M = TypeVar("M", bound=Message)
log = logging.getLogger(__name__)


class Transport(Protocol):
    """Carries payloads to all processes of the installation, the sender perhaps among them. One that does not work
    raises what it likes, and is tried again.
    """

    limit: int
    """Bytes of a payload at most."""

    async def listen(self, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        """For ever; calls `ready` once nothing is missed any more."""
        ...

    async def publish(self, payloads: list[bytes]) -> None: ...

    async def close(self) -> None: ...


class Fanout:
    """Without a transport there are no other processes, and all of it does nothing."""

    def __init__(self, transport: Transport | None = None) -> None:
        self._transport = transport
        self._own = ids.new_id()
        self._handlers: dict[type[Message], list[Callable[[Any], None]]] = {}
        self._waiting: dict[Message, None] = {}
        self._wake = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self.up = False
        """Whether messages arrive."""
        self.dropped = 0

    @property
    def alone(self) -> bool:
        return self._transport is None

    def on(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Have a handler called, on the event loop, for every message of a kind that another process sends."""
        self._handlers.setdefault(kind, []).append(handler)

    def send(self, message: Message) -> None:
        if self._transport is None or not self._background:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting[message] = None
        self._wake.set()

    async def start(self) -> None:
        if self._transport is not None:
            jobs = self._listen(self._transport), self._publish(self._transport)
            self._background += [asyncio.create_task(job) for job in jobs]

    async def stop(self) -> None:
        """Send what waits, if that goes at once, and leave."""
        if self._transport is None or not self._background:
            return
        background, self._background = self._background, []
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        try:
            async with asyncio.timeout(1.0):
                await self._flush(self._transport)
                await self._transport.close()
        except Exception as error:  # noqa: BLE001 - whatever the transport raises: nothing rests on it
            log.debug("the last messages to other processes were not sent: %r", error)

    async def _listen(self, transport: Transport) -> None:
        pause = PAUSE_SECONDS
        while True:
            try:
                await transport.listen(self._receive, self._ready)
            except Exception as error:  # noqa: BLE001 - whatever the transport raises
                if self.up or pause == PAUSE_SECONDS:
                    log.warning("messages of other processes do not arrive: %s; what they tell is found later", error)
                pause = PAUSE_SECONDS if self.up else min(2 * pause, LONGEST_PAUSE)
            self.up = False
            await asyncio.sleep(pause)

    def _ready(self) -> None:
        self.up = True
        self._handle(Reconnected())

    async def _publish(self, transport: Transport) -> None:
        while True:
            await self._wake.wait()
            try:
                await self._flush(transport)
            except Exception as error:  # noqa: BLE001 - whatever the transport raises: nothing rests on it
                log.debug("messages to other processes were not sent: %r", error)
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(FLUSH_SECONDS)

    async def _flush(self, transport: Transport) -> None:
        self._wake.clear()
        waiting, self._waiting = list(self._waiting), {}
        if waiting:
            await transport.publish(list(messages.payloads(self._own, _joined(waiting), transport.limit)))

    def _receive(self, payload: bytes | str) -> None:
        for message in messages.read(payload, self._own):
            self._handle(message)

    def _handle(self, message: Message) -> None:
        for handler in self._handlers.get(type(message), ()):
            try:
                handler(message)
            except Exception:
                log.exception("a message of another process could not be handled")


def _joined(waiting: list[Message]) -> list[Message]:
    """With tokens of one attempt that follow each other in one message."""
    joined: list[Message] = []
    last: dict[tuple[str, str], int] = {}
    for message in waiting:
        if isinstance(message, Tokens):
            key = message.tenant, message.task_id
            at = last.get(key)
            before = joined[at] if at is not None else None
            if isinstance(before, Tokens) and at is not None and (both := _together(before, message)) is not None:
                joined[at] = both
                continue
            last[key] = len(joined)
        joined.append(message)
    return joined


MOST_TOGETHER = 1_200
"""Characters of tokens in one message; more would not fit the smallest payload."""


def _together(one: Tokens, next_one: Tokens) -> Tokens | None:
    follows = one.attempt == next_one.attempt and one.first + len(one.texts) == next_one.first and not next_one.whole
    if not follows or sum(map(len, one.texts)) + sum(map(len, next_one.texts)) > MOST_TOGETHER:
        return None
    return Tokens(one.tenant, one.task_id, one.attempt, one.first, one.texts + next_one.texts, one.whole)
