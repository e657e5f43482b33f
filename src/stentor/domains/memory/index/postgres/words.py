"""Words in PostgreSQL: hits and scores as FTS5 gives them, over the same terms.

`postings` has a row for each term of each document, with how often it stands where, and the document's length; an
index holds all of that, so a ranking reads nothing else. Phrases are found by tsvector (`windows.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import Entry, Folders, listed
from stentor.domains.memory.index.postgres import windows
from stentor.domains.memory.index.query import FIELDS, WEIGHTS, Field, Hit, Query

MOST = 32_000
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


class PostgresWords:
    """Implements the port `WordStore`."""

    def put(self, tx: Tx, doc_id: int, entry: Entry) -> None:
        fields = _terms(entry)
        length = sum(map(len, fields.values()))
        tx.run(_ADD_LENGTH, doc_id=doc_id, length=length)
        _count(tx, 1, length)
        tx.run(_POSTINGS, doc_id=doc_id, length=length, **_columns(fields))
        cut = [(place, text) for place, field in enumerate(FIELDS, 1) for text in windows.windows(fields[field])]
        if cut:
            tx.run(_WINDOWS, doc_id=doc_id, length=length, fields=[n for n, _ in cut], vectors=[t for _, t in cut])

    def forget(self, tx: Tx, doc_id: int) -> None:
        row = tx.row(_LENGTH, doc_id=doc_id)
        if row is not None:
            _count(tx, -1, -int(row[0]))
        for statement in _FORGET:
            tx.run(statement, doc_id=doc_id)

    def find(self, tx: Tx, query: Query, limit: int, folder: Folders | None, *, counted: bool) -> tuple[list[Hit], int]:
        corpus: dict[str, int] = dict(tx.rows(_CORPUS))
        if not corpus["documents"]:
            return [], 0
        single = [windows.key(phrase[0]) for phrase in query.phrases if len(phrase) == 1]
        several = [phrase for phrase in query.phrases if len(phrase) > 1]
        asked = {"limit": limit, "terms": single} | _asked(query, corpus, folder) | _phrases(several)
        search = _search(bool(single), bool(several), query.fields == set(FIELDS), folder is not None, counted)
        rows = tx.rows(search, **asked)
        return [Hit(*row[:5]) for row in rows], int(rows[0][5]) if rows and counted else 0


def _terms(entry: Entry) -> dict[Field, list[str]]:
    texts = zip(FIELDS, (entry.title_words, entry.tag_words, entry.body_words), strict=True)
    return {field: text.split(" ") if text else [] for field, text in texts}


def _columns(fields: Mapping[Field, Iterable[str]]) -> dict[str, list[Any]]:
    """Each term once, with how often it stands in each field."""
    counts = {field: Counter(map(windows.key, terms)) for field, terms in fields.items()}
    terms = list(dict.fromkeys(term for counter in counts.values() for term in counter))
    return {"terms": terms, **{field: [min(MOST, counts[field][term]) for term in terms] for field in FIELDS}}


def _count(tx: Tx, documents: int, terms: int) -> None:
    tx.run(_ADD, name="documents", n=documents)
    tx.run(_ADD, name="terms", n=terms)


def _asked(query: Query, corpus: Mapping[str, int], folder: Folders | None) -> dict[str, Any]:
    weights = {field: WEIGHTS[field] if field in query.fields else 0.0 for field in FIELDS}
    mean = corpus["terms"] / corpus["documents"]
    return {
        **{str(field): weight for field, weight in weights.items()},
        "weights": list(weights.values()),
        "documents": corpus["documents"],
        "slope": 0.9 / mean if mean else 0.0,
        "least": len(query.phrases) if query.mode == "all" else 1,
        "folders": [] if folder is None else listed(folder),
    }


def _phrases(several: Sequence[Sequence[str]]) -> dict[str, list[Any]]:
    cut = [
        (n, text, len(found))
        for n, phrase in enumerate(several)
        for found in [windows.pieces(phrase)]
        for text in found
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
