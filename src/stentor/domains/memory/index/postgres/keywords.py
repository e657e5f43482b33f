"""Words in PostgreSQL: hits and scores as FTS5 gives them, over the same terms.

`postings` has a row for each term of each document, with how often it stands where, and the document's length; an
index holds all of that, so a ranking reads nothing else. Phrases are found by tsvector (`windows.py`).

Terms as tsvectors, and phrases as tsqueries over them. Pure.

A tsvector knows places up to 16,383, 256 of each word, and 1 MB in all, so that a text is cut into windows which stay
below all of that. A window's own terms have the label A. Behind them stand the first terms of the next window, without
a label, so that a phrase that begins here ends here. A phrase has to begin at a label: it is found in one window alone,
and `ts_rank_cd` with equal weights counts how often.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import (
    FIELD_WEIGHTS,
    SEARCH_FIELDS,
    Folders,
    IndexEntry,
    KeywordHit,
    KeywordQuery,
    SearchField,
    folder_list,
)

MAX_COUNT = 32_000
"""Of a term in a title or in tags; what is above is not counted."""
_LENGTH = Sql("delete from lengths where doc_id = :doc_id returning length")
_ADD_LENGTH = Sql("insert into lengths (doc_id, length) values (:doc_id, :length)")
_ADD = Sql("update facts set value = value + :n where name = :name")
_FORGET = [Sql(f"delete from {table} where doc_id = :doc_id") for table in ("postings", "windows")]
_POSTINGS = Sql(
    """insert into postings (doc_id, length, term, title, tags, content)
    select :doc_id, :length, * from unnest(:terms::text[], :title::int[], :tags::int[], :content::int[])"""
)
_WINDOWS = Sql(
    """insert into windows (doc_id, length, field, words)
    select :doc_id, :length, field, words::tsvector from unnest(:fields::int[], :vectors::text[]) t (field, words)"""
)
_CORPUS = Sql("select name, value from facts where name in ('documents', 'terms')")

# BM25 with FTS5's constants: k1 is 1.2, b is 0.75. `slope` is k1 * b / the mean length of a document.
_RARITY = "greatest(1e-6::float8, ln((:documents::float8 - {n} + 0.5::float8) / ({n} + 0.5::float8)))"
_PART = "rarity * f * 2.2::float8 / (f + 0.3::float8 + :slope::float8 * length)"
_OFTEN = "(:title::float8 * p.title + :tags::float8 * p.tags + :content::float8 * p.content)"
_IN_FOLDER = " and found.doc_id in (select doc_id from documents where folder = any(:folders::text[]))"


class PostgresKeywordStore:
    """Implements the port `WordStore`."""

    def insert(self, tx: Tx, doc_id: int, entry: IndexEntry) -> None:
        fields = _terms(entry)
        length = sum(map(len, fields.values()))
        tx.run(_ADD_LENGTH, doc_id=doc_id, length=length)
        _count(tx, 1, length)
        tx.run(_POSTINGS, doc_id=doc_id, length=length, **_columns(fields))
        cut = [
            (place, text) for place, field in enumerate(SEARCH_FIELDS, 1) for text in tsvector_windows(fields[field])
        ]
        if cut:
            tx.run(_WINDOWS, doc_id=doc_id, length=length, fields=[n for n, _ in cut], vectors=[t for _, t in cut])

    def delete(self, tx: Tx, doc_id: int) -> None:
        row = tx.row(_LENGTH, doc_id=doc_id)
        if row is not None:
            _count(tx, -1, -int(row[0]))
        for statement in _FORGET:
            tx.run(statement, doc_id=doc_id)

    def search(
        self, tx: Tx, query: KeywordQuery, limit: int, folder: Folders | None, *, with_total: bool
    ) -> tuple[list[KeywordHit], int]:
        corpus: dict[str, int] = dict(tx.rows(_CORPUS))
        if not corpus["documents"]:
            return [], 0
        single = [stored_term(phrase[0]) for phrase in query.phrases if len(phrase) == 1]
        several = [phrase for phrase in query.phrases if len(phrase) > 1]
        asked = {"limit": limit, "terms": single} | _asked(query, corpus, folder) | _phrases(several)
        search = _search(
            bool(single), bool(several), query.fields == set(SEARCH_FIELDS), folder is not None, with_total
        )
        rows = tx.rows(search, **asked)
        return [KeywordHit(*row[:5]) for row in rows], int(rows[0][5]) if rows and with_total else 0


def _terms(entry: IndexEntry) -> dict[SearchField, list[str]]:
    texts = zip(SEARCH_FIELDS, (entry.title_words, entry.tag_words, entry.body_words), strict=True)
    return {field: text.split(" ") if text else [] for field, text in texts}


def _columns(fields: Mapping[SearchField, Iterable[str]]) -> dict[str, list[Any]]:
    """Each term once, with how often it stands in each field."""
    counts = {field: Counter(map(stored_term, terms)) for field, terms in fields.items()}
    terms = list(dict.fromkeys(term for counter in counts.values() for term in counter))
    return {
        "terms": terms,
        **{field: [min(MAX_COUNT, counts[field][term]) for term in terms] for field in SEARCH_FIELDS},
    }


def _count(tx: Tx, documents: int, terms: int) -> None:
    tx.run(_ADD, name="documents", n=documents)
    tx.run(_ADD, name="terms", n=terms)


def _asked(query: KeywordQuery, corpus: Mapping[str, int], folder: Folders | None) -> dict[str, Any]:
    weights = {field: FIELD_WEIGHTS[field] if field in query.fields else 0.0 for field in SEARCH_FIELDS}
    mean = corpus["terms"] / corpus["documents"]
    return {
        **{str(field): weight for field, weight in weights.items()},
        "weights": list(weights.values()),
        "documents": corpus["documents"],
        "slope": 0.9 / mean if mean else 0.0,
        "least": len(query.phrases) if query.mode == "all" else 1,
        "folders": [] if folder is None else folder_list(folder),
    }


def _phrases(several: Sequence[Sequence[str]]) -> dict[str, list[Any]]:
    cut = [
        (n, text, len(found)) for n, phrase in enumerate(several) for found in [tsquery_parts(phrase)] for text in found
    ]
    return {"numbers": [n for n, _, _ in cut], "pieces": [t for _, t, _ in cut], "sizes": [s for _, _, s in cut]}


@cache
def _search(single: bool, several: bool, everywhere: bool, folder: bool, counted: bool) -> Sql:
    """The statement for a query of this kind: the parts of each document's score, their sums, the best of them."""
    tables, parts = [], []
    narrowed = _IN_FOLDER if folder else ""
    if single:
        tables.append(_SINGLE.format(there="true" if everywhere else f"{_OFTEN} > 0"))
        parts.append(_SINGLE_PARTS + ("" if everywhere else " and f > 0") + narrowed)
    if several:
        tables += [_SEVERAL, _SEVERAL_RARITY]
        parts.append(_SEVERAL_PARTS + narrowed)
    total = "(select count(*) from scored)" if counted else "0"
    return Sql(
        f"""with {", ".join(tables)}, scored as materialized (
            select doc_id, sum(part) as score from ({" union all ".join(parts)}) parts
            group by doc_id having count(*) >= :least
        )
        select d.doc_id, d.path, d.title, d.body, best.score, {total}
        from (select doc_id, score from scored order by score desc, doc_id limit :limit) best
        join documents d on d.doc_id = best.doc_id order by best.score desc, d.path"""
    )


