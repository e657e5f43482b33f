"""Gives work up when the caller that waits for it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request

from stentor.core import timers

T = TypeVar("T")
GRACE_SECONDS = 0.02
"""Seconds that nobody leaves for."""


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result; when the caller leaves first, `work` is cancelled and nobody reads the answer."""
    watch = _Watch(request)
    try:
        return await work
    except asyncio.CancelledError:
        if not watch.ended_it():
            raise
        raise HTTPException(400, "The caller left.") from None
    finally:
        watch.stop()


class _Watch:
    """Cancels the task that made it when the caller leaves. One task for that, and none for the work, is cheaper;
    and none at all for work that is done at once.
    """

    def __init__(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._worker, self._left = task, False
        self._watcher: asyncio.Task[None] | None = None
        self._request = request
        self._deadlines = timers.coarse_timers(task.get_loop())
        self._deadlines.schedule(self, GRACE_SECONDS, self._begin)

    def _begin(self) -> None:
        self._watcher = self._deadlines.loop.create_task(self._look(self._request))

    async def _look(self, request: Request) -> None:
        """Waits for the end of the connection; the body has been read."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._worker.cancel()

    def ended_it(self) -> bool:
        """Whether the cancellation was the watch's own, and nobody else's besides; it is taken back then."""
        return self._left and self._worker.uncancel() == 0

    def stop(self) -> None:
        self._deadlines.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
