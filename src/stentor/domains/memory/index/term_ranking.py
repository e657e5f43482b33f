"""BM25 of terms and phrases over an FTS5 table, computed with NumPy from FTS5's own lists of documents.

Returns the documents of FTS5's function `bm25`, with its scores but for very long ones (`MAX_LENGTH_RATIO`). FTS5 calls
it for each matching row, about 1 µs for each of them and each term: 0.1 s for ten common words in 100,000 documents.
Reading the documents of a term as one text takes a seventh of that, and they are kept until the index changes. A phrase
is searched for by itself, because few documents have it: FTS5's score tells how often each does.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.index.model import (
    FIELD_WEIGHTS,
    MAX_LENGTH_RATIO,
    SEARCH_FIELDS,
    Folders,
    KeywordQuery,
    ListExcluded,
    SearchField,
    folder_list,
    phrase_parts,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    # Only needed for a search.
    np = lazy_module("numpy")

K1, B = 1.2, 0.75
"""FTS5's constants of BM25."""
MIN_RARITY = 1e-6
"""FTS5's rarity of a term that more than half of the documents have."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
"""Memory for the documents of terms and phrases that were searched for."""
MAX_KEPT_PARTS = 2_000
"""How many terms and parts of phrases are kept: those that no document has take memory too."""

_FIELD_NUMBER = " ".join(f"when '{field}' then {number}" for number, field in enumerate(SEARCH_FIELDS))
# A list of numbers as one text is read in a tenth of the time of as many rows, and FTS5 gives the name of a field
# slowly: asked for once, in one sum with the document, it takes half as long as a list for each field.
_READ_TERM = Sql(
    f"""select group_concat(doc * {len(SEARCH_FIELDS)} + case col {_FIELD_NUMBER} end)
    from terms where term = :term"""  # noqa: S608 - constant names of fields
)
_RANK = f"bm25({', '.join(str(FIELD_WEIGHTS[field]) for field in SEARCH_FIELDS)})"
_FIND_PHRASE = Sql(f"select rowid, rank from words where words match :phrase and rank match '{_RANK}'")  # noqa: S608
_READ_LENGTHS = Sql("select id, sz from words_docsize order by id")
_IDS_IN_FOLDERS = Sql("select doc_id from documents where folder in (select value from json_each(:folders))")


class TermDocuments(msgspec.Struct, frozen=True):
    """The documents with a term or phrase, and how often each has it, by field weight.

    `positions` are those in `DocumentLengths`.
    """

    positions: NDArray[np.int32]
    counts: NDArray[np.float32]

    @property
    def bytes(self) -> int:
        return self.positions.nbytes + self.counts.nbytes


class DocumentLengths(msgspec.Struct, frozen=True):
    """The ids of all documents, ascending, and their lengths in terms."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def norms(self, max_ratio: float = math.inf) -> NDArray[np.float64]:
        """Return what BM25 adds to the count of a term in each document, for lengths of at most so many mean ones."""
        ratios: NDArray[np.float64] = self.lengths / self.lengths.mean()
        return K1 * (1 - B + B * np.minimum(ratios, max_ratio))

    def find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the positions of these ids, and which of them exist; the others have any position."""
        if not len(self.ids):
            return np.zeros(len(ids), np.int32), np.zeros(len(ids), np.bool_)
        positions = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return positions.astype(np.int32), self.ids[positions] == ids

    def mark(self, ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether each document is one of these."""
        positions, exist = self.find(np.array(ids, np.int64))
        marked = np.zeros(len(self.ids), np.bool_)
        marked[positions[exist]] = True
        return marked

    def change(self, changes: Mapping[int, int | None]) -> DocumentLengths:
        """Return the lengths after these changes; None deletes a document."""
        gone = np.fromiter(changes, np.int64, len(changes))
        kept = ~np.isin(self.ids, gone)
        added = {doc_id: length for doc_id, length in changes.items() if length is not None}
        ids = np.concatenate([self.ids[kept], np.fromiter(added, np.int64, len(added))])
        lengths = np.concatenate([self.lengths[kept], np.fromiter(added.values(), np.int64, len(added))])
        order = np.argsort(ids, kind="stable")
        return DocumentLengths(ids[order], lengths[order])