_SINGLE = f"""single as materialized (
    select t.term, {_RARITY.format(n="c.n")} as rarity from unnest(:terms::text[]) t (term), lateral (
        select count(*)::float8 as n from postings p where p.term = t.term collate "C" and {{there}}
    ) c
)"""
_SINGLE_PARTS = f"""select doc_id, {_PART} as part from (
    select p.doc_id, p.length, s.rarity, {_OFTEN} as f from single s join postings p on p.term = s.term collate "C"
) found where true"""
_SEVERAL = """several as materialized (
    select number, doc_id, min(f) as f, min(length) as length from (
        select q.number, q.size, w.doc_id, min(w.length) as length,
            sum((:weights::float8[])[w.field] * ts_rank_cd('{1,1,1,1}', w.words, q.piece)) as f
        from (
            select number, size, place, piece::tsquery as piece
            from unnest(:numbers::int[], :pieces::text[], :sizes::int[]) with ordinality t (number, piece, size, place)
        ) q join windows w on w.words @@ q.piece where (:weights::float8[])[w.field] > 0
        group by q.number, q.size, q.place, w.doc_id
    ) pieces group by number, size, doc_id having count(*) = size
)"""
_SEVERAL_RARITY = f"""rarities as (
    select number, {_RARITY.format(n="count(*)")} as rarity from several group by number
)"""
_SEVERAL_PARTS = f"""select doc_id, {_PART} as part from (
    select doc_id, length, rarity, f from several join rarities using (number)
) found where true"""


WINDOW_TERMS, OVERLAP_TERMS = 224, 31
MAX_TERM_CHARS = 200
"""Signs of a term above which it is stored by its hash: neither index takes long ones."""


def stored_term(term: str) -> str:
    """What a term is stored as."""
    return (
        term if len(term) <= MAX_TERM_CHARS else f"{term[:MAX_TERM_CHARS]}{hashlib.sha256(term.encode()).hexdigest()}"
    )


def tsvector_windows(terms: Sequence[str]) -> Iterator[str]:
    """The text of a tsvector for each window; none where no phrase can begin."""
    for start in range(0, len(terms) - 1, WINDOW_TERMS):
        yield _vector(terms[start : start + WINDOW_TERMS + OVERLAP_TERMS])


def _vector(terms: Sequence[str]) -> str:
    places: dict[str, list[str]] = defaultdict(list)
    for place, term in enumerate(terms, 1):
        places[stored_term(term)].append(f"{place}A" if place <= WINDOW_TERMS else str(place))
    return " ".join(f"{_quoted(term)}:{','.join(found)}" for term, found in places.items())


def tsquery_parts(phrase: Sequence[str]) -> list[str]:
    """The texts of the tsqueries that a document must match. A phrase that no window can hold is cut; each piece
    begins with the last term of the one before."""
    return [_query(phrase[start : start + OVERLAP_TERMS + 1]) for start in range(0, len(phrase) - 1, OVERLAP_TERMS)]


def _query(terms: Sequence[str]) -> str:
    first, *rest = (_quoted(stored_term(term)) for term in terms)
    return " <-> ".join([f"{first}:A", *rest])


def _quoted(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
