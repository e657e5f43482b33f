"""Waiting for what must come about: long, since a test that passes never waits it out and a machine may be busy."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Told = str | Callable[[], object]
"""What a test that waited in vain says: words, or what there is then."""

PATIENCE_SECONDS = 600.0
STEP_SECONDS = 0.01
VAIN = "it did not come about"


def until(found: Callable[[], T], told: Told = VAIN, *, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true answer of `found`."""
    ends = time.monotonic() + seconds
    while not (answer := found()):
        _in_time(ends, told)
        time.sleep(STEP_SECONDS)
    return answer


async def soon(found: Callable[[], Any], told: Told = VAIN, *, seconds: float = PATIENCE_SECONDS) -> Any:
    """The same on an event loop; `found` may be a coroutine function."""
    ends = time.monotonic() + seconds
    while not (answer := await _settled(found())):
        _in_time(ends, told)
        await asyncio.sleep(STEP_SECONDS)
    return answer


async def _settled(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _in_time(ends: float, told: Told) -> None:
    assert time.monotonic() < ends, told if isinstance(told, str) else told()