class TermRanking:
    """Ranks documents by terms and phrases. Thread-safe: searches run in several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._lengths: DocumentLengths | None = None
        self._changes: dict[int, int | None] | None = None
        """Lengths of documents that changed since `_lengths` began to be read; None before that."""
        self._kept: OrderedDict[tuple[tuple[str, ...], frozenset[SearchField]], TermDocuments] = OrderedDict()
        """What this version was searched for, the latest last."""
        self._kept_bytes = 0

    def change(self, doc_id: int, length: int | None) -> None:
        """Note that a document was indexed, with its length in terms, or deleted (None). To be called after the commit.

        All terms are read again: which of them the document had before is not known.
        """
        with self._lock:
            self._version += 1
            self._kept.clear()
            self._kept_bytes = 0
            if self._changes is not None:
                self._changes[doc_id] = length

    def rank(
        self, tx: Tx, query: KeywordQuery, limit: int, folder: Folders | None, list_excluded: ListExcluded
    ) -> tuple[dict[int, float], int]:
        """Return the scores of the best documents (in these folders, not excluded) by id, and how many match.

        The transaction must not have read anything before.
        """
        version, lengths = self._read_lengths(tx)
        if not len(lengths.ids):
            return {}, 0
        norms = lengths.norms(MAX_LENGTH_RATIO)
        scores = np.zeros(len(lengths.ids))
        matches = np.zeros(len(lengths.ids), np.int32)
        for phrase in query.phrases:
            found = _intersect(
                [self._find_part(tx, part, query.fields, version, lengths) for part in phrase_parts(phrase)]
            )
            counts = found.counts.astype(np.float64)
            part = counts * (K1 + 1) / (counts + norms[found.positions])
            scores[found.positions] += _rarity(len(scores), len(found.positions)) * part
            matches[found.positions] += 1
        matching = matches >= (len(query.phrases) if query.mode == "all" else 1)
        if folder is not None:
            matching &= _is_in_folders(tx, lengths, folder)
        if excluded := list_excluded(tx):
            matching &= ~lengths.mark(excluded)
        return _best(lengths.ids, scores, np.flatnonzero(matching), limit)

    def _read_lengths(self, tx: Tx) -> tuple[int, DocumentLengths]:
        """Return the lengths with all changes so far, and the version that this transaction sees at least."""
        with self._lock:
            # Before the first read: what this transaction does not see yet must not be kept for those that do.
            version = self._version
        if self._lengths is None:
            with self._lock:
                # A change that is committed while the lengths are read may be in them or not; it is applied to them.
                self._changes = {} if self._changes is None else self._changes
            lengths = _load_lengths(tx)
            with self._lock:
                self._lengths = lengths if self._lengths is None else self._lengths
        with self._lock:
            if self._changes:
                self._lengths = self._lengths.change(self._changes)
                self._changes.clear()
            return version, self._lengths

    def _find_part(
        self, tx: Tx, part: tuple[str, ...], fields: frozenset[SearchField], version: int, lengths: DocumentLengths
    ) -> TermDocuments:
        key = (part, fields)
        with self._lock:
            if version == self._version and (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
        load = _load_term if len(part) == 1 else _load_phrase
        found = load(tx, part, fields, lengths)
        with self._lock:
            if version == self._version and key not in self._kept:
                self._kept[key] = found
                self._kept_bytes += found.bytes
                while self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) > MAX_KEPT_PARTS:
                    self._kept_bytes -= self._kept.popitem(last=False)[1].bytes
        return found


def _load_lengths(tx: Tx) -> DocumentLengths:
    rows = tx.rows(_READ_LENGTHS)
    ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    # One byte for each field, unless a field has more than 127 terms.
    lengths = (sum(size) if len(size) == len(SEARCH_FIELDS) else sum(_decode_varints(size)) for _, size in rows)
    return DocumentLengths(ids, np.fromiter(lengths, np.int64, len(rows)))


def _decode_varints(data: bytes) -> list[int]:
    """Return SQLite's integers of variable length, which here have less than nine bytes."""
    values, value = [], 0
    for byte in data:
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            values.append(value)
            value = 0
    return values


