"""The messages, and how many of them make a payload."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

log = logging.getLogger(__name__)


class Message(msgspec.Struct, frozen=True, tag_field="k", array_like=True):
    """One of those below."""


class Queued(Message, frozen=True, tag="q"):
    """A task waits for an agent; `inside`: one that the service runs itself."""

    agent_id: str
    inside: bool


class Stopped(Message, frozen=True, tag="s"):
    """A task is over: nobody works on it any more."""

    tenant: str
    task_id: str


class Watched(Message, frozen=True, tag="w"):
    """Somebody follows a task at the sender, and wants to hear of it for a while; `new`: from its beginning."""

    tenant: str
    task_id: str
    new: bool = True


class Changed(Message, frozen=True, tag="c"):
    """The run log has something new of a task."""

    tenant: str
    task_id: str


class Tokens(Message, frozen=True, tag="t"):
    """Pieces of an answer, from the `first`-th on; `whole`: all there are of this attempt so far."""

    tenant: str
    task_id: str
    attempt: str
    first: int
    texts: tuple[str, ...]
    whole: bool = False


class Fresh(Message, frozen=True, tag="f"):
    """Something that every process keeps in memory was changed: agents, webhooks, providers."""


class Seen(Message, frozen=True, tag="p"):
    """A worker polled or answered at the sender, at that moment in microseconds."""

    agent_id: str
    at: int


class Reconnected(Message, frozen=True, tag="r"):
    """Never sent: messages may have been missed, so look at everything."""


Sendable = Queued | Stopped | Watched | Changed | Tokens | Fresh | Seen
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(tuple[str, list[msgspec.Raw]])
_message = msgspec.json.Decoder(Sendable)


def payloads(sender: str, messages: list[Message], limit: int) -> Iterator[bytes]:
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


def read(payload: bytes | str, own: str) -> Iterator[Message]:
    """The messages of others; what cannot be read, of a newer version perhaps, is passed over."""
    try:
        sender, parts = _decoder.decode(payload)
    except msgspec.MsgspecError:
        log.debug("a message between processes cannot be read")
        return
    for part in parts if sender != own else ():
        try:
            yield _message.decode(part)
        except msgspec.MsgspecError:
            log.debug("a message between processes cannot be read")
