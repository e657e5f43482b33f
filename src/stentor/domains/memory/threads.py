"""Work on texts that may be long, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread_if_long(
    length: int, max_inline: int, work: Callable[P, T], *args: P.args, **options: P.kwargs
) -> T:
    """Call a function: in a thread if its texts are longer than `max_inline`, up to which the switch takes longer."""
    return work(*args, **options) if length <= max_inline else await asyncio.to_thread(work, *args, **options)
