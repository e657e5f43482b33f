"""The messages, and how many of them make a payload.

Sends what waits every few milliseconds, and gives what comes to whoever asked for its kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from stentor.core import ids

logger = logging.getLogger(__name__)


class FanoutMessage(msgspec.Struct, frozen=True, tag_field="k", array_like=True):
    """One of those below."""


class TaskQueued(FanoutMessage, frozen=True, tag="q"):
    """A task waits for an agent; `inside`: one that the service runs itself."""

    agent_id: str
    in_process: bool


class TaskStopped(FanoutMessage, frozen=True, tag="s"):
    """A task is over: nobody works on it any more."""

    tenant: str
    task_id: str


class TaskWatched(FanoutMessage, frozen=True, tag="w"):
    """Somebody follows a task at the sender, and wants to hear of it for a while; `new`: from its beginning."""

    tenant: str
    task_id: str
    from_start: bool = True


class TaskChanged(FanoutMessage, frozen=True, tag="c"):
    """The run log has something new of a task."""

    tenant: str
    task_id: str


class TokenBatch(FanoutMessage, frozen=True, tag="t"):
    """Pieces of an answer, from the `first`-th on; `whole`: all there are of this attempt so far."""

    tenant: str
    task_id: str
    attempt: str
    first_index: int
    texts: tuple[str, ...]
    is_complete: bool = False


class CacheInvalidated(FanoutMessage, frozen=True, tag="f"):
    """Something that every process keeps in memory was changed: agents, webhooks, providers."""


class WorkerSeen(FanoutMessage, frozen=True, tag="p"):
    """A worker polled or answered at the sender, at that moment in microseconds."""

    agent_id: str
    at: int


class Reconnected(FanoutMessage, frozen=True, tag="r"):
    """Never sent: messages may have been missed, so look at everything."""


Sendable = TaskQueued | TaskStopped | TaskWatched | TaskChanged | TokenBatch | CacheInvalidated | WorkerSeen
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(tuple[str, list[msgspec.Raw]])
_message = msgspec.json.Decoder(Sendable)


def encode_payloads(sender: str, messages: list[FanoutMessage], limit: int) -> Iterator[bytes]:
    """JSON texts of at most `limit` bytes; a message that is larger by itself is left out."""
    head = b'["' + sender.encode() + b'",['
    room = limit - len(head) - 2
    parts: list[bytes] = []
    size = 0
    for part in map(_encode, messages):
        if len(part) > room:
            continue
        if parts and size + len(part) + len(parts) > room:
            yield head + b",".join(parts) + b"]]"
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield head + b",".join(parts) + b"]]"


def decode_payload(payload: bytes | str, own: str) -> Iterator[FanoutMessage]:
    """The messages of others; what cannot be read, of a newer version perhaps, is passed over."""
    try:
        sender, parts = _decoder.decode(payload)
    except msgspec.MsgspecError:
        logger.debug("a message between processes cannot be read")
        return
    for part in parts if sender != own else ():
        try:
            yield _message.decode(part)
        except msgspec.MsgspecError:
            logger.debug("a message between processes cannot be read")


FLUSH_SECONDS = 0.01
MAX_QUEUED_MESSAGES = 20_000
"""Messages that may wait to be sent; more are dropped."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
M = TypeVar("M", bound=FanoutMessage)
log = logging.getLogger(__name__)


class FanoutTransport(Protocol):
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

    def __init__(self, transport: FanoutTransport | None = None) -> None:
        self._transport = transport
        self._own = ids.new_id()
        self._handlers: dict[type[FanoutMessage], list[Callable[[Any], None]]] = {}
        self._waiting: dict[FanoutMessage, None] = {}
        self._wake = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self.is_connected = False
        """Whether messages arrive."""
        self.dropped_messages = 0

    @property
    def is_single_process(self) -> bool:
        return self._transport is None

    def subscribe(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Have a handler called, on the event loop, for every message of a kind that another process sends."""
        self._handlers.setdefault(kind, []).append(handler)

    def send(self, message: FanoutMessage) -> None:
        if self._transport is None or not self._background:
            return
        if len(self._waiting) >= MAX_QUEUED_MESSAGES:
            self.dropped_messages += 1
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

    async def _listen(self, transport: FanoutTransport) -> None:
        pause = PAUSE_SECONDS
        while True:
            try:
                await transport.listen(self._receive, self._ready)
            except Exception as error:  # noqa: BLE001 - whatever the transport raises
                if self.is_connected or pause == PAUSE_SECONDS:
                    log.warning("messages of other processes do not arrive: %s; what they tell is found later", error)
                pause = PAUSE_SECONDS if self.is_connected else min(2 * pause, MAX_PAUSE_SECONDS)
            self.is_connected = False
            await asyncio.sleep(pause)

    def _ready(self) -> None:
        self.is_connected = True
        self._handle(Reconnected())

    async def _publish(self, transport: FanoutTransport) -> None:
        while True:
            await self._wake.wait()
            try:
                await self._flush(transport)
            except Exception as error:  # noqa: BLE001 - whatever the transport raises: nothing rests on it
                log.debug("messages to other processes were not sent: %r", error)
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(FLUSH_SECONDS)

    async def _flush(self, transport: FanoutTransport) -> None:
        self._wake.clear()
        waiting, self._waiting = list(self._waiting), {}
        if waiting:
            await transport.publish(list(encode_payloads(self._own, _joined(waiting), transport.limit)))

    def _receive(self, payload: bytes | str) -> None:
        for message in decode_payload(payload, self._own):
            self._handle(message)

    def _handle(self, message: FanoutMessage) -> None:
        for handler in self._handlers.get(type(message), ()):
            try:
                handler(message)
            except Exception:
                log.exception("a message of another process could not be handled")


def _joined(waiting: list[FanoutMessage]) -> list[FanoutMessage]:
    """With tokens of one attempt that follow each other in one message."""
    joined: list[FanoutMessage] = []
    last: dict[tuple[str, str], int] = {}
    for message in waiting:
        if isinstance(message, TokenBatch):
            key = message.tenant, message.task_id
            at = last.get(key)
            before = joined[at] if at is not None else None
            if isinstance(before, TokenBatch) and at is not None and (both := _together(before, message)) is not None:
                joined[at] = both
                continue
            last[key] = len(joined)
        joined.append(message)
    return joined


MAX_BATCH_CHARACTERS = 1_200
"""Characters of tokens in one message; more would not fit the smallest payload."""


def _together(one: TokenBatch, next_one: TokenBatch) -> TokenBatch | None:
    follows = (
        one.attempt == next_one.attempt
        and one.first_index + len(one.texts) == next_one.first_index
        and not next_one.is_complete
    )
    if not follows or sum(map(len, one.texts)) + sum(map(len, next_one.texts)) > MAX_BATCH_CHARACTERS:
        return None
    return TokenBatch(
        one.tenant, one.task_id, one.attempt, one.first_index, one.texts + next_one.texts, one.is_complete
    )
