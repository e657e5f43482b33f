"""Cancel the work of a request when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request

from stentor.core import timers

T = TypeVar("T")
GRACE_SECONDS = 0.25
"""Seconds before the connection is watched, so that short work costs no task."""


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it and raise HTTPException if the client disconnects first."""
    watcher = _DisconnectWatcher(request)
    try:
        return await work
    except asyncio.CancelledError:
        # A cancellation from elsewhere, such as a shutdown, must propagate.
        if not watcher.caused_cancellation():
            raise
        raise HTTPException(400, "The client disconnected.") from None
    finally:
        watcher.stop()


class _DisconnectWatcher:
    """Cancels the current task when the client disconnects.

    The work runs in the request's own task, and the watching task starts only after GRACE_SECONDS: most requests are
    complete by then and cost only a timer.
    """

    def __init__(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._worker, self._disconnected = task, False
        self._watcher: asyncio.Task[None] | None = None
        self._request = request
        self._timers = timers.coarse_timers(task.get_loop())
        self._timers.schedule(self, GRACE_SECONDS, self._start)

    def _start(self) -> None:
        self._watcher = self._timers.loop.create_task(self._wait_for_disconnect(self._request))

    async def _wait_for_disconnect(self, request: Request) -> None:
        # The body was read before: only the end of the connection is still to come.
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._disconnected = True
        self._worker.cancel()

    def caused_cancellation(self) -> bool:
        """Return whether only this watcher cancelled the task; if so, undo the cancellation."""
        # If above 0, other code cancelled too, and that cancellation must not be swallowed.
        return self._disconnected and self._worker.uncancel() == 0

    def stop(self) -> None:
        self._timers.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
