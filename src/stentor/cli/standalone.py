"""Runs one surface in a process of its own, until a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stentor.cli.listening import Endpoint, Servers, on_signals, runner

Work = Callable[[], Coroutine[Any, Any, None]]


def run(
    endpoints: Sequence[Endpoint],
    on_ready: Callable[[], None],
    background: Sequence[Work] = (),
    at_end: Sequence[Work] = (),
) -> None:
    """`background` runs beside it and is cancelled at the end."""
    with runner() as loop:
        loop.run(_serve(endpoints, on_ready, background, at_end))


async def _serve(
    endpoints: Sequence[Endpoint], on_ready: Callable[[], None], background: Sequence[Work], at_end: Sequence[Work]
) -> None:
    beside = [asyncio.create_task(work()) for work in background]
    servers = Servers(endpoints)
    on_signals(servers.leave)
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
