"""The vectors of all documents, made in the background. Without a model there are none, and nothing is made up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from stentor.core.clock import SECOND, Clock
from stentor.core.errors import InvalidRequest, StoreUnavailable
from stentor.domains.memory.embedding.model import Embedder, EmbeddingUnavailable, Vectors
from stentor.domains.memory.index.index import Index
from stentor.domains.memory.index.model import Model, Waiting
from stentor.domains.memory.lag import Lag
from stentor.domains.memory.text.chunks import chunks

BATCH = 8
LEAST_PACE = 0.05
"""Seconds that a document takes at least, as far as estimates go."""
FIRST_USE_SECONDS = 8.0
"""That a model takes until it makes its first vector: it is loaded when the first note comes, and before its very first
use the packaged one is prepared."""
PACED = 8
"""Documents that the pace is a mean of, more or less."""
AGAIN_SECONDS = 30.0
LOOK_SECONDS = 5.0
SWEEP_EVERY = 600 * SECOND
"""Vectors that nothing has any more are forgotten so often at most, because all have to be looked at."""
log = logging.getLogger(__name__)


class Meanings:
    """`floor` is the similarity from which a document is alike, and not by chance."""

    def __init__(self, index: Index, embedder: Embedder | None, clock: Clock, floor: float = -1.0) -> None:
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
        self._pace = LEAST_PACE
        self._sweep_at = 0
        self.floor = floor
        self.lag = Lag()
        self.problem: str | None = None if embedder else "no embedding model is set up: words only"

    def put(self, since: Mapping[int, int]) -> None:
        """The documents with these ids are new or different since these times."""
        if self._embedder is not None:
            self._waiting.update(since)
            self._wake.set()

    @property
    def pending(self) -> int:
        """Documents that came through this process and whose vectors are still to be made."""
        return len(self._waiting)

    def wanted(self, waiting: int) -> int:
        """How many of the documents without vectors are to get some: all, or none without a model."""
        return waiting if self._embedder is not None else 0

    def ready_at(self) -> int | None:
        """When all documents will probably have their vectors, in microseconds; None when they have."""
        if not self._waiting:
            return None
        seconds = max(self._pace, LEAST_PACE) * len(self._waiting)
        return self._clock.now() + int((seconds + (0 if self._adopted else FIRST_USE_SECONDS)) * SECOND)

    def behind(self, waiting: int) -> float:
        """How long the document that waits longest has been waiting, in seconds, of all that wait in the index."""
        if not self.wanted(waiting):
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
                await self.catch_up()
            except (EmbeddingUnavailable, StoreUnavailable) as error:
                self._tell(error.message)
                await asyncio.sleep(AGAIN_SECONDS)
                self._wake.set()
            except Exception:
                # Fails open: words are found without vectors, and the health route tells.
                self._tell("the vectors could not be made")
                log.exception("the vectors could not be made")
                await asyncio.sleep(AGAIN_SECONDS)
                self._wake.set()

    async def _until_due(self) -> None:
        """Documents that other processes leave behind are looked for now and then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS if self._index.shared else None):
                await self._wake.wait()
        self._wake.clear()

    async def catch_up(self) -> int:
        """Make all vectors that are missing; answers of how many documents."""
        asked_at = self._clock.now()
        if await self._index.empty():
            self._idle_at = asked_at
            return 0  # an empty vault loads no model
        embedder = await self._ready()
        done = 0
        while batch := await self._index.vectors.waiting(BATCH):
            for document in batch:
                await self._timed(embedder, document)
            done += len(batch)
            asked_at = self._clock.now()
        self._waiting.clear()
        self._idle_at = asked_at
        self.problem = None
        if done and self._clock.now() >= self._sweep_at:
            await self._index.vectors.sweep()
            self._sweep_at = self._clock.now() + SWEEP_EVERY
        return done

    async def vector(self, query: str, embedding: Sequence[float] | None) -> Vectors:
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
                await self._index.vectors.adopt(Model(self._embedder.identity, self._embedder.dimensions))
                self._adopted = True
        return self._embedder

    async def _timed(self, embedder: Embedder, document: Waiting) -> None:
        started = time.perf_counter()
        await self._make(embedder, document)
        self._pace += (time.perf_counter() - started - self._pace) / PACED

    async def _make(self, embedder: Embedder, document: Waiting) -> None:
        import numpy as np

        limit = embedder.max_tokens
        pieces = await asyncio.to_thread(chunks, document.title, document.body, limit, embedder.count)
        hashes = [piece.hash for piece in pieces]
        known = dict(await self._index.vectors.known(hashes))
        missing = list({piece.hash: piece.text for piece in pieces if piece.hash not in known}.items())
        if missing:
            made = await embedder.embed([text for _, text in missing])
            known |= dict(zip((one for one, _ in missing), made, strict=True))
        if await self._index.vectors.keep(document, pieces, np.stack([known[one] for one in hashes])):
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
