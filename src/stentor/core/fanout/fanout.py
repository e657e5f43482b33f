"""The messages between processes, their encoding into payloads, and `Fanout`, which sends and dispatches them.

A `FanoutTransport` carries the payloads: PostgreSQL's NOTIFY, or NATS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from stentor.core import ids

FLUSH_SECONDS = 0.01
"""Pause between two sends; the messages queued meanwhile share a payload."""
MAX_QUEUED_MESSAGES = 20_000
"""Messages that may wait to be sent; further ones are dropped."""
MAX_WAIT_SECONDS = 1.0
"""How long `wait_sent` waits at most: messages are hints, and an outage must not block the callers that send them."""
MAX_BATCH_CHARACTERS = 1_200
"""Characters of tokens in one message; more would not fit in the smallest payload (PostgreSQL's)."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
"""First and longest pause before a reconnect."""
log = logging.getLogger(__name__)


class FanoutMessage(msgspec.Struct, frozen=True, tag_field="k", array_like=True):
    """Base of the messages below; a tag of one letter and arrays keep them small."""


class TaskQueued(FanoutMessage, frozen=True, tag="q"):
    """A task is queued for an agent; `in_process` if the service runs the agent itself.

    Sent to one process. If that has no room, it passes the message on to another one and adds itself to `tried`.
    A message to all processes has an empty `tried` and is not passed on.
    """

    agent_id: str
    in_process: bool
    tried: tuple[str, ...] = ()


class ProcessWorks(FanoutMessage, frozen=True, tag="h"):
    """The process runs agents inside the service, and repeats this message within `seconds`; 0 when it stops."""

    process: str
    seconds: float


class TaskStopped(FanoutMessage, frozen=True, tag="s"):
    """A task has ended or is queued again; stop working on it in an attempt of this epoch or an earlier one.

    An `epoch` of None means every attempt.
    """

    tenant: str
    task_id: str
    epoch: int | None


class TaskWatched(FanoutMessage, frozen=True, tag="w"):
    """A client of `process` watches a task: send that process the changes for a while.

    With `from_start` the earlier tokens too.
    """

    tenant: str
    task_id: str
    from_start: bool
    process: str


class TaskChanged(FanoutMessage, frozen=True, tag="c"):
    """The run log has new events of a task."""

    tenant: str
    task_id: str


class TokenBatch(FanoutMessage, frozen=True, tag="t"):
    """Tokens of an attempt that `process` received, numbered there from `first_index`.

    With `is_complete` the batch begins with the first token that the process has.
    """

    tenant: str
    task_id: str
    attempt: str
    first_index: int
    texts: tuple[str, ...]
    is_complete: bool
    process: str


class CacheInvalidated(FanoutMessage, frozen=True, tag="f"):
    """Data that every process caches was changed: agents, webhooks or providers."""


class WorkerSeen(FanoutMessage, frozen=True, tag="p"):
    """A worker contacted `process` at the time `at` (microseconds); with `left` the agent's last one has left."""

    agent_id: str
    at: int
    left: bool
    process: str


class Reconnected(FanoutMessage, frozen=True, tag="r"):
    """Dispatched locally after a connect, never sent: messages may have been missed, so poll everything."""


M = TypeVar("M", bound=FanoutMessage)
Sendable = (
    TaskQueued | ProcessWorks | TaskStopped | TaskWatched | TaskChanged | TokenBatch | CacheInvalidated | WorkerSeen
)
Address = str | None
"""Id of the process that a message is for; None for all."""
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(tuple[str, list[msgspec.Raw]])
_message = msgspec.json.Decoder(Sendable)


def encode_payloads(sender: str, messages: list[FanoutMessage], limit: int) -> Iterator[bytes]:
    """Encode the messages as JSON payloads of at most `limit` bytes; drops a single message that is larger."""
    head = b'["' + sender.encode() + b'",['
    room = limit - len(head) - 2  # the closing brackets
    parts: list[bytes] = []
    size = 0
    for part in map(_encode, messages):
        if len(part) > room:
            continue
        # With a comma before each part but the first.
        if parts and size + len(part) + len(parts) > room:
            yield head + b",".join(parts) + b"]]"
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield head + b",".join(parts) + b"]]"


def decode_payload(payload: bytes | str, own_id: str) -> Iterator[FanoutMessage]:
    """Yield the messages of other processes; skips invalid ones, which may come from a newer version."""
    try:
        sender, parts = _decoder.decode(payload)
    except msgspec.MsgspecError:
        log.debug("fanout: invalid payload")
        return
    # Both transports deliver a payload to its sender too.
    for part in parts if sender != own_id else ():
        try:
            yield _message.decode(part)
        except msgspec.MsgspecError:
            log.debug("fanout: invalid message")


class FanoutTransport(Protocol):
    """Carries payloads to one process of the installation or to all of them, which may include the sender.

    It may raise any exception; the operation is then retried.
    """

    limit: int
    """Maximum size of a payload in bytes."""

    async def listen(self, own_id: str, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        """Receive the payloads for all and for `own_id` until the connection is lost.

        Calls `ready` once it is subscribed: from then on no payload is missed.
        """
        ...

    async def publish(self, payloads: list[tuple[Address, bytes]]) -> None: ...

    async def close(self) -> None: ...


class Fanout:
    """Sends messages to the other processes, and dispatches theirs; without a transport it does nothing."""

    def __init__(self, transport: FanoutTransport | None = None) -> None:
        self._transport = transport
        self.own_id = ids.new_id()
        """The address of this process."""
        self._handlers: dict[type[FanoutMessage], list[Callable[[Any], None]]] = {}
        self._queued: dict[tuple[Address, FanoutMessage], None] = {}
        self._wake = asyncio.Event()
        self._next_flush: asyncio.Future[None] | None = None
        """Done when the messages queued now have been sent or lost; None while nobody waits for that."""
        self._background: list[asyncio.Task[None]] = []
        self.is_connected = False
        """Whether messages are being received."""

    @property
    def is_single_process(self) -> bool:
        return self._transport is None

    def subscribe(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Call the handler on the event loop for every message of this type from another process."""
        self._handlers.setdefault(kind, []).append(handler)

    def send(self, message: FanoutMessage, to: Address = None) -> None:
        """Queue a message for one process or for all; never waits. Drops it if the queue is full."""
        if self._transport is None or not self._background:
            return
        # During an outage nothing is sent; a longer queue would only use memory for hints that polling replaces.
        if len(self._queued) >= MAX_QUEUED_MESSAGES:
            return
        self._queued[to, message] = None  # a dict as an ordered set: equal messages are sent once
        self._wake.set()

    async def wait_sent(self) -> None:
        """Wait until the queued messages have been sent, or were lost; at most MAX_WAIT_SECONDS."""
        if not self._queued:
            return
        if self._next_flush is None:
            self._next_flush = asyncio.get_running_loop().create_future()
        # Waits do not raise, and do not cancel the future that others wait for too.
        await asyncio.wait((self._next_flush,), timeout=MAX_WAIT_SECONDS)

    async def start(self) -> None:
        if self._transport is not None:
            jobs = self._listen(self._transport), self._publish(self._transport)
            self._background += [asyncio.create_task(job) for job in jobs]

    async def stop(self) -> None:
        """Send the queued messages, for at most a second, and disconnect."""
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
        except Exception as error:  # noqa: BLE001 - a transport raises anything, and messages are only hints
            log.debug("fanout: last messages not sent error=%r", error)

    async def _listen(self, transport: FanoutTransport) -> None:
        pause = PAUSE_SECONDS
        while True:
            try:
                await transport.listen(self.own_id, self._receive, self._ready)
            except Exception as error:  # noqa: BLE001 - a transport raises anything
                # One line for each outage, not one for each retry.
                if self.is_connected or pause == PAUSE_SECONDS:
                    log.warning("fanout: disconnected error=%s (falling back to polling)", error)
                # Shortly after a connection that worked; with backoff while the server is down.
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
            except Exception as error:  # noqa: BLE001 - a transport raises anything, and messages are only hints
                log.debug("fanout: messages not sent error=%r", error)
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(FLUSH_SECONDS)

    async def _flush(self, transport: FanoutTransport) -> None:
        # No await between the two lines: a message that is queued from now on sets the event again.
        self._wake.clear()
        queued, self._queued = self._queued, {}
        sent, self._next_flush = self._next_flush, None
        try:
            await self._send_queued(transport, queued)
        finally:
            if sent is not None:
                sent.set_result(None)

    async def _send_queued(self, transport: FanoutTransport, queued: Iterable[tuple[Address, FanoutMessage]]) -> None:
        by_address: dict[Address, list[FanoutMessage]] = {}
        for to, message in queued:
            by_address.setdefault(to, []).append(message)
        # Not queued again if that fails: messages are hints, and polling finds the changes.
        if by_address:
            await transport.publish(
                [
                    (to, payload)
                    for to, messages in by_address.items()
                    for payload in encode_payloads(self.own_id, _merge_tokens(messages), transport.limit)
                ]
            )

    def _receive(self, payload: bytes | str) -> None:
        for message in decode_payload(payload, self.own_id):
            self._handle(message)

    def _handle(self, message: FanoutMessage) -> None:
        for handler in self._handlers.get(type(message), ()):
            try:
                handler(message)
            except Exception:
                log.exception("fanout: handler failed message=%s", type(message).__name__)


def _merge_tokens(messages: list[FanoutMessage]) -> list[FanoutMessage]:
    """Merge consecutive token batches of the same attempt."""
    merged: list[FanoutMessage] = []
    last_index: dict[tuple[str, str], int] = {}
    for message in messages:
        if isinstance(message, TokenBatch):
            key = message.tenant, message.task_id
            index = last_index.get(key)
            previous = merged[index] if index is not None else None
            if isinstance(previous, TokenBatch) and index is not None and (batch := _concat(previous, message)):
                merged[index] = batch
                continue
            last_index[key] = len(merged)
        merged.append(message)
    return merged


def _concat(first: TokenBatch, second: TokenBatch) -> TokenBatch | None:
    """Return both batches as one; None if they are not consecutive, or too long together."""
    is_consecutive = (
        (first.attempt, first.process) == (second.attempt, second.process)
        and first.first_index + len(first.texts) == second.first_index
        and not second.is_complete
    )
    if not is_consecutive or sum(map(len, first.texts)) + sum(map(len, second.texts)) > MAX_BATCH_CHARACTERS:
        return None
    return msgspec.structs.replace(first, texts=first.texts + second.texts)
