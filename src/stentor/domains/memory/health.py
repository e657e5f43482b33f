"""The state of the memory's parts: asked live, with how far each is behind. Source: core contract, "Memory bus"."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from stentor.core.clock import format_iso_or_none
from stentor.domains.memory.cache import Cache
from stentor.domains.memory.index.index import Index
from stentor.domains.memory.index.model import Totals
from stentor.domains.memory.indexer import Indexer
from stentor.domains.memory.lag import Lag
from stentor.domains.memory.meanings import Meanings
from stentor.domains.notes.model import Vault

Status = Literal["healthy", "degraded", "unhealthy"]
CHECK_SECONDS = 2.0


class Part(msgspec.Struct, frozen=True):
    status: Status
    latency_ms: float
    sync_lag_ms: float
    detail: str


class MemoryHealth:
    def __init__(self, vault: Vault, index: Index, indexer: Indexer, meanings: Meanings, cache: Cache) -> None:
        self._vault = vault
        self._index = index
        self._indexer = indexer
        self._meanings = meanings
        self._cache = cache

    async def report(self) -> dict[str, Any]:
        """The answer of the route. Fails closed: a part that does not answer in time is unhealthy."""
        vault, vectors = await asyncio.gather(
            _timed(self._vault.check, self._indexer.lag), _timed(self._touch_index, self._meanings.lag)
        )
        if vectors.status == "healthy" and (problem := self._meanings.problem):
            vectors = msgspec.structs.replace(vectors, status="degraded", detail=problem)
        totals = None if vectors.status == "unhealthy" else await self._index.totals()
        if totals is not None:
            behind = round(self._meanings.behind(totals.waiting) * 1000, 3)
            vectors = msgspec.structs.replace(vectors, sync_lag_ms=max(vectors.sync_lag_ms, behind))
        if totals is not None and vectors.status == "healthy":
            vectors = msgspec.structs.replace(vectors, detail=self._told(totals))
        return {
            "status": _worst(vault.status, vectors.status),
            "components": {"obsidian": msgspec.to_builtins(vault), "vector_store": msgspec.to_builtins(vectors)},
            "stats": self._stats(totals),
        }

    def _told(self, totals: Totals) -> str:
        if waiting := self._meanings.wanted(totals.waiting):
            return f"{waiting} documents wait for their vectors"
        return f"answers; {self._index.note}" if self._index.note else "answers"

    async def _touch_index(self) -> None:
        await self._index.totals()

    def _stats(self, totals: Totals | None) -> dict[str, Any]:
        if totals is None:
            return _UNKNOWN
        return {
            "total_documents": totals.documents,
            "total_size_mb": round(totals.size / 1_000_000, 6),
            "cache_hit_ratio": round(self._cache.hit_ratio, 4),
            "last_sync": format_iso_or_none(totals.synced_at),
        }


_UNKNOWN = {"total_documents": None, "total_size_mb": None, "cache_hit_ratio": None, "last_sync": None}


async def _timed(check: Callable[[], Awaitable[None]], lag: Lag) -> Part:
    started = time.perf_counter()
    status: Status = "healthy"
    detail = "answers"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except TimeoutError:
        status, detail = "unhealthy", f"no answer within {CHECK_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, the part does not work
        status, detail = "unhealthy", f"does not work ({type(error).__name__})"
    return Part(status, round((time.perf_counter() - started) * 1000, 3), round(lag.p95 * 1000, 3), detail)


def _worst(vault: Status, vectors: Status) -> Status:
    """Without the vault there is no memory; without vectors there are still words."""
    if vault == "unhealthy":
        return "unhealthy"
    return "healthy" if vectors == "healthy" else "degraded"
