"""The vectors of all documents: made in the background, held in memory, searched exactly.

Without a model there are none, and nothing is made up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, StoreUnavailable
from stentor.domains.memory.embedding.model import Embedder, EmbeddingUnavailable, Vectors
from stentor.domains.memory.lag import Lag
from stentor.domains.memory.text.chunks import chunks

if TYPE_CHECKING:  # numpy takes 20 MB and 0.1 s, and is loaded with the first document
    from stentor.domains.memory.index.matrix import Matrix, Near
    from stentor.domains.memory.index.vectors import Waiting

BATCH = 8
AGAIN_SECONDS = 30.0
SWEEP_EVERY = 600 * SECOND
"""Vectors that nothing has any more are forgotten so often at most, because all have to be looked at."""
log = logging.getLogger(__name__)


class Meanings:
    def __init__(self, index: Database, embedder: Embedder | None, clock: Clock) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._matrix: Matrix | None = None
        self._wake = asyncio.Event()
        self._loading = asyncio.Lock()
        self._waiting: set[int] = set()
        self._sweep_at = 0
        self.lag = Lag()
        self.problem: str | None = None if embedder else "no embedding model is set up: words only"

    def put(self, doc_ids: Sequence[int]) -> None:
        """These documents are new or different."""
        if self._embedder is not None:
            self._waiting.update(doc_ids)
            self._wake.set()

    def forget(self, doc_ids: Sequence[int]) -> None:
        self._waiting.difference_update(doc_ids)
        if self._matrix is not None:
            for doc_id in doc_ids:
                self._matrix.forget(doc_id)

    @property
    def pending(self) -> int:
        """Documents whose vectors are still to be made."""
        return len(self._waiting)

    def ready_at(self) -> int | None:
        """When all documents will probably have their vectors, in microseconds; None when they have."""
        if not self._waiting:
            return None
        return self._clock.now() + int(max(self.lag.last, 0.05) * len(self._waiting) * SECOND)

    async def run(self) -> None:
        """For ever; a model or a store that does not work is tried again."""
        if self._embedder is None:
            return
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
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

    async def catch_up(self) -> int:
        """Make all vectors that are missing; answers of how many documents."""
        from stentor.domains.memory.index import vectors

        if not await self._index.read(vectors.any_documents):
            return 0  # an empty vault loads no model
        embedder, matrix = await self._ready()
        done = 0
        while batch := await self._index.read(lambda tx: vectors.waiting(tx, BATCH)):
            for document in batch:
                await self._make(embedder, matrix, document)
            done += len(batch)
        self._waiting.clear()
        self.problem = None
        if done and self._clock.now() >= self._sweep_at:
            await self._index.write(lambda tx: vectors.sweep(tx, embedder.identity))
            self._sweep_at = self._clock.now() + SWEEP_EVERY
        return done

    async def nearest(
        self,
        query: str,
        embedding: Sequence[float] | None,
        most: int,
        weight_min: float | None = None,
        after: int | None = None,
        among: Sequence[int] | None = None,
    ) -> tuple[list[Near], int]:
        """The documents nearest in meaning, and how many pass the filters. Raises as `vector` does."""
        vector, matrix = await self.vector(query, embedding)
        return await asyncio.to_thread(matrix.nearest, vector, most, weight_min, after, among)

    async def vector(self, query: str, embedding: Sequence[float] | None) -> tuple[Vectors, Matrix]:
        """The query's vector, or the caller's own, of length 1.

        Raises EmbeddingUnavailable, InvalidRequest for a vector of another size than the model's.
        """
        embedder, matrix = await self._ready()
        if embedding is None:
            return (await embedder.embed([query], urgent=True))[0], matrix
        import numpy as np

        if len(embedding) != matrix.dimensions:
            raise InvalidRequest(
                f"embedding: has {len(embedding)} numbers; the model {embedder.identity} has {matrix.dimensions}."
            )
        given = np.asarray(embedding, np.float32)
        return given / max(float(np.linalg.norm(given)), 1e-12), matrix

    async def _ready(self) -> tuple[Embedder, Matrix]:
        if self._embedder is None:
            raise EmbeddingUnavailable(f"There is no search by meaning: {self.problem}.")
        from stentor.domains.memory.index import vectors

        async with self._loading:
            await self._embedder.load()
            if self._matrix is None:
                identity = self._embedder.identity
                await self._index.write(lambda tx: vectors.outdate(tx, identity))
                self._matrix = await self._index.read(self._load)
        return self._embedder, self._matrix

    def _load(self, tx: Tx) -> Matrix:
        import itertools

        import numpy as np

        from stentor.domains.memory.index import vectors
        from stentor.domains.memory.index.matrix import Matrix

        assert self._embedder is not None
        matrix = Matrix(self._embedder.dimensions)
        for doc_id, rows in itertools.groupby(vectors.ready(tx, self._embedder.identity), key=lambda row: row.doc_id):
            found = list(rows)
            matrix.put(doc_id, np.stack([row.vector for row in found]), found[0].weight, found[0].created_at)
        return matrix

    async def _make(self, embedder: Embedder, matrix: Matrix, document: Waiting) -> None:
        import numpy as np

        from stentor.domains.memory.index import vectors

        limit = embedder.max_tokens
        pieces = await asyncio.to_thread(chunks, document.title, document.body, limit, embedder.count)
        hashes = [piece.hash for piece in pieces]
        known = await self._index.read(lambda tx: vectors.known(tx, embedder.identity, hashes))
        missing = list({piece.hash: piece.text for piece in pieces if piece.hash not in known}.items())
        if missing:
            made = await embedder.embed([text for _, text in missing])
            known |= dict(zip((one for one, _ in missing), made, strict=True))
        found = np.stack([known[one] for one in hashes])
        if await self._index.write(lambda tx: vectors.keep(tx, embedder.identity, document, pieces, found)):
            matrix.put(document.doc_id, found, document.weight, document.created_at)
            self._waiting.discard(document.doc_id)
            self.lag.add(max(0, self._clock.now() - document.modified_at) / SECOND)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.error("no search by meaning: %s", problem)
        self.problem = problem

    async def close(self) -> None:
        if self._embedder is not None:
            await self._embedder.close()
