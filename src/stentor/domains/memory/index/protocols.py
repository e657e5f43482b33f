"""What the search index stands on: words and vectors. One conformance suite runs against every implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from stentor.core.db import Tx
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index.model import (
    EmbeddingModel,
    Folders,
    IndexEntry,
    KeywordHit,
    KeywordQuery,
    PendingDocument,
    SearchFilters,
    VectorHit,
)
from stentor.domains.memory.text.markdown import Chunk

T = TypeVar("T")


class IndexDatabase(Protocol):
    """Transactions over the index's tables. Both raise StoreUnavailable."""

    async def read(self, fn: Callable[[Tx], T]) -> T: ...

    async def write(self, fn: Callable[[Tx], T]) -> T: ...

    def close(self) -> None: ...


class KeywordStore(Protocol):
    """Search by word, in the transactions of the documents that the words are of."""

    def insert(self, tx: Tx, doc_id: int, entry: IndexEntry) -> None:
        """Of a document that has none."""
        ...

    def delete(self, tx: Tx, doc_id: int) -> None: ...

    def search(
        self, tx: Tx, query: KeywordQuery, limit: int, folder: Folders | None, *, with_total: bool
    ) -> tuple[list[KeywordHit], int]:
        """The best by BM25, of the whole vault or of some folders, and how many there are in all, if that is asked for.

        How rare a word is, and how long documents are, is taken of the whole vault.
        """
        ...


class VectorStore(Protocol):
    """Vectors of the chunks of documents, all of one model and of length 1."""

    async def use_model(self, model: EmbeddingModel) -> None:
        """From now on vectors are this model's; documents with those of another one wait for new ones."""
        ...

    async def next_pending(self, most: int) -> list[PendingDocument]:
        """Documents without vectors, for the caller to make, the shortest first: a long one holds up no other.

        Raises EmbeddingUnavailable when the model is another.
        """
        ...

    async def find_by_hash(self, hashes: Sequence[str]) -> Mapping[str, Vectors]:
        """The vectors of those texts that are known already, by hash."""
        ...

    async def save(self, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        """The vectors of a document, a row for each chunk; False, and nothing kept, when it changed meanwhile."""
        ...

    async def nearest(self, vector: Vectors, most: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        """The nearest of the documents that pass the filters, best first, and how many pass."""
        ...

    async def similarities(self, vector: Vectors, doc_ids: Iterable[int]) -> dict[int, float]:
        """How like the query the nearest chunk of each of these documents is, of those that have vectors."""
        ...

    async def delete_orphans(self) -> None:
        """Forget vectors that nothing has any more. Looks at all."""
        ...

    def delete(self, tx: Tx, doc_id: int) -> None:
        """In the transaction that removes a document."""
        ...

    def on_deleted(self, doc_ids: Iterable[int]) -> None:
        """After that transaction."""
        ...
