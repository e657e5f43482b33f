"""The interfaces that a search index is built from: its database, its keyword store and its vector store.

Also the port of long operations over all notes of a vault, and what their steps return.

Implementations: `sqlite/` for one process, `postgres/` for several. The conformance suite in
tests/conformance runs against all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from stentor.core.db import Tx
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index.model import (
    EmbeddingModel,
    Folders,
    IndexEntry,
    KeywordHit,
    KeywordQuery,
    ListExcluded,
    PendingDocument,
    SearchFilters,
    VectorHit,
)
from stentor_vault.text.markdown import Chunk

T = TypeVar("T")
DifferenceProblem = Literal["missing", "stale", "gone", "invalid_name", "not_utf8", "too_large", "unwritten", "altered"]


class IndexDatabase(Protocol):
    """Transactions over the index's tables. `read` and `write` raise StoreUnavailable."""

    async def read(self, fn: Callable[[Tx], T]) -> T: ...

    async def write(self, fn: Callable[[Tx], T]) -> T: ...

    def close(self) -> None: ...


class KeywordStore(Protocol):
    """Keyword search. Terms change in the same transaction as the document that they belong to."""

    def insert(self, tx: Tx, doc_id: int, entry: IndexEntry) -> None:
        """Add the terms of a document that has none."""
        ...

    def delete(self, tx: Tx, doc_id: int) -> None: ...

    def search(
        self,
        tx: Tx,
        query: KeywordQuery,
        limit: int,
        folder: Folders | None,
        list_excluded: ListExcluded,
        *,
        with_total: bool,
    ) -> tuple[list[KeywordHit], int]:
        """Return the best hits by BM25 without the excluded documents, and the total number of matches.

        The total is 0 without `with_total`. The transaction must not have read anything before; the excluded documents
        are listed in it. Term rarity and document length are those of the whole vault, whichever folders
        are searched.
        """
        ...


class VectorStore(Protocol):
    """The vectors of document chunks, all of one model and of length 1."""

    async def use_model(self, model: EmbeddingModel) -> None:
        """Switch to this model; documents with vectors of another model become pending."""
        ...

    async def next_pending(self, limit: int) -> list[PendingDocument]:
        """Return documents to embed, shortest first, so that a long one does not delay the others.

        Raises EmbeddingUnavailable if another process switched to another model.
        """
        ...

    async def find_by_hash(self, hashes: Sequence[str]) -> Mapping[str, Vectors]:
        """Return the stored vectors of these chunk texts, by hash; texts without one are left out."""
        ...

    async def save(self, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        """Store the vectors of a document, one row per chunk; return False and store nothing if it has changed."""
        ...

    async def nearest(self, vector: Vectors, limit: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        """Return the nearest documents that pass the filters, best first, and how many pass.

        With a `similarity_min` and more than `limit` documents the number may be any above `limit`: it is not worth
        comparing all documents.
        """
        ...

    async def similarities(self, vector: Vectors, doc_ids: Iterable[int]) -> dict[int, float]:
        """Return the similarity of each document's nearest chunk; documents without vectors are left out."""
        ...

    async def delete_orphans(self) -> None:
        """Delete the vectors that no chunk uses any more. Scans all vectors."""
        ...

    def delete(self, tx: Tx, doc_id: int) -> None:
        """Delete a document's vectors, in the transaction that deletes the document."""
        ...

    def withdraw(self, tx: Tx, doc_id: int) -> None:
        """Delete the vectors of a document that stays, until it is embedded again; `on_deleted` follows too."""
        ...

    def on_deleted(self, doc_ids: Iterable[int]) -> None:
        """Update the state in memory, after that transaction committed."""
        ...


class IndexDifference(msgspec.Struct, frozen=True):
    """A difference between the vault and the index, or between a task and its note.

    A note is "missing" or "stale" in the index or "gone" from the vault; "invalid_name", "not_utf8" and "too_large"
    are why the index cannot have it. A task's note is "unwritten" or "altered".
    """

    path: str
    problem: DifferenceProblem


class MaintenanceStep(msgspec.Struct, frozen=True):
    """One step of a long operation over all notes; `next` is the path to continue after, None at the end.

    `what` says what `done` counts: notes of the vault as the index has them, or notes of tasks.
    """

    done: int
    total: int
    next: str | None
    differences: list[IndexDifference] = []
    what: Literal["notes", "tasks"] = "notes"


class IndexMaintenance(Protocol):
    """Long operations over the whole vault, in steps; `after` is the `next` of the previous step, empty at first."""

    async def reindex(self, after: str, limit: int) -> MaintenanceStep: ...

    async def verify(self, after: str, limit: int) -> MaintenanceStep: ...
