"""One pulse for all that looks again and again, so that an idle process wakes once a second and not once for each."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

_PHASE = random.random()  # noqa: S311 - processes that share a database are not to wake all at the same moment
_SHORTEST = 0.01
"""Shares of a period: a timer that fires a little too early is not to fire twice."""


async def beat(seconds: float = 1.0) -> None:
    """Sleep until the next whole multiple of `seconds`."""
    await asyncio.sleep(_rest(seconds))


async def beat_or(event: asyncio.Event, seconds: float = 1.0) -> None:
    """The same, or until the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_rest(seconds)):
            await event.wait()


def _rest(seconds: float) -> float:
    if not seconds > 0:
        return 0
    rest = seconds - (asyncio.get_running_loop().time() + _PHASE) % seconds
    return rest if rest > _SHORTEST * seconds else rest + seconds