def _load_term(
    tx: Tx, term: tuple[str, ...], fields: frozenset[SearchField], lengths: DocumentLengths
) -> TermDocuments:
    ((text,),) = tx.rows(_READ_TERM, term=term[0])
    # A document is listed once for each time that one of its fields has the term.
    listed = np.fromstring(text or "", np.int64, sep=",")
    starts = np.flatnonzero(np.diff(listed, prepend=-1))
    ids, numbers = np.divmod(listed[starts], len(SEARCH_FIELDS))
    weights = np.array([FIELD_WEIGHTS[field] if field in fields else 0 for field in SEARCH_FIELDS])
    weighted = weights[numbers] * np.diff(starts, append=len(listed))
    positions, exist = lengths.find(ids)
    # A document that was committed a moment ago may have no length yet.
    counts = np.bincount(positions[exist], weighted[exist], len(lengths.ids)).astype(np.float32)
    positions = np.flatnonzero(counts)
    return TermDocuments(positions.astype(np.int32), counts[positions])


def _load_phrase(
    tx: Tx, phrase: tuple[str, ...], fields: frozenset[SearchField], lengths: DocumentLengths
) -> TermDocuments:
    # Terms are letters and digits, so quoting them suffices.
    columns = "" if fields == set(SEARCH_FIELDS) else "{" + " ".join(sorted(fields)) + "} : "
    adjacent = " + ".join(f'"{term}"' for term in phrase)
    rows = tx.rows(_FIND_PHRASE, phrase=f"{columns}({adjacent})")
    positions, exist = lengths.find(np.array([row[0] for row in rows], np.int64))
    positions, ranks = positions[exist], np.array([row[1] for row in rows], np.float64)[exist]
    # FTS5 gives the negated score: rarity * count * (k1 + 1) / (count + norm). All counts are whole numbers.
    shares = -ranks / (_rarity(len(lengths.ids), len(rows)) * (K1 + 1))
    counts = np.rint(shares * lengths.norms()[positions] / np.maximum(1 - shares, MIN_RARITY))
    order = np.argsort(positions)
    return TermDocuments(positions[order], np.maximum(counts, 1)[order].astype(np.float32))


def _intersect(parts: Sequence[TermDocuments]) -> TermDocuments:
    """Return the documents with all parts of a phrase, each as often as its rarest part."""
    found = parts[0]
    for part in parts[1:]:
        positions, ours, theirs = np.intersect1d(found.positions, part.positions, return_indices=True)
        found = TermDocuments(positions, np.minimum(found.counts[ours], part.counts[theirs]))
    return found


def _rarity(documents: int, found: int) -> float:
    return max(MIN_RARITY, math.log((documents - found + 0.5) / (found + 0.5)))


def _is_in_folders(tx: Tx, lengths: DocumentLengths, folder: Folders) -> NDArray[np.bool_]:
    rows = tx.rows(_IDS_IN_FOLDERS, folders=jsontext.dump(folder_list(folder)))
    return lengths.mark([row[0] for row in rows])


def _best(
    ids: NDArray[np.int64], scores: NDArray[np.float64], matching: NDArray[np.int64], limit: int
) -> tuple[dict[int, float], int]:
    """Return the best of the matching positions, as scores by id; of equal ones those with the lowest ids."""
    found = scores[matching]
    chosen = np.arange(len(found))
    if len(found) > limit:
        least = np.partition(found, len(found) - limit)[len(found) - limit]
        better = np.flatnonzero(found > least)
        chosen = np.concatenate([better, np.flatnonzero(found == least)[: limit - len(better)]])
    return {int(ids[matching[n]]): float(found[n]) for n in chosen}, len(found)
