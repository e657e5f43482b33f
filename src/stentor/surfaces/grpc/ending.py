"""Streams: how many a caller may have open, and how they end when the service leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stentor.core.errors import ServiceUnavailable
from stentor.web.sse import StreamLimit

LEAVING = "The service is stopping. Call again."


@contextmanager
def held(streams: StreamLimit, holder: str) -> Iterator[None]:
    """One open stream of the holder's. Raises RateLimited when it has too many, over HTTP and gRPC together."""
    streams.acquire(holder)
    try:
        yield
    finally:
        streams.release(holder)


@contextmanager
def ended_by(closing: asyncio.Event) -> Iterator[None]:
    """The work of this block is cancelled when the service leaves. Raises ServiceUnavailable then."""
    worker = asyncio.current_task()
    assert worker is not None
    watch = asyncio.create_task(_end(worker, closing))
    try:
        yield
    except asyncio.CancelledError:
        # Not when somebody else cancelled it besides: the client has left.
        if not watch.done() or worker.uncancel():
            raise
        raise ServiceUnavailable(LEAVING) from None
    finally:
        watch.cancel()


async def _end(worker: asyncio.Task[object], closing: asyncio.Event) -> None:
    await closing.wait()
    worker.cancel()
