"""The state of the memory's parts: asked live, with how far each is behind. Source: core contract, "Memory bus".

What metrics tell of the memory: its index, how far it is behind, and writes that are not carried out yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

import msgspec
from prometheus_client.core import Metric

from stentor.core.clock import SECOND, format_iso_or_none
from stentor.core.db import Sql, Tx
from stentor.core.db.leader import LeaderElection
from stentor.core.metrics import gauge_family, histogram_family
from stentor.domains.memory.caches import DocumentCache
from stentor.domains.memory.embedding_worker import EmbeddingWorker
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.indexer import Indexer, SyncLag
from stentor.domains.memory.index.model import IndexTotals
from stentor.domains.notes.model import Vault

HealthStatus = Literal["healthy", "degraded", "unhealthy"]
CHECK_SECONDS = 2.0


class ComponentHealth(msgspec.Struct, frozen=True):
    status: HealthStatus
    latency_ms: float
    sync_lag_ms: float
    detail: str


class MemoryHealth:
    def __init__(
        self, vault: Vault, index: SearchIndex, indexer: Indexer, meanings: EmbeddingWorker, cache: DocumentCache
    ) -> None:
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
            behind = round(self._meanings.oldest_wait_seconds(totals.without_vectors) * 1000, 3)
            vectors = msgspec.structs.replace(vectors, sync_lag_ms=max(vectors.sync_lag_ms, behind))
        if totals is not None and vectors.status == "healthy":
            vectors = msgspec.structs.replace(vectors, detail=self._told(totals))
        return {
            "status": _worst(vault.status, vectors.status),
            "components": {"obsidian": msgspec.to_builtins(vault), "vector_store": msgspec.to_builtins(vectors)},
            "stats": self._stats(totals),
        }

    def _told(self, totals: IndexTotals) -> str:
        if waiting := self._meanings.count_to_embed(totals.without_vectors):
            return f"{waiting} documents wait for their vectors"
        return f"answers; {self._index.warning}" if self._index.warning else "answers"

    async def _touch_index(self) -> None:
        await self._index.totals()

    def _stats(self, totals: IndexTotals | None) -> dict[str, Any]:
        if totals is None:
            return _UNKNOWN
        return {
            "total_documents": totals.documents,
            "total_size_mb": round(totals.size / 1_000_000, 6),
            "cache_hit_ratio": round(self._cache.hit_ratio, 4),
            "last_sync": format_iso_or_none(totals.synced_at),
        }


_UNKNOWN = {"total_documents": None, "total_size_mb": None, "cache_hit_ratio": None, "last_sync": None}


async def _timed(check: Callable[[], Awaitable[None]], lag: SyncLag) -> ComponentHealth:
    started = time.perf_counter()
    status: HealthStatus = "healthy"
    detail = "answers"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except TimeoutError:
        status, detail = "unhealthy", f"no answer within {CHECK_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, the part does not work
        status, detail = "unhealthy", f"does not work ({type(error).__name__})"
    return ComponentHealth(status, round((time.perf_counter() - started) * 1000, 3), round(lag.p95 * 1000, 3), detail)


def _worst(vault: HealthStatus, vectors: HealthStatus) -> HealthStatus:
    """Without the vault there is no memory; without vectors there are still words."""
    if vault == "unhealthy":
        return "unhealthy"
    return "healthy" if vectors == "healthy" else "degraded"


_OPEN_INTENTS = Sql("select count(*), min(created_at) from memory_intents")


def collect_write_metrics(tx: Tx) -> Iterable[Metric]:
    """From the service's database."""
    number, since = tx.rows(_OPEN_INTENTS)[0]
    age = 0.0 if since is None else max(0, tx.now - int(since)) / SECOND
    yield gauge_family(
        "stentor_memory_writes_open", "Writes that are recorded but not known to be in the vault yet.", int(number)
    )
    yield gauge_family("stentor_memory_write_oldest_seconds", "Age of the oldest of them.", age)


async def collect_index_metrics(
    found: SearchIndex, indexer: Indexer, meanings: EmbeddingWorker, leader: LeaderElection
) -> list[Metric]:
    """From the index and the parts that keep it."""
    totals = await found.totals()
    waiting = meanings.count_to_embed(totals.without_vectors)
    text = "Time from a change in the vault to its being found"
    return [
        histogram_family("stentor_memory_sync_lag_seconds", f"{text} by words.", indexer.lag.histogram),
        histogram_family("stentor_memory_vector_lag_seconds", f"{text} by meaning.", meanings.lag.histogram),
        gauge_family("stentor_memory_vectors_waiting", "Documents that wait for their vectors.", waiting),
        gauge_family("stentor_memory_leads", "Whether this process follows the vault.", int(leader.was_leader)),
        gauge_family("stentor_memory_index_documents", "Documents in the index.", totals.documents),
        gauge_family("stentor_memory_index_text_bytes", "Size of these documents.", totals.size),
    ]
