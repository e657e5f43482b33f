"""The ids and lengths of all documents of an FTS5 table, which BM25 compares with their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stentor.core.db import Sql, Tx
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.index.model import MAX_LENGTH_RATIO, SEARCH_FIELDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    # Only needed for a search.
    np = lazy_module("numpy")

K1, B = 1.2, 0.75
"""FTS5's constants of BM25."""
MIN_DELETED = 1_000
"""Positions of deleted documents are kept at least until there are this many of them."""
_READ_LENGTHS = Sql("select id, sz from words_docsize order by id")


class DocumentLengths:
    """The ids of all documents, ascending, and their lengths in terms.

    A deleted document keeps its position, with the length 0, so that the positions in `TermDocuments` stay right.
    """

    def __init__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.ids = ids
        self.lengths = lengths
        self.documents = int(np.count_nonzero(lengths))

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """What BM25 adds to the count of a term in each document."""
        ratios = self.lengths * (self.documents / self.lengths.sum())
        np.minimum(ratios, MAX_LENGTH_RATIO, out=ratios)
        return norms_of(ratios)

    def find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the positions of these ids, and which of them exist; the others have any position."""
        if not len(self.ids):
            return np.zeros(len(ids), np.int32), np.zeros(len(ids), np.bool_)
        positions = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return positions.astype(np.int32), self.ids[positions] == ids

    def find_live(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the same, but deleted documents do not exist: a transaction may see one that is indexed again."""
        positions, exist = self.find(ids)
        return positions, exist & (self.lengths[positions] > 0) if len(self.ids) else exist

    def mark(self, ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether each document is one of these."""
        positions, exist = self.find(np.array(ids, np.int64))
        marked = np.zeros(len(self.ids), np.bool_)
        marked[positions[exist]] = True
        return marked

    def change(self, changes: Mapping[int, int | None]) -> tuple[DocumentLengths, bool]:
        """Return the lengths after these changes (None deletes a document), and whether positions are other ones."""
        ids = np.array(sorted(changes), np.int64)
        new = np.array([changes[doc_id] or 0 for doc_id in ids.tolist()], np.int64)
        positions, exist = self.find(ids)
        lengths = self.lengths.copy()
        lengths[positions[exist]] = new[exist]
        added = ~exist & (new > 0)
        # SQLite gives a new row the next id after the highest one.
        is_moved = bool(added.any() and len(self.ids) and ids[added][0] < self.ids[-1])
        if added.any():
            changed = DocumentLengths(np.append(self.ids, ids[added]), np.append(lengths, new[added]))
        else:
            changed = DocumentLengths(self.ids, lengths)
        deleted = len(changed.ids) - changed.documents
        if not is_moved and deleted <= max(MIN_DELETED, changed.documents):
            return changed, False
        order = np.argsort(changed.ids, kind="stable")
        order = order[changed.lengths[order] > 0]
        return DocumentLengths(changed.ids[order], changed.lengths[order]), True


def load_lengths(tx: Tx) -> DocumentLengths:
    """Read the lengths of all documents."""
    rows = tx.rows(_READ_LENGTHS)
    ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    # One byte for each field, unless a field has more than 127 terms.
    lengths = (sum(size) if len(size) == len(SEARCH_FIELDS) else sum(decode_varints(size)) for _, size in rows)
    return DocumentLengths(ids, np.fromiter(lengths, np.int64, len(rows)))


def decode_varints(data: bytes) -> list[int]:
    """Return SQLite's integers of variable length, which here have less than nine bytes."""
    values, value = [], 0
    for byte in data:
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            values.append(value)
            value = 0
    return values


def norms_of(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what BM25 adds to the count of a term in documents of these lengths, in mean ones; changes the array."""
    # In place: memory for each step would take longer than the step.
    ratios *= K1 * B
    ratios += K1 * (1 - B)
    return ratios
