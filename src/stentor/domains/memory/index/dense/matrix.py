"""All vectors in memory, searched exactly: one product, filters before the best are taken."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stentor.domains.memory.index.model import Near

GONE = -1
_FIRST = 1024


class Matrix:
    """A row for each chunk. `weight` and `created_at` are its document's; a document without weight has NaN."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._lock = threading.Lock()
        self._rows: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._used = 0
        self._vectors = np.zeros((_FIRST, dimensions), np.float32)
        self._doc = np.full(_FIRST, GONE, np.int64)
        self._ordinal = np.zeros(_FIRST, np.int32)
        self._weight = np.full(_FIRST, np.nan, np.float64)
        self._created = np.zeros(_FIRST, np.int64)

    def __len__(self) -> int:
        """Documents in it."""
        return len(self._rows)

    def put(self, doc_id: int, vectors: NDArray[np.float32], weight: float | None, created_at: int) -> None:
        """The vectors of a document's chunks, in order; replaces those that it had."""
        with self._lock:
            self._put(doc_id, vectors, weight, created_at)

    def forget(self, doc_id: int) -> None:
        with self._lock:
            self._forget(doc_id)

    def _put(self, doc_id: int, vectors: NDArray[np.float32], weight: float | None, created_at: int) -> None:
        self._forget(doc_id)
        rows = [self._row() for _ in range(len(vectors))]
        self._rows[doc_id] = rows
        self._vectors[rows] = vectors
        self._doc[rows] = doc_id
        self._ordinal[rows] = np.arange(len(rows))
        self._weight[rows] = np.nan if weight is None else weight
        self._created[rows] = created_at

    def _forget(self, doc_id: int) -> None:
        rows = self._rows.pop(doc_id, [])
        self._doc[rows] = GONE
        self._free.extend(rows)

    def nearest(
        self,
        query: NDArray[np.float32],
        most: int,
        weight_min: float | None = None,
        created_after: int | None = None,
        among: Sequence[int] | None = None,
    ) -> tuple[list[Near], int]:
        """The nearest documents (`among` those of these ids), best first, and how many pass the filters."""
        with self._lock:
            rows = self._passing(weight_min, created_after)
            return self._nearest(query, most, rows if among is None else rows[np.isin(self._doc[rows], among)])

    def _nearest(self, query: NDArray[np.float32], most: int, rows: NDArray[np.int64]) -> tuple[list[Near], int]:
        if not len(rows):
            return [], 0
        documents = self._doc[rows]
        scores = self._vectors[: self._used] @ query
        order = np.argsort(-scores[rows], kind="stable")
        ids, first = np.unique(documents[order], return_index=True)
        best = np.sort(first)[:most]
        chosen = rows[order[best]]
        found = [Near(int(self._doc[r]), float(scores[r]), int(self._ordinal[r])) for r in chosen]
        return found, len(ids)

    def similarities(self, query: NDArray[np.float32], doc_ids: Iterable[int]) -> dict[int, float]:
        """How like the query the nearest chunk of each of these documents is, of those that are known."""
        with self._lock:
            known = {doc_id: self._rows[doc_id] for doc_id in doc_ids if doc_id in self._rows}
            return {doc_id: float((self._vectors[rows] @ query).max()) for doc_id, rows in known.items()}

    def _passing(self, weight_min: float | None, created_after: int | None) -> NDArray[np.int64]:
        passes = self._doc[: self._used] != GONE
        if weight_min is not None:
            passes &= self._weight[: self._used] >= weight_min
        if created_after is not None:
            passes &= self._created[: self._used] > created_after
        return np.flatnonzero(passes)

    def _row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._doc):
            self._grow()
        self._used += 1
        return self._used - 1

    def _grow(self) -> None:
        size = len(self._doc)
        self._vectors = np.concatenate([self._vectors, np.zeros((size, self.dimensions), np.float32)])
        self._doc = np.concatenate([self._doc, np.full(size, GONE, np.int64)])
        self._ordinal = np.concatenate([self._ordinal, np.zeros(size, np.int32)])
        self._weight = np.concatenate([self._weight, np.full(size, np.nan)])
        self._created = np.concatenate([self._created, np.zeros(size, np.int64)])
