"""Collects refused sign-ins, so that the run log gets one event a minute, however many attempts a stranger makes.

The first refusal is recorded at once, those that follow at the end of each minute, with their number by address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

INTERVAL_SECONDS = 60.0
MAX_ADDRESSES = 20
"""Addresses that an event names; the refusals of others are counted together under OTHERS."""
OTHERS, UNKNOWN = "others", "an unknown address"
Record = Callable[[Mapping[str, int]], Awaitable[None]]
"""Record refusals by address."""
log = logging.getLogger(__name__)


async def log_only(refusals: Mapping[str, int]) -> None:
    """Write one line a minute to the log: for a dashboard that cannot write to the database."""
    log.warning("sign_in: refused count=%d addresses=%s", sum(refusals.values()), ",".join(refusals))


class RefusedSignIns:
    """Fails open: refusals that cannot be recorded are logged, because nobody came in."""

    def __init__(self, record: Record, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._record = record
        self._sleep = sleep
        self._refusals: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, address: str) -> None:
        """Count one refusal; an empty address is unknown."""
        address = address or UNKNOWN
        name = address if address in self._refusals or len(self._refusals) < MAX_ADDRESSES else OTHERS
        self._refusals[name] = self._refusals.get(name, 0) + 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Record what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._flush()

    async def _run(self) -> None:
        while self._refusals:
            await self._flush()
            await self._sleep(INTERVAL_SECONDS)

    async def _flush(self) -> None:
        refusals, self._refusals = self._refusals, {}
        if not refusals:
            return
        try:
            await self._record(refusals)
        except Exception:
            log.exception("sign_in: refusals not recorded")
            await log_only(refusals)
