"""Runs one surface in a process of its own, until a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stentor.cli.edge.connections import limits
from stentor.cli.listening import Endpoint, Servers, on_signals, runner
from stentor.core.settings.listeners import ConnectionSettings

Work = Callable[[], Coroutine[Any, Any, None]]


def run(
    settings: ConnectionSettings,
    endpoints: Sequence[Endpoint],
    on_ready: Callable[[], None],
    background: Sequence[Work] = (),
    at_end: Sequence[Work] = (),
    leave: Callable[[], None] = lambda: None,
) -> None:
    """`background` runs beside it and is cancelled at the end; `leave` is called when the signal comes."""
    with runner() as loop:
        loop.run(_serve(Servers(endpoints, limits(settings)), on_ready, background, at_end, leave))


async def _serve(
    servers: Servers,
    on_ready: Callable[[], None],
    background: Sequence[Work],
    at_end: Sequence[Work],
    leave: Callable[[], None],
) -> None:
    beside = [asyncio.create_task(work()) for work in background]

    def end() -> None:
        leave()
        servers.leave()

    on_signals(end)
    try:
        if await servers.start():
            on_ready()
        await servers.wait()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for work in at_end:
            await work()
