"""The vectors of all documents, made in the background. Without a model there are none, and nothing is made up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from stentor.core.clock import SECOND, Clock
from stentor.core.errors import InvalidRequest, StoreUnavailable
from stentor.domains.memory.embedding.embedder import Embedder, EmbeddingUnavailable, Vectors
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.indexer import SyncLag
from stentor.domains.memory.index.model import EmbeddingModel, PendingDocument
from stentor.domains.memory.text.markdown import split_chunks

BATCH = 8
MIN_SECONDS_PER_DOCUMENT = 0.05
"""Seconds that a document takes at least, as far as estimates go."""
MODEL_LOAD_SECONDS = 8.0
"""That a model takes until it makes its first vector: it is loaded when the first note comes, and before its very first
use the packaged one is prepared."""
PACE_WINDOW = 8
"""Documents that the pace is a mean of, more or less."""
RETRY_SECONDS = 30.0
POLL_SECONDS = 5.0
SWEEP_INTERVAL_US = 600 * SECOND
"""Vectors that nothing has any more are forgotten so often at most, because all have to be looked at."""
log = logging.getLogger(__name__)


class EmbeddingWorker:
    """`floor` is the similarity from which a document is alike, and not by chance."""

    def __init__(
        self, index: SearchIndex, embedder: Embedder | None, clock: Clock, min_similarity: float = -1.0
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._wake = asyncio.Event()
        self._loading = asyncio.Lock()
        self._adopted = False
        self._waiting: dict[int, int] = {}
        """Ids, and since when each document is as it is, in microseconds."""
        self._idle_at = clock.now()
        """When nothing waited, as far as this process knows."""
        self._pace = MIN_SECONDS_PER_DOCUMENT
        self._sweep_at = 0
        self.min_similarity = min_similarity
        self.lag = SyncLag()
        self.problem: str | None = None if embedder else "no embedding model is set up: words only"

    def enqueue(self, since: Mapping[int, int]) -> None:
        """The documents with these ids are new or different since these times."""
        if self._embedder is not None:
            self._waiting.update(since)
            self._wake.set()

    @property
    def pending_count(self) -> int:
        """Documents that came through this process and whose vectors are still to be made."""
        return len(self._waiting)

    def count_to_embed(self, waiting: int) -> int:
        """How many of the documents without vectors are to get some: all, or none without a model."""
        return waiting if self._embedder is not None else 0

    def estimate_ready_at(self) -> int | None:
        """When all documents will probably have their vectors, in microseconds; None when they have."""
        if not self._waiting:
            return None
        seconds = max(self._pace, MIN_SECONDS_PER_DOCUMENT) * len(self._waiting)
        return self._clock.now() + int((seconds + (0 if self._adopted else MODEL_LOAD_SECONDS)) * SECOND)

    def oldest_wait_seconds(self, waiting: int) -> float:
        """How long the document that waits longest has been waiting, in seconds, of all that wait in the index."""
        if not self.count_to_embed(waiting):
            return 0.0
        return max(0, self._clock.now() - min(self._waiting.values(), default=self._idle_at)) / SECOND

    async def run(self) -> None:
        """For ever; a model or a store that does not work is tried again."""
        if self._embedder is None:
            return
        self._wake.set()
        while True:
            await self._until_due()
            try:
                await self.embed_pending()
            except (EmbeddingUnavailable, StoreUnavailable) as error:
                self._tell(error.message)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
            except Exception:
                # Fails open: words are found without vectors, and the health route tells.
                self._tell("the vectors could not be made")
                log.exception("the vectors could not be made")
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _until_due(self) -> None:
        """Documents that other processes leave behind are looked for now and then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS if self._index.is_shared else None):
                await self._wake.wait()
        self._wake.clear()

    async def embed_pending(self) -> int:
        """Make all vectors that are missing; answers of how many documents."""
        asked_at = self._clock.now()
        if await self._index.is_empty():
            self._idle_at = asked_at
            return 0  # an empty vault loads no model
        embedder = await self._ready()
        done = 0
        while batch := await self._index.vectors.next_pending(BATCH):
            for document in batch:
                await self._timed(embedder, document)
            done += len(batch)
            asked_at = self._clock.now()
        self._waiting.clear()
        self._idle_at = asked_at
        self.problem = None
        if done and self._clock.now() >= self._sweep_at:
            await self._index.vectors.delete_orphans()
            self._sweep_at = self._clock.now() + SWEEP_INTERVAL_US
        return done

    async def query_vector(self, query: str, embedding: Sequence[float] | None) -> Vectors:
        """The query's vector, or the caller's own, of length 1.

        Raises EmbeddingUnavailable, InvalidRequest for a vector of another size than the model's or without direction.
        """
        unit: Vectors
        embedder = await self._ready()
        if embedding is None:
            (unit,) = await embedder.embed([query], urgent=True)
            return unit
        if len(embedding) != embedder.dimensions:
            raise InvalidRequest(
                f"embedding: has {len(embedding)} numbers; the model {embedder.identity} has {embedder.dimensions}."
            )
        return _unit(embedding)

    async def _ready(self) -> Embedder:
        if self._embedder is None:
            raise EmbeddingUnavailable(f"There is no search by meaning: {self.problem}.")
        async with self._loading:
            if not self._adopted:
                await self._embedder.load()
                await self._index.vectors.use_model(EmbeddingModel(self._embedder.identity, self._embedder.dimensions))
                self._adopted = True
        return self._embedder

    async def _timed(self, embedder: Embedder, document: PendingDocument) -> None:
        started = time.perf_counter()
        await self._make(embedder, document)
        self._pace += (time.perf_counter() - started - self._pace) / PACE_WINDOW

    async def _make(self, embedder: Embedder, document: PendingDocument) -> None:
        import numpy as np

        limit = embedder.max_tokens
        pieces = await asyncio.to_thread(split_chunks, document.title, document.body, limit, embedder.count)
        hashes = [piece.hash for piece in pieces]
        known = dict(await self._index.vectors.find_by_hash(hashes))
        missing = list({piece.hash: piece.text for piece in pieces if piece.hash not in known}.items())
        if missing:
            made = await embedder.embed([text for _, text in missing])
            known |= dict(zip((one for one, _ in missing), made, strict=True))
        if await self._index.vectors.save(document, pieces, np.stack([known[one] for one in hashes])):
            # One that another process found, or that waited at the start, waits since the last look at the earliest.
            since = self._waiting.pop(document.doc_id, max(document.modified_at, self._idle_at))
            self.lag.add(max(0, self._clock.now() - since) / SECOND)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.error("no search by meaning: %s", problem)
        self.problem = problem

    async def close(self) -> None:
        if self._embedder is not None:
            await self._embedder.close()


def _unit(embedding: Sequence[float]) -> Vectors:
    """A vector of length 1 in this direction. Raises InvalidRequest."""
    import numpy as np

    given = np.asarray(embedding, np.float64)
    longest = np.abs(given).max()
    if not (np.isfinite(longest) and longest > 0):
        raise InvalidRequest("embedding: has no direction; its numbers are all 0, or not finite.")
    given /= longest  # or the squares of very large and very small numbers are infinite, or 0
    unit: Vectors = (given / np.linalg.norm(given)).astype(np.float32)
    return unit
