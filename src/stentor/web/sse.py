"""Server-sent events: encoding, heartbeats, a limit of open streams per key, and generic error events."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stentor.core import jsontext, timers
from stentor.core.errors import RateLimited, ServiceUnavailable, StentorError, Unauthorized
from stentor.core.jsontext import JsonObject

HEARTBEAT_SECONDS = 15.0
READ_AHEAD = 64
"""Events that are read for a client before it takes them."""
HEARTBEAT_COMMENT = b": heartbeat\n\n"
"""A heartbeat as a comment, which event parsers ignore."""
FAILED_MESSAGE = "The stream ended because of an internal error. The task itself continues; request its state."
STOPPING_MESSAGE = "The service is stopping. Reconnect with Last-Event-ID to continue."
RESEND_MESSAGE = "The service is stopping. Send the request again."
"""For streams that cannot be resumed."""
ENDED_MESSAGE = "The stream has ended because its key or session ended or changed."
CALLER_CHECK = "is_caller_unchanged"
"""The name in a request's state of a function without arguments that is awaited before events and heartbeats are sent,
and before each look of a long poll. It returns whether the key or session of the request still gives what it gave at
the beginning.
"""
NO_DATA: Mapping[str, Any] = {}
log = logging.getLogger(__name__)


class SseEvent(msgspec.Struct, frozen=True):
    """One event. Clients send `id` back as Last-Event-ID to resume."""

    event: str
    data: JsonObject
    id: str | None = None


def encode_event(frame: SseEvent | bytes, common: Mapping[str, Any] = NO_DATA) -> bytes:
    """Return the bytes of an event; its own data overrides the `common` data of its stream. Bytes stay as they are."""
    if isinstance(frame, bytes):
        return frame
    head = f"id: {frame.id}\n" if frame.id else ""
    return f"{head}event: {frame.event}\ndata: ".encode() + jsontext.encode_line({**common, **frame.data}) + b"\n\n"


class StreamLimit:
    """Limits the open streams per key, counted in this process. Streams end when `closing` is set."""

    def __init__(self, max_streams: int, closing: asyncio.Event | None = None) -> None:
        self.closing = closing or asyncio.Event()
        self._max_streams = max_streams
        self._open: dict[str, int] = {}

    def check(self, key: str) -> None:
        """Raise RateLimited if the key has too many streams open. Call it before starting the work for a stream."""
        if self._open.get(key, 0) >= self._max_streams:
            raise RateLimited(f"This key has {self._max_streams} event streams open, the maximum. Close one first.")

    def acquire(self, key: str) -> None:
        """Take a slot. Raises RateLimited if the key has too many streams open."""
        self.check(key)
        self._open[key] = self._open.get(key, 0) + 1

    def release(self, key: str) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]


class EventStreamResponse(StreamingResponse):
    """A streaming response over `frames`. A client that disconnects ends the iterator, not the work behind it.

    `common` is data in every event, including the error event.
    """

    def __init__(
        self,
        frames: AsyncIterator[SseEvent | bytes],
        limit: StreamLimit,
        key: str,
        common: Mapping[str, Any] = NO_DATA,
    ) -> None:
        """Raises RateLimited before anything is sent."""

        def encode_failure(error: Exception) -> bytes:
            # Generic: the details are only in the log.
            log.error("sse: stream failed", exc_info=error)
            return encode_event(SseEvent("error", {"error": FAILED_MESSAGE}), common)

        self._encode_ended = partial(encode_event, SseEvent("error", {"error": ENDED_MESSAGE}), common)
        encode_stopping = partial(encode_event, SseEvent("error", {"error": STOPPING_MESSAGE}), common)
        self._open(frames, limit, key, encode_stopping, encode_failure, common, HEARTBEAT_COMMENT)

    def _open(
        self,
        frames: AsyncIterator[SseEvent | bytes],
        limit: StreamLimit,
        key: str,
        encode_stopping: Callable[[], bytes],
        encode_failure: Callable[[Exception], bytes],
        common: Mapping[str, Any],
        heartbeat: bytes,
    ) -> None:
        """Take the slot and set up the stream.

        `encode_stopping` gives its last event when the service stops, `encode_failure` the one after an error.
        """
        limit.acquire(key)
        # A finalizer: it releases the slot once, even if the response is dropped without ever being sent. So nothing
        # below may refer to `self`: a cycle would delay it until the next garbage collection.
        self._release_slot = weakref.finalize(self, limit.release, key)
        # The second tells nginx to pass events on as they come.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        content = _encode_frames(frames, limit.closing, encode_stopping, encode_failure, common, heartbeat)
        super().__init__(content, media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (check := scope.get("state", {}).get(CALLER_CHECK)) is not None:
            self.body_iterator = _while_unchanged(self.body_iterator, check, self._encode_ended)
        # Not in the generator: one that was never started runs no cleanup.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release_slot()


class RawStreamResponse(EventStreamResponse):
    """A stream of encoded frames. `encode_error` gives the last frame after a failure; `on_close` runs at every end."""

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

        def encode_failure(error: Exception) -> bytes:
            if not isinstance(error, StentorError):
                log.error("sse: stream failed", exc_info=error)
            return encode_error(error)

        self._on_close = on_close
        self._encode_ended = partial(encode_error, Unauthorized(ENDED_MESSAGE))
        encode_stopping = partial(encode_error, ServiceUnavailable(RESEND_MESSAGE))
        self._open(frames, limit, key, encode_stopping, encode_failure, NO_DATA, heartbeat)

    @classmethod
    async def open(
        cls,
        frames: AsyncIterator[bytes],
        limit: StreamLimit,
        key: str,
        encode_error: Callable[[Exception], bytes],
        on_close: Callable[[], Awaitable[None]],
        heartbeat: bytes = HEARTBEAT_COMMENT,
    ) -> Self:
        """Return the response. If that fails, run `on_close` and raise the error, such as RateLimited."""
        try:
            return cls(frames, limit, key, encode_error, on_close, heartbeat)
        except BaseException:
            # No response, so nothing else would end the work behind it.
            await on_close()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._on_close()


async def _while_unchanged(
    chunks: AsyncIterable[Any], check: Callable[[], Awaitable[bool]], encode_ended: Callable[[], bytes]
) -> AsyncIterator[Any]:
    async for chunk in chunks:
        if not await check():
            yield encode_ended()
            return
        yield chunk


class _FrameReader:
    """Reads frames in a task of its own, at most READ_AHEAD more than were taken.

    One task for the whole stream, because one for each frame would take longer than most frames.
    """

    def __init__(self, frames: AsyncIterator[SseEvent | bytes], closing: asyncio.Event) -> None:
        self._frames, self._closing = frames, closing
        self._loop = asyncio.get_running_loop()
        self._timers = timers.coarse_timers(self._loop)
        self._ready: list[SseEvent | bytes] = []
        self._error: BaseException | None = None
        self._ended = False
        self._taker: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._reading = self._loop.create_task(self._read())
        self._shutdown = self._loop.create_task(closing.wait())
        self._shutdown.add_done_callback(self._wake)

    async def take(self) -> list[SseEvent | bytes] | None:
        """Return the frames that have been read, or None at the end; raise the error with which they ended.

        Without frames wait for one, at most HEARTBEAT_SECONDS and until the service stops; then the list is empty.
        """
        if not self._ready and not self._ended:
            if self._closing.is_set():
                await asyncio.sleep(0)  # a frame that is there already goes first
            else:
                await self._wait()
        if not self._ready and self._ended:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None
        ready, self._ready = self._ready, []
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return ready

    def close(self) -> None:
        """End the reading."""
        self._reading.cancel()
        self._shutdown.cancel()

    async def _wait(self) -> None:
        self._taker = self._loop.create_future()
        self._timers.schedule(self, HEARTBEAT_SECONDS, self._wake)
        try:
            await self._taker
        finally:
            self._timers.cancel(self)

    def _wake(self, _: object = None) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    async def _read(self) -> None:
        try:
            async for frame in self._frames:
                self._ready.append(frame)
                self._wake()
                if len(self._ready) >= READ_AHEAD:
                    self._room = self._loop.create_future()
                    await self._room
        except asyncio.CancelledError:
            # A new one: the traceback of this one refers to this call, and so to the reader, which would be a cycle.
            self._error = asyncio.CancelledError()
            raise
        except Exception as error:  # noqa: BLE001 - `take` raises it; here it would be logged if the client is gone
            self._error = error
        finally:
            self._ended = True
            self._wake()


async def _encode_frames(
    frames: AsyncIterator[SseEvent | bytes],
    closing: asyncio.Event,
    encode_stopping: Callable[[], bytes],
    encode_failure: Callable[[Exception], bytes],
    common: Mapping[str, Any],
    heartbeat: bytes,
) -> AsyncIterator[bytes]:
    """Yield the frames, heartbeats between them, and one last event if the service stops or the frames fail.

    Frames that were read while the client was slow are one chunk.
    """
    reader = _FrameReader(frames, closing)
    try:
        while (ready := await reader.take()) is not None:
            if ready:
                yield b"".join([encode_event(frame, common) for frame in ready])
            elif closing.is_set():
                yield encode_stopping()
                return
            else:
                yield heartbeat
    except Exception as error:  # noqa: BLE001 - `encode_failure` logs it
        yield encode_failure(error)
    finally:
        reader.close()
