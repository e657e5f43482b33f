"""What changes in a folder, as the system tells it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import watchfiles

STEP = 40
"""Milliseconds between two looks at what the system told: each one wakes the processor, however quiet the folder is."""
TOGETHER = 100
"""Milliseconds that changes which go on and on are gathered at most."""


async def changes(root: Path, *, poll: bool = False) -> AsyncIterator[set[str]]:
    """The paths that changed, gathered until nothing comes for a step; `poll` looks at the files themselves.

    Raises OSError, RuntimeError when the folder is not there, or cannot be followed.
    """
    told = watchfiles.awatch(root, watch_filter=None, step=STEP, debounce=TOGETHER, force_polling=poll or None)
    async for found in told:
        yield {path for _, path in found}
