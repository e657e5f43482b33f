"""Server-sent events: frames, heartbeats, and one place where a failure becomes a generic event."""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stentor.core import jsontext
from stentor.core.errors import RateLimited, ServiceUnavailable, StentorError

HEARTBEAT_SECONDS = 15.0
HEARTBEAT_COMMENT = b": heartbeat\n\n"
"""A heartbeat that no reader of events sees."""
FAILED_MESSAGE = "The stream ended because the service failed. The work itself goes on; ask for the task's state."
STOPPING_MESSAGE = "The service is stopping. Connect again with Last-Event-ID to go on."
RESEND_MESSAGE = "The service is stopping. Send the request again."
"""Where a stream cannot be gone on with."""
NO_DATA: Mapping[str, Any] = {}
log = logging.getLogger(__name__)


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `id` is what a reader sends back as Last-Event-ID."""

    event: str
    data: dict[str, Any]
    id: str | None = None


def encode_event(frame: SseEvent | bytes, common: Mapping[str, Any] = NO_DATA) -> bytes:
    """The bytes of a frame; its own data wins over the `common` data of its stream."""
    if isinstance(frame, bytes):
        return frame
    head = f"id: {frame.id}\n" if frame.id else ""
    return f"{head}event: {frame.event}\ndata: ".encode() + jsontext.encode_line({**common, **frame.data}) + b"\n\n"


class StreamLimit:
    """Open streams per key, counted in this process."""

    def __init__(self, most: int, closing: asyncio.Event | None = None) -> None:
        self.closing = closing or asyncio.Event()
        self._most = most
        self._open: dict[str, int] = {}

    def check(self, key: str) -> None:
        """Before work is begun for a stream. Raises RateLimited when the key has too many open."""
        if self._open.get(key, 0) >= self._most:
            raise RateLimited(f"This key has {self._most} event streams open, which is the most allowed.")

    def acquire(self, key: str) -> None:
        """Raises RateLimited when the key has too many streams open."""
        self.check(key)
        self._open[key] = self._open.get(key, 0) + 1

    def release(self, key: str) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]


class EventStreamResponse(StreamingResponse):
    """The streaming answer over `frames`. A reader that leaves ends the iterator, not the work.

    `common` is data that every frame carries, the error at a broken end too; `heartbeat` is sent while nothing comes.
    """

    def __init__(
        self,
        frames: AsyncIterator[SseEvent | bytes],
        limit: StreamLimit,
        key: str,
        common: Mapping[str, Any] = NO_DATA,
        heartbeat: bytes = HEARTBEAT_COMMENT,
    ) -> None:
        """Raises RateLimited before anything is sent."""
        limit.acquire(key)
        self._leave = partial(limit.release, key)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        content = _guarded(frames, limit.closing, self._last, common, heartbeat)
        super().__init__(content, media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Here, because a generator that its reader never started has no end to clean up at.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()

    def _last(self) -> SseEvent | bytes:
        """Where the service stops before the stream ends."""
        return SseEvent("error", {"error": STOPPING_MESSAGE})


class RawStreamResponse(EventStreamResponse):
    """Frames that are bytes already. `failed` is the last one of a stream that breaks off, `closed` runs at any end."""

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        limit: StreamLimit,
        key: str,
        encode_error: Callable[[Exception], bytes],
        on_close: Callable[[], Awaitable[None]],
        heartbeat: bytes = HEARTBEAT_COMMENT,
    ) -> None:
        """Raises RateLimited before anything is sent."""
        self._closed = on_close
        self._failed = encode_error
        super().__init__(_ended(frames, encode_error), limit, key, heartbeat=heartbeat)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._closed()

    def _last(self) -> bytes:
        return self._failed(ServiceUnavailable(RESEND_MESSAGE))


async def _ended(frames: AsyncIterator[bytes], failed: Callable[[Exception], bytes]) -> AsyncIterator[bytes]:
    try:
        async for frame in frames:
            yield frame
    except StentorError as error:
        yield failed(error)
    except Exception as error:
        log.exception("an event stream failed")
        yield failed(error)


async def _guarded(
    frames: AsyncIterator[SseEvent | bytes],
    closing: asyncio.Event,
    last: Callable[[], SseEvent | bytes],
    common: Mapping[str, Any],
    heartbeat: bytes,
) -> AsyncIterator[bytes]:
    """Fails closed towards the reader: whatever goes wrong, it reads one generic sentence."""
    try:
        async for chunk in _with_heartbeats(frames, closing, last, common, heartbeat):
            yield chunk
    except Exception:
        log.exception("an event stream failed")
        yield encode_event(SseEvent("error", {"error": FAILED_MESSAGE}), common)


async def _with_heartbeats(
    frames: AsyncIterator[SseEvent | bytes],
    closing: asyncio.Event,
    last: Callable[[], SseEvent | bytes],
    common: Mapping[str, Any],
    heartbeat: bytes,
) -> AsyncIterator[bytes]:
    coming = asyncio.ensure_future(anext(frames, None))
    leaving = asyncio.ensure_future(closing.wait())
    try:
        while True:
            done, _ = await asyncio.wait({coming, leaving}, timeout=HEARTBEAT_SECONDS, return_when=FIRST_COMPLETED)
            if leaving in done and coming not in done:
                yield encode_event(last(), common)
                return
            if not done:
                yield heartbeat
                continue
            frame = coming.result()
            if frame is None:
                return
            yield encode_event(frame, common)
            coming = asyncio.ensure_future(anext(frames, None))
    finally:
        coming.cancel()
        leaving.cancel()
