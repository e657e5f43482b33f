"""Health report and metrics of the memory: live checks of the vault and the index, and their sync lag.

Source: core contract, "Memory bus".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

import msgspec
from prometheus_client.core import Metric

from stentor.core.clock import SECOND, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.db.locks.leader import LeaderElection
from stentor.core.jsontext import JsonObject
from stentor.core.metrics import gauge_family
from stentor.domains.memory import store
from stentor.domains.memory.caches import DocumentCache
from stentor.domains.memory.embedding.embedding_worker import PREPARING, EmbeddingWorker
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.memory.index.lag import SyncLag
from stentor.domains.memory.index.model import IndexTotals
from stentor_vault.notes.model import Vault

HealthStatus = Literal["healthy", "degraded", "unhealthy"]
CHECK_SECONDS = 2.0
_UNKNOWN_STATS = {"total_documents": None, "total_size_mb": None, "cache_hit_ratio": None, "last_sync": None}


class ComponentHealth(msgspec.Struct, frozen=True):
    """The result of one check."""

    status: HealthStatus
    latency_ms: float
    sync_lag_ms: float
    detail: str


class MemoryHealth:
    """Checks the parts of one vault's memory."""

    def __init__(
        self,
        vault: Vault,
        index: SearchIndex,
        indexer: Indexer,
        embedding_worker: EmbeddingWorker,
        cache: DocumentCache,
    ) -> None:
        self._vault = vault
        self._index = index
        self._indexer = indexer
        self._embedding_worker = embedding_worker
        self._cache = cache

    async def report(self) -> JsonObject:
        """Return the body of the health route. Fails closed: a part that does not respond in time is unhealthy."""
        totals: IndexTotals | None = None

        async def read_index() -> None:
            nonlocal totals
            totals = await self._index.totals()

        vault, vectors = await asyncio.gather(
            _check(self._vault.check, self._indexer.lag), _check(read_index, self._embedding_worker.lag)
        )
        if vectors.status == "healthy" and (problem := self._embedding_worker.problem):
            vectors = msgspec.structs.replace(vectors, status="degraded", detail=problem)
        if totals is not None:
            # Past lags say nothing about documents that are still pending, so the oldest of them counts too.
            wait_ms = round(self._embedding_worker.oldest_wait_seconds(totals.without_vectors) * 1000, 3)
            vectors = msgspec.structs.replace(vectors, sync_lag_ms=max(vectors.sync_lag_ms, wait_ms))
        if totals is not None and vectors.status == "healthy":
            is_complete = await self._index.was_reconciled()
            vectors = msgspec.structs.replace(vectors, detail=self._detail(totals, is_complete=is_complete))
        return {
            "status": _overall_status(vault.status, vectors.status),
            "components": {"obsidian": msgspec.to_builtins(vault), "vector_store": msgspec.to_builtins(vectors)},
            "stats": self._stats(totals),
        }

    def _detail(self, totals: IndexTotals, *, is_complete: bool) -> str:
        if self._embedding_worker.is_preparing:
            return PREPARING
        if not is_complete:
            return f"the search index is being built, {totals.documents} documents so far"
        if pending := self._embedding_worker.count_to_embed(totals.without_vectors):
            return f"{pending} documents are not embedded yet"
        return f"responds; {self._index.warning}" if self._index.warning else "responds"

    def _stats(self, totals: IndexTotals | None) -> JsonObject:
        if totals is None:
            return _UNKNOWN_STATS
        return {
            "total_documents": totals.documents,
            "total_size_mb": round(totals.size / 1_000_000, 6),
            "cache_hit_ratio": round(self._cache.hit_ratio, 4),
            "last_sync": format_iso_or_none(totals.synced_at),
        }


def collect_write_metrics(tx: Tx) -> Iterable[Metric]:
    """Return the metrics of pending writes, from the service's database."""
    count, oldest_at = store.count_open_intents(tx)
    age = 0.0 if oldest_at is None else max(0, tx.now - oldest_at) / SECOND
    yield gauge_family(
        "stentor_memory_writes_open", "Recorded writes that are not known to be in the vault yet.", count
    )
    yield gauge_family("stentor_memory_write_oldest_seconds", "Age of the oldest of these writes.", age)


async def collect_index_metrics(
    index: SearchIndex, indexer: Indexer, embedding_worker: EmbeddingWorker, leader: LeaderElection
) -> list[Metric]:
    """Return the metrics of the index and of the parts that keep it up to date."""
    totals = await index.totals()
    pending = embedding_worker.count_to_embed(totals.without_vectors)
    return [
        *indexer.lag.histogram.collect(),
        *embedding_worker.lag.histogram.collect(),
        gauge_family("stentor_memory_vectors_waiting", "Documents that are not embedded yet.", pending),
        gauge_family("stentor_memory_leads", "Whether this process watches the vault.", int(leader.was_leader)),
        gauge_family("stentor_memory_index_documents", "Documents in the index.", totals.documents),
        gauge_family("stentor_memory_index_text_bytes", "Size of these documents.", totals.size),
    ]


async def _check(check: Callable[[], Awaitable[None]], lag: SyncLag) -> ComponentHealth:
    started = time.perf_counter()
    status: HealthStatus = "healthy"
    detail = "responds"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except TimeoutError:
        status, detail = "unhealthy", f"no response within {CHECK_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - whatever the error, the part does not work
        status, detail = "unhealthy", f"check failed ({type(error).__name__})"
    return ComponentHealth(status, round((time.perf_counter() - started) * 1000, 3), round(lag.p95 * 1000, 3), detail)


def _overall_status(vault: HealthStatus, vectors: HealthStatus) -> HealthStatus:
    """Combine the statuses: without the vault there is no memory; without vectors keyword search still works."""
    if vault == "unhealthy":
        return "unhealthy"
    return "healthy" if vectors == "healthy" else "degraded"
