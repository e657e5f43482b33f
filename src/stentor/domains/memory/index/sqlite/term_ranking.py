"""BM25 of terms and phrases over an FTS5 table, computed with NumPy from FTS5's own lists of documents.

Returns the documents of FTS5's function `bm25`, with its scores but for very long ones (`MAX_LENGTH_RATIO`). FTS5 calls
it for each matching row, about 1 µs for each of them and each term: 0.1 s for ten common words in 100,000 documents.
Reading the documents of a term as one text takes a seventh of that, and they are kept: a change of the index is applied
to them by the terms of the new document. A phrase is searched for by itself, because few documents have it: FTS5's
score tells how often each does.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.index.model import (
    FIELD_WEIGHTS,
    SEARCH_FIELDS,
    Folders,
    KeywordQuery,
    ListExcluded,
    SearchField,
    folder_list,
    phrase_parts,
)
from stentor.domains.memory.index.sqlite.document_lengths import (
    K1,
    DocumentLengths,
    decode_varints,
    load_lengths,
    norms_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    # Only needed for a search.
    np = lazy_module("numpy")

MIN_RARITY = 1e-6
"""FTS5's rarity of a term that more than half of the documents have."""
MAX_KEPT_BYTES = 32 * 1024 * 1024
"""Memory for the documents of terms and phrases that were searched for."""
MAX_KEPT_PARTS = 2_000
"""How many terms and parts of phrases are kept: those that no document has take memory too."""
MAX_LOGGED_CHARS = 1_000_000
"""Text of the latest changes that is kept, to apply them to the documents of a term; of older ones it is read again."""
DENSE_SHARE = 8
"""A term is common, and is stored with a count for each document, if more than 1 in this many documents have it."""
MAX_BYTE = 255
BLOCK = 64
"""Documents in a block. The best scores of the blocks are compared first: most documents are below them."""
CHANGE_CHARS = 100
"""Size that each change counts as besides its text, in characters."""
_FIELD_NUMBER = " ".join(f"when '{field}' then {number}" for number, field in enumerate(SEARCH_FIELDS))
# A list of numbers as one text is read in a tenth of the time of as many rows, and FTS5 gives the name of a field
# slowly: asked for once, in one sum with the document, it takes half as long as a list for each field.
_READ_TERM = Sql(
    f"""select group_concat(doc * {len(SEARCH_FIELDS)} + case col {_FIELD_NUMBER} end)
    from terms where term = :term"""  # noqa: S608 - constant names of fields
)
_RANK = f"bm25({', '.join(str(FIELD_WEIGHTS[field]) for field in SEARCH_FIELDS)})"
_FIND_PHRASE = Sql(f"select rowid, rank from words where words match :phrase and rank match '{_RANK}'")  # noqa: S608
_READ_TOTALS = Sql("select block from words_data where id = 1")
"""FTS5's number of documents, and of terms in each field."""
_IDS_IN_FOLDERS = Sql("select doc_id from documents where folder in (select value from json_each(:folders))")


class TermDocuments(msgspec.Struct, frozen=True):
    """The documents with a term or phrase, and how often each has it, by field weight.

    `positions` are those in `DocumentLengths`. Without them `counts` begins with the first document and has a zero for
    each one without the term: that is smaller and faster for a common term. Counts are of a byte or float32.
    """

    positions: NDArray[np.int32] | None
    counts: NDArray[Any]

    @property
    def bytes(self) -> int:
        return (0 if self.positions is None else self.positions.nbytes) + self.counts.nbytes


class _Kept(msgspec.Struct, frozen=True):
    """The documents of a part of a phrase as of a version."""

    version: int
    found: TermDocuments


class _Change(msgspec.Struct, frozen=True):
    """A document that was indexed with these texts of terms, by field, or deleted (None)."""

    version: int
    doc_id: int
    texts: tuple[str, ...] | None

    @property
    def chars(self) -> int:
        return CHANGE_CHARS + sum(map(len, self.texts or ()))


