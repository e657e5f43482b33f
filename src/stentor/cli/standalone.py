"""Runs one surface in a process of its own, until a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stentor.cli.listening import Endpoint, Servers, on_signals, runner


async def _nothing() -> None:
    pass


def run(
    endpoints: Sequence[Endpoint],
    on_ready: Callable[[], None],
    *background: Coroutine[Any, Any, None],
    at_end: Callable[[], Coroutine[Any, Any, None]] = _nothing,
) -> None:
    """`background` runs beside it and is cancelled at the end."""
    try:
        with runner() as loop:
            loop.run(_serve(endpoints, on_ready, background))
            loop.run(at_end())
    finally:
        for endpoint in endpoints:
            endpoint.listener.close()


async def _serve(
    endpoints: Sequence[Endpoint], on_ready: Callable[[], None], background: tuple[Coroutine[Any, Any, None], ...]
) -> None:
    beside = [asyncio.create_task(work) for work in background]
    servers = Servers(endpoints)
    on_signals(servers.leave)
    if await servers.start():
        on_ready()
    await servers.wait()
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
