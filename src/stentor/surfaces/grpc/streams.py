"""Limits of open streams per caller, and their end when the service stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stentor.core.errors import ServiceUnavailable
from stentor.web.sse import StreamLimit

STOPPING_MESSAGE = "The service is stopping. Call again."


@contextmanager
def open_stream(streams: StreamLimit, owner: str) -> Iterator[None]:
    """Count one open stream of the owner. Raises RateLimited if it has too many, over HTTP and gRPC together."""
    streams.acquire(owner)
    try:
        yield
    finally:
        streams.release(owner)


@contextmanager
def cancel_on_shutdown(closing: asyncio.Event) -> Iterator[None]:
    """Cancel the code in this block when `closing` is set. Raises ServiceUnavailable then."""
    task = asyncio.current_task()
    assert task is not None
    watcher = asyncio.create_task(_cancel_when_set(task, closing))
    try:
        yield
    except asyncio.CancelledError:
        # The client may have cancelled as well, or alone: then the cancellation must continue.
        if not watcher.done() or task.uncancel():
            raise
        raise ServiceUnavailable(STOPPING_MESSAGE) from None
    finally:
        watcher.cancel()


async def _cancel_when_set(task: asyncio.Task[object], closing: asyncio.Event) -> None:
    await closing.wait()
    task.cancel()
