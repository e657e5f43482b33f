"""The background worker that embeds new and changed documents, and the embedding of queries.

Chunks come from `text.markdown`, embeddings from an `Embedder`, and both are stored by the index's vector store.
Without an embedding model the worker does nothing, and semantic search fails with EmbeddingUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from stentor.core.clock import SECOND, Clock
from stentor.core.errors import InvalidRequest, StoreUnavailable
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.embedding.embedder import INTERRUPTED, Embedder, EmbeddingUnavailable, Vectors
from stentor.domains.memory.embedding.noise import NoiseLevel
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.lag import SyncLag
from stentor.domains.memory.index.model import EmbeddingModel, PendingDocument
from stentor_vault.text.markdown import Chunk, split_chunks

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")

BATCH = 8
MIN_SECONDS_PER_DOCUMENT = 0.05
"""Lower bound of the time per document in estimates."""
MODEL_LOAD_SECONDS = 8.0
"""Estimated time until a model returns its first vector: it is loaded when the first document is embedded, and the
packaged model is exported before its very first use."""
PREPARING = "The embedding model is being prepared for its first use, which may take a minute."
PREPARATION_SECONDS = 30.0
"""How long a query waits until the model is prepared. On an idle machine that takes four seconds."""
PACE_WINDOW = 8
"""Documents over which the moving average of the time per document runs."""
RETRY_SECONDS = 30.0
POLL_SECONDS = 5.0
SWEEP_INTERVAL_US = 600 * SECOND
"""Minimum time between deletions of unused vectors, each of which scans all vectors."""
log = logging.getLogger(__name__)


class EmbeddingWorker:
    """Embeds the pending documents of one index.

    From `min_similarity` (-1 to 1) on, a document matches without a word in common. With `has_noise_level`,
    `noise_level` tells how near made-up words are to a query.
    """

    def __init__(
        self,
        index: SearchIndex,
        embedder: Embedder | None,
        clock: Clock,
        min_similarity: float = -1.0,
        *,
        has_noise_level: bool = False,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._wake = asyncio.Event()
        self._load_lock = asyncio.Lock()
        self._is_loaded = False
        self._preparation: asyncio.Task[None] | None = None
        self.is_preparing = False
        """Whether the model is being prepared for its first use."""
        self._pending_since: dict[int, int] = {}
        """Document ids to the time of the change that made each pending, in microseconds."""
        self._idle_at = clock.now()
        """When this process last knew of no pending document."""
        self._seconds_per_document = MIN_SECONDS_PER_DOCUMENT
        # Not at once: an index that is being rebuilt has vectors of notes that are not in it yet.
        self._sweep_at = clock.monotonic() + SWEEP_INTERVAL_US
        self.min_similarity = min_similarity
        self._has_noise_level = has_noise_level
        self._noise: NoiseLevel | None = None
        self.lag = SyncLag("stentor_memory_vector_lag_seconds", "semantic")
        self.problem: str | None = None if embedder else "no embedding model is set up: keyword search only"

    def enqueue(self, since: Mapping[int, int]) -> None:
        """Wake the worker for new or changed documents, given as ids and the times of their changes."""
        if self._embedder is not None:
            self._pending_since.update(since)
            self._wake.set()

    def count_to_embed(self, without_vectors: int) -> int:
        """Return how many of the documents without vectors will be embedded: all, or none without a model."""
        return without_vectors if self._embedder is not None else 0

    def estimate_ready_at(self) -> int | None:
        """Estimate when all documents are embedded, in microseconds; None if they already are."""
        if not self._pending_since:
            return None
        seconds = max(self._seconds_per_document, MIN_SECONDS_PER_DOCUMENT) * len(self._pending_since)
        return self._clock.now() + int((seconds + (0 if self._is_loaded else MODEL_LOAD_SECONDS)) * SECOND)

    def oldest_wait_seconds(self, without_vectors: int) -> float:
        """Return the age of the oldest pending document, given how many documents of the index have no vectors."""
        if not self.count_to_embed(without_vectors):
            return 0.0
        return max(0, self._clock.now() - min(self._pending_since.values(), default=self._idle_at)) / SECOND

    async def run(self) -> None:
        """Embed pending documents until cancelled; retry when the model or the index fails."""
        if self._embedder is None:
            return
        self._wake.set()
        while True:
            await self._wait_for_work()
            try:
                await self.embed_pending()
            except (EmbeddingUnavailable, StoreUnavailable) as error:
                self._report_problem(error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
            except Exception:
                # Fails open: keyword search works without vectors, and the health route reports the problem.
                self.problem = "documents could not be embedded"
                log.exception("embedding: batch failed")
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _wait_for_work(self) -> None:
        """Wait for `enqueue`; in a shared index poll as well, because other processes may leave documents pending."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS if self._index.is_shared else None):
                await self._wake.wait()
        self._wake.clear()

    async def embed_pending(self) -> int:
        """Embed all pending documents; return how many."""
        checked_at = self._clock.now()
        if await self._index.is_empty():
            self._idle_at = checked_at
            return 0  # an empty vault must not load the model
        embedder = await self._load_embedder()
        done = 0
        while batch := await self._index.vectors.next_pending(BATCH):
            await self._embed_timed(embedder, batch)
            done += len(batch)
            checked_at = self._clock.now()
        # Entries that are left belong to deleted documents or were embedded by another process.
        self._pending_since.clear()
        self._idle_at = checked_at
        self.problem = None
        if done and self._clock.monotonic() >= self._sweep_at:
            await self._index.vectors.delete_orphans()
            self._sweep_at = self._clock.monotonic() + SWEEP_INTERVAL_US
        return done

    async def query_vector(self, query: str, embedding: Sequence[float] | None) -> Vectors:
        """Return the query's embedding, or the caller's own scaled to length 1.

        Raises EmbeddingUnavailable, also if the model is not prepared for its first use within PREPARATION_SECONDS; and
        InvalidRequest for an embedding without direction or of the wrong size.
        """
        if not self._is_loaded:
            await self._wait_until_prepared()
        embedder = await self._load_embedder()
        if embedding is None:
            vectors = await embedder.embed([query], urgent=True)
            return cast("Vectors", vectors[0])
        if len(embedding) != embedder.dimensions:
            raise InvalidRequest(
                f"embedding: has {len(embedding)} numbers; the model {embedder.identity} has {embedder.dimensions}."
            )
        return _normalize(embedding)

    def noise_level(self, vector: Vectors) -> float:
        """Return the similarity up to which a note is no nearer to this query than made-up words; -1 if unknown."""
        return -1.0 if self._noise is None else self._noise.of(vector)

    async def _wait_until_prepared(self) -> None:
        """Wait until the model is prepared. Raises EmbeddingUnavailable if that takes too long; it then continues."""
        if self._embedder is None or (not self.is_preparing and await self._embedder.is_prepared()):
            return
        if self._preparation is None or self._preparation.done():
            self._preparation = asyncio.create_task(self._prepare())
        await asyncio.wait([self._preparation], timeout=PREPARATION_SECONDS)
        if not self._is_loaded:
            raise EmbeddingUnavailable(self.problem or PREPARING)

    async def _prepare(self) -> None:
        try:
            await self._load_embedder()
        except (EmbeddingUnavailable, StoreUnavailable) as error:
            self._report_problem(error)
        else:
            self.problem = None

    async def _load_embedder(self) -> Embedder:
        if self._embedder is None:
            raise EmbeddingUnavailable(f"Semantic search is unavailable: {self.problem}.")
        # The worker and several queries may need the model at the same time; it is loaded once.
        async with self._load_lock:
            if not self._is_loaded:
                self.is_preparing = not await self._embedder.is_prepared()
                try:
                    await self._embedder.load()
                finally:
                    self.is_preparing = False
                # Under the same lock: until the index has switched, vectors of two models could be compared.
                await self._index.vectors.use_model(EmbeddingModel(self._embedder.identity, self._embedder.dimensions))
                if self._has_noise_level:
                    self._noise = await NoiseLevel.measure(self._embedder)
                self._is_loaded = True
        return self._embedder

    async def _embed_timed(self, embedder: Embedder, batch: Sequence[PendingDocument]) -> None:
        started = time.perf_counter()
        await self._embed(embedder, batch)
        seconds = (time.perf_counter() - started) / len(batch)
        self._seconds_per_document += (seconds - self._seconds_per_document) * min(1.0, len(batch) / PACE_WINDOW)

    async def _embed(self, embedder: Embedder, batch: Sequence[PendingDocument]) -> None:
        """Embed documents together, so that a model computes their texts side by side, or in one request."""
        chunks_of = await asyncio.to_thread(_split_all, embedder, batch)
        # By hash, so that a text that occurs twice is embedded once.
        texts = {chunk.hash: chunk.text for chunks in chunks_of for chunk in chunks}
        # A moved or slightly changed note has most of its chunks already.
        vectors = dict(await self._index.vectors.find_by_hash(list(texts)))
        missing = [text_hash for text_hash in texts if text_hash not in vectors]
        if missing:
            embeddings = await embedder.embed([texts[text_hash] for text_hash in missing])
            vectors |= dict(zip(missing, embeddings, strict=True))
        # At the same time, so that they share a commit.
        await asyncio.gather(
            *(
                self._save(document, chunks, np.stack([vectors[chunk.hash] for chunk in chunks]))
                for document, chunks in zip(batch, chunks_of, strict=True)
            )
        )

    async def _save(self, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> None:
        if await self._index.vectors.save(document, chunks, vectors):
            # Without an entry the document was left by another process or by an earlier run of this one; it cannot have
            # been pending when this process last found nothing to do.
            since = self._pending_since.pop(document.doc_id, max(document.modified_at, self._idle_at))
            self.lag.add(max(0, self._clock.now() - since) / SECOND)

    def _report_problem(self, error: EmbeddingUnavailable | StoreUnavailable) -> None:
        """Log a problem once until it changes, although each retry fails with it."""
        # An interrupted preparation is no error: the service is about to stop, or prepares the model again.
        level = logging.INFO if error.message == INTERRUPTED else logging.ERROR
        if error.message != self.problem:
            log.log(level, "embedding: unavailable reason=%s", error.message)
        self.problem = error.message

    async def close(self) -> None:
        if self._preparation is not None:
            self._preparation.cancel()
        if self._embedder is not None:
            await self._embedder.close()


def _split_all(embedder: Embedder, batch: Sequence[PendingDocument]) -> list[list[Chunk]]:
    return [split_chunks(one.title, one.body, embedder.max_tokens, embedder.count) for one in batch]


def _normalize(embedding: Sequence[float]) -> Vectors:
    """Scale an embedding to length 1. Raises InvalidRequest."""
    given = np.asarray(embedding, np.float64)
    largest = np.abs(given).max()
    if not (np.isfinite(largest) and largest > 0):
        raise InvalidRequest("embedding: has no direction; its numbers are all 0, or not finite.")
    # Divides by the largest number first: the squares of very large or very small numbers would be infinite or 0.
    given /= largest
    unit: Vectors = (given / np.linalg.norm(given)).astype(np.float32)
    return unit