class TermRanking:
    """Ranks documents by terms and phrases. Thread-safe: searches run in several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._lengths: DocumentLengths | None = None
        self._changes: dict[int, int | None] | None = None
        """Lengths of documents that changed since `_lengths` began to be read; None before, when nothing is kept."""
        self._kept: OrderedDict[tuple[tuple[str, ...], frozenset[SearchField]], _Kept] = OrderedDict()
        """Documents of terms and phrases that were searched for, the latest last."""
        self._kept_bytes = 0
        self._log: deque[_Change] = deque()
        """All changes after the version `_logged_from`, up to the current one."""
        self._log_chars = 0
        self._logged_from = 0

    def change(self, doc_id: int, length: int | None, texts: tuple[str, ...] | None = None) -> None:
        """Note that a document was indexed, with its length and its terms by field, or deleted (None).

        To be called after the commit.
        """
        with self._lock:
            self._version += 1
            if self._changes is not None:
                self._changes[doc_id] = length
                change = _Change(self._version, doc_id, texts)
                self._log.append(change)
                self._log_chars += change.chars
                while self._log_chars > MAX_LOGGED_CHARS:
                    dropped = self._log.popleft()
                    self._log_chars -= dropped.chars
                    self._logged_from = dropped.version
            else:
                self._forget_changes()

    def _forget_changes(self) -> None:
        self._log.clear()
        self._log_chars = 0
        self._logged_from = self._version

    def rank(
        self, tx: Tx, query: KeywordQuery, limit: int, folder: Folders | None, list_excluded: ListExcluded
    ) -> tuple[dict[int, float], int]:
        """Return the scores of the best documents (in these folders, not excluded) by id, and how many match.

        They are more than `limit` if others are as good as the last of them. The transaction must not have read
        anything before.
        """
        version, lengths = self._read_lengths(tx)
        if not lengths.documents:
            return {}, 0
        scores, matches = np.zeros(len(lengths.ids)), np.zeros(len(lengths.ids), np.uint16)
        scratch = np.empty(len(lengths.ids))
        for phrase in query.phrases:
            parts = [self._find_part(tx, part, query.fields, version, lengths) for part in phrase_parts(phrase)]
            _add_scores(_intersect(parts), lengths, scores, matches, scratch)
        matching = matches >= (len(query.phrases) if query.mode == "all" else 1)
        if folder is not None:
            matching &= _is_in_folders(tx, lengths, folder)
        if excluded := list_excluded(tx):
            matching &= ~lengths.mark(excluded)
        scores *= matching
        return _best(lengths.ids, scores, limit), int(np.count_nonzero(matching))

    def _read_lengths(self, tx: Tx) -> tuple[int, DocumentLengths]:
        """Return the lengths with all changes so far, and the version that this transaction sees at least.

        The version is -1, at which nothing is kept, if the lengths have later changes than that.
        """
        with self._lock:
            # Before the first read: what this transaction does not see yet must not be cached for transactions that do.
            version = self._version
            if self._lengths is not None:
                return version, self._change_lengths(self._lengths)
            # A change that is committed while the lengths are read may be in them or not; it is applied to them.
            self._changes = {} if self._changes is None else self._changes
        lengths = load_lengths(tx)
        with self._lock:
            # Documents of another search of this version would not fit lengths that know of later changes.
            version = version if version == self._version else -1
            return version, self._change_lengths(lengths if self._lengths is None else self._lengths)

    def _change_lengths(self, lengths: DocumentLengths) -> DocumentLengths:
        if self._changes:
            lengths, is_moved = lengths.change(self._changes)
            self._changes.clear()
            if is_moved:
                # What is being read now has the old positions, but also an older version.
                self._version += 1
                self._forget_changes()
        self._lengths = lengths
        return lengths

    def _find_part(
        self, tx: Tx, part: tuple[str, ...], fields: frozenset[SearchField], version: int, lengths: DocumentLengths
    ) -> TermDocuments:
        key = (part, fields)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                # One from before positions moved is older than the log.
                if kept.version == version and version >= self._logged_from:
                    return kept.found
            # One of a later version may have documents that this transaction does not see.
            is_current = kept is not None and self._logged_from <= kept.version < version
            changes = self._list_changes(kept.version, version) if kept is not None and is_current else {}
        if kept is not None and is_current:
            found = _apply(changes, kept.found, part, fields, lengths)
        else:
            found = (_load_term if len(part) == 1 else _load_phrase)(tx, part, fields, lengths)
        self._keep(key, _Kept(version, found))
        return found

    def _list_changes(self, after: int, version: int) -> dict[int, tuple[str, ...] | None]:
        """Return the latest terms, up to a version, of the documents that changed after another one."""
        latest: dict[int, tuple[str, ...] | None] = {}
        for change in takewhile(lambda change: change.version > after, reversed(self._log)):
            if change.version <= version:
                latest.setdefault(change.doc_id, change.texts)
        return latest

    def _keep(self, key: tuple[tuple[str, ...], frozenset[SearchField]], new: _Kept) -> None:
        with self._lock:
            old = self._kept.get(key)
            if new.version < self._logged_from or (old is not None and old.version > new.version):
                return
            self._kept[key] = new
            self._kept_bytes += new.found.bytes - (0 if old is None else old.found.bytes)
            while self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) > MAX_KEPT_PARTS:
                self._kept_bytes -= self._kept.popitem(last=False)[1].found.bytes


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
    positions, exist = lengths.find_live(ids)
    # A document that was committed a moment ago may have no length yet.
    counts = np.bincount(positions[exist], weighted[exist], len(lengths.ids)).astype(np.float32)
    positions = np.flatnonzero(counts)
    if len(positions) * DENSE_SHARE > len(counts):
        return TermDocuments(None, _shrink(counts))
    return TermDocuments(positions.astype(np.int32), counts[positions])


def _shrink(counts: NDArray[np.float32]) -> NDArray[Any]:
    """Return the counts in a byte each, if none is larger."""
    return counts.astype(np.uint8) if counts.max(initial=0) <= MAX_BYTE else counts


def _load_phrase(
    tx: Tx, phrase: tuple[str, ...], fields: frozenset[SearchField], lengths: DocumentLengths
) -> TermDocuments:
    # Terms are letters and digits, so quoting them suffices.
    columns = "" if fields == set(SEARCH_FIELDS) else "{" + " ".join(sorted(fields)) + "} : "
    adjacent = " + ".join(f'"{term}"' for term in phrase)
    rows = tx.rows(_FIND_PHRASE, phrase=f"{columns}({adjacent})")
    # As this transaction has them: by other ones than FTS5's the counts would be wrong, and be kept.
    ((block,),) = tx.rows(_READ_TOTALS)
    documents, *terms = decode_varints(block)
    positions, exist = lengths.find_live(np.array([row[0] for row in rows], np.int64))
    positions, ranks = positions[exist], np.array([row[1] for row in rows], np.float64)[exist]
    # FTS5 gives the negated score: rarity * count * (k1 + 1) / (count + norm). All counts are whole numbers.
    shares = -ranks / (_rarity(documents, len(rows)) * (K1 + 1))
    ratios = lengths.lengths[positions].astype(np.float64) * (documents / max(1, sum(terms)))
    counts = np.rint(shares * norms_of(ratios) / np.maximum(1 - shares, MIN_RARITY))
    return TermDocuments(positions, np.maximum(counts, 1).astype(np.float32))


def _apply(
    changes: Mapping[int, tuple[str, ...] | None],
    found: TermDocuments,
    part: tuple[str, ...],
    fields: frozenset[SearchField],
    lengths: DocumentLengths,
) -> TermDocuments:
    """Return the documents of a part of a phrase after these changes, documents to their terms by field."""
    new = {doc_id: count for doc_id, texts in changes.items() if texts and (count := _count(part, fields, texts))}
    positions, exist = lengths.find(np.array(list(new), np.int64))
    positions, counts = positions[exist], np.array(list(new.values()), np.float32)[exist]
    is_changed = lengths.mark(list(changes))
    if found.positions is not None:
        kept = ~is_changed[found.positions]
        return TermDocuments(np.append(found.positions[kept], positions), np.append(found.counts[kept], counts))
    dtype = found.counts.dtype if counts.max(initial=0) <= MAX_BYTE else np.float32
    all_counts = np.zeros(len(lengths.ids), dtype)
    known = found.counts[: len(all_counts)]
    all_counts[: len(known)] = known
    all_counts[is_changed] = 0
    all_counts[positions] = counts
    return TermDocuments(None, all_counts)


def _count(part: tuple[str, ...], fields: frozenset[SearchField], texts: tuple[str, ...]) -> float:
    """Return how often a document has a part of a phrase, by field weight."""
    total, first, wanted = 0.0, part[0], list(part)
    for field, text in zip(SEARCH_FIELDS, texts, strict=True):
        # Few documents have a given term, and searching a text is faster than splitting it.
        if field in fields and first in text:
            terms = text.split(" ")
            starts = [place for place, term in enumerate(terms) if term == first]
            total += FIELD_WEIGHTS[field] * sum(terms[start : start + len(wanted)] == wanted for start in starts)
    return total


def _add_scores(
    found: TermDocuments,
    lengths: DocumentLengths,
    scores: NDArray[np.float64],
    matches: NDArray[np.uint16],
    scratch: NDArray[np.float64],
) -> None:
    """Add the BM25 of a phrase to the scores, and 1 to the matches, of each document that has it.

    `scratch` has room for all documents: memory that is new for each phrase takes longer than the sums.
    """
    if found.positions is None:
        # Another search may know documents already that this one does not.
        counts = found.counts[: len(scores)]
        has_phrase = counts > 0
        part, norms = scratch[: len(counts)], lengths.norms[: len(counts)]
        np.divide(counts, np.add(counts, norms, out=part), out=part)
        part *= _rarity(lengths.documents, int(np.count_nonzero(has_phrase))) * (K1 + 1)
        scores[: len(counts)] += part
        matches[: len(counts)] += has_phrase
    else:
        counts64 = found.counts.astype(np.float64)
        rarity = _rarity(lengths.documents, len(counts64))
        scores[found.positions] += rarity * (K1 + 1) * counts64 / (counts64 + lengths.norms[found.positions])
        matches[found.positions] += 1


def _intersect(parts: Sequence[TermDocuments]) -> TermDocuments:
    """Return the documents with all parts of a phrase, each as often as its rarest part."""
    found = parts[0]
    for part in parts[1:]:  # each of several terms, so with positions
        assert found.positions is not None
        assert part.positions is not None
        positions, ours, theirs = np.intersect1d(found.positions, part.positions, return_indices=True)
        found = TermDocuments(positions, np.minimum(found.counts[ours], part.counts[theirs]))
    return found


def _rarity(documents: int, found: int) -> float:
    return max(MIN_RARITY, math.log((documents - found + 0.5) / (found + 0.5)))


def _is_in_folders(tx: Tx, lengths: DocumentLengths, folder: Folders) -> NDArray[np.bool_]:
    rows = tx.rows(_IDS_IN_FOLDERS, folders=jsontext.dump(folder_list(folder)))
    return lengths.mark([row[0] for row in rows])


def _best(ids: NDArray[np.int64], scores: NDArray[np.float64], limit: int) -> dict[int, float]:
    """Return the best scores above 0 by id, with all that equal the last of them."""
    least = np.float64(0)
    # The wanted number of block maxima is a lower bound for the best scores, and few other scores reach it.
    if (blocks := len(scores) // BLOCK) > limit:
        maxima = scores[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
        least = np.partition(maxima, blocks - limit)[blocks - limit]
    chosen = np.flatnonzero(scores >= least if least else scores > 0)
    if len(chosen) > limit:
        found = scores[chosen]
        chosen = chosen[found >= np.partition(found, len(found) - limit)[len(found) - limit]]
    return dict(zip(ids[chosen].tolist(), scores[chosen].tolist(), strict=True))
