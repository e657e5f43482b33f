"""The keyword store of a shared index: BM25 in PostgreSQL, with the same hits and scores as FTS5 over the same terms.

Single terms use `postings`: one row per term and document, with the count in each field and the document's length; its
index covers all of that, so that ranking reads nothing else. Phrases use `windows`: tsvectors and tsquery's `<->`.

A tsvector holds positions up to 16,383, 256 per word and 1 MB, so a text is cut into windows below these limits. The
terms of a window have the label A; the first terms of the next window follow without a label, so that a phrase can end
there. A phrase must begin at a label: it is found in exactly one window, and `ts_rank_cd` with equal weights counts it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import (
    FIELD_WEIGHTS,
    MAX_LENGTH_RATIO,
    MAX_PART_TERMS,
    MIN_LENGTH,
    SEARCH_FIELDS,
    Folders,
    IndexEntry,
    KeywordHit,
    KeywordQuery,
    ListExcluded,
    SearchField,
    folder_list,
    phrase_parts,
)

MAX_COUNT = 32_000
"""Counts above this are stored as this: the columns of titles and tags are smallint."""
WINDOW_TERMS, OVERLAP_TERMS = 224, MAX_PART_TERMS - 1
MIN_PRUNED_POSTINGS = 5_000
"""From this many postings of the terms on, a search without a total leaves out documents that cannot be among the best:
two statements more, and two to three times less work for the server."""
SEED_POSTINGS = 5
"""Postings of the rarest terms, for each document wanted, by which the score of the last of them is estimated."""
MAX_TERM_CHARS = 200
"""Longer terms are stored by their hash: neither a B-tree nor a tsvector takes long ones."""

_DELETE_LENGTH = Sql("delete from lengths where doc_id = :doc_id returning length")
_INSERT_LENGTH = Sql("insert into lengths (doc_id, length) values (:doc_id, :length)")
_ADD_TO_FACT = Sql("update facts set value = value + :n where name = :name")
_DELETE_TERMS = [Sql(f"delete from {table} where doc_id = :doc_id") for table in ("postings", "windows")]
_INSERT_POSTINGS = Sql(
    """insert into postings (doc_id, length, term, title, tags, content)
    select :doc_id, :length, * from unnest(:terms::text[], :title::int[], :tags::int[], :content::int[])"""
)
_INSERT_WINDOWS = Sql(
    """insert into windows (doc_id, length, field, words)
    select :doc_id, :length, field, words::tsvector from unnest(:fields::int[], :vectors::text[]) t (field, words)"""
)
_READ_CORPUS = Sql("select name, value from facts where name in ('documents', 'terms')")

# BM25 with FTS5's constants: k1 is 1.2, b is 0.75. `slope` is k1 * b / the mean length of a document, `longest` what
# the length adds at most. As in FTS5, a term that more than half of the documents have gets a tiny positive rarity
# instead of a negative one.
_RARITY = "greatest(1e-6::float8, ln((:documents::float8 - {n} + 0.5::float8) / ({n} + 0.5::float8)))"
_SCORE_PART = "rarity * f * 2.2::float8 / (f + 0.3::float8 + least(:slope::float8 * length, :longest::float8))"
_WEIGHTED_COUNT = "(:title::float8 * p.title + :tags::float8 * p.tags + :content::float8 * p.content)"
_IN_FOLDERS = " and found.doc_id in (select doc_id from documents where folder = any(:folders::text[]))"
# Hashed, unlike `<> all` of a parameter, which compares each document with each one that is excluded.
_NOT_EXCLUDED = " and found.doc_id not in (select unnest(:excluded::int[]))"

_TERMS_TABLE = f"""single as materialized (
    select t.term, c.n, {_RARITY.format(n="c.n")} as rarity from unnest(:terms::text[]) t (term), lateral (
        select count(*)::float8 as n from postings p where p.term = t.term collate "C" and {{condition}}
    ) c
)"""
_TERM_SCORES = f"""select doc_id, {_SCORE_PART} as part from (
    select p.doc_id, p.length, s.rarity, {_WEIGHTED_COUNT} as f
    from single s join postings p on p.term = s.term collate "C"
) found where true"""
# A document has no more of a term than the most that any one has, and is no shorter than the shortest.
_COUNT_TERMS = Sql(
    f"""select term, n, rarity, {_SCORE_PART} as most from (
        select t.term, c.n, {_RARITY.format(n="c.n")} as rarity, :min_length::float8 as length,
            :title::float8 * c.title + :tags::float8 * c.tags + :content::float8 * c.content as f
        from unnest(:terms::text[]) t (term), lateral (
            select count(*)::float8 as n, max(title) as title, max(tags) as tags, max(content) as content
            from postings p where p.term = t.term collate "C"
        ) c where c.n > 0
    ) counted order by n, term"""
)
_RARE_SCORES = f"""rare as materialized (
    select doc_id, sum(part) as score from (
        select doc_id, {_SCORE_PART} as part from (
            select p.doc_id, p.length, s.rarity, {_WEIGHTED_COUNT} as f
            from unnest(:rare::text[], :rarities::float8[]) s (term, rarity)
            join postings p on p.term = s.term collate "C"
        ) found where true{{conditions}}
    ) parts group by doc_id
), seed as materialized (select doc_id, score from rare order by score desc limit :limit + 1)"""
# The scores of the seed with all terms: the best `limit + 1` of all documents are at least as good as the worst of it.
_SEED_SCORES = f"""select seed.doc_id, seed.score + coalesce(added.score, 0) as score from seed left join (
    select doc_id, sum({_SCORE_PART}) as score from (
        select p.doc_id, p.length, s.rarity, {_WEIGHTED_COUNT} as f
        from unnest(:common::text[], :common_rarities::float8[]) s (term, rarity)
        join postings p on p.term = s.term collate "C"
            and p.doc_id = any ((select array_agg(doc_id) from seed)::int[])
    ) found group by doc_id
) added using (doc_id)"""
_PHRASES_TABLE = """several as materialized (
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
_PHRASE_RARITIES_TABLE = f"""rarities as (
    select number, {_RARITY.format(n="count(*)")} as rarity from several group by number
)"""
_PHRASE_SCORES = f"""select doc_id, {_SCORE_PART} as part from (
    select doc_id, length, rarity, f from several join rarities using (number)
) found where true"""


class _Term(msgspec.Struct, frozen=True):
    """A term of a query: how many documents have it, and what it adds to the score of a document at most."""

    text: str
    documents: float
    rarity: float
    most: float


class PostgresKeywordStore:
    """Implements `KeywordStore`."""

    def insert(self, tx: Tx, doc_id: int, entry: IndexEntry) -> None:
        fields = _terms_by_field(entry)
        length = max(MIN_LENGTH, sum(map(len, fields.values())))
        tx.run(_INSERT_LENGTH, doc_id=doc_id, length=length)
        _add_to_corpus(tx, 1, length)
        tx.run(_INSERT_POSTINGS, doc_id=doc_id, length=length, **_posting_columns(fields))
        windows = [
            (number, text) for number, field in enumerate(SEARCH_FIELDS, 1) for text in tsvector_windows(fields[field])
        ]
        if windows:
            numbers, vectors = [n for n, _ in windows], [text for _, text in windows]
            tx.run(_INSERT_WINDOWS, doc_id=doc_id, length=length, fields=numbers, vectors=vectors)

    def delete(self, tx: Tx, doc_id: int) -> None:
        row = tx.row(_DELETE_LENGTH, doc_id=doc_id)
        if row is not None:
            _add_to_corpus(tx, -1, -int(row[0]))
        for statement in _DELETE_TERMS:
            tx.run(statement, doc_id=doc_id)

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
        excluded = list_excluded(tx)
        corpus: dict[str, int] = dict(tx.rows(_READ_CORPUS))
        if not corpus["documents"]:
            return [], 0
        terms = [stored_term(phrase[0]) for phrase in query.phrases if len(phrase) == 1]
        phrases = [phrase for phrase in query.phrases if len(phrase) > 1]
        parameters = (
            {"limit": limit, "terms": terms, "excluded": list(excluded)}
            | _score_parameters(query, corpus, folder)
            | _phrase_parameters(phrases)
        )
        conditions = (_IN_FOLDERS if folder is not None else "") + (_NOT_EXCLUDED if excluded else "")
        all_fields = query.fields == set(SEARCH_FIELDS)
        kind = (min(2, len(terms)), bool(phrases), all_fields, conditions)
        statement = _search_statement(*kind, with_total, False)
        statement_if_equal = _search_statement(*kind, False, True)
        if len(terms) > 1 and not (phrases or with_total) and all_fields and query.mode == "any":
            pruned = _prune(tx, parameters, conditions)
            if pruned is not None:
                common, parameters = pruned
                statement = _pruned_statement(common, conditions, False)
                statement_if_equal = _pruned_statement(common, conditions, True)
        rows = tx.rows(statement, **parameters)
        hits, total = [KeywordHit(*row[:5]) for row in rows], int(rows[0][5]) if rows and with_total else 0
        if len(hits) > limit and hits[limit].score == hits[limit - 1].score:
            # The first paths, whatever was indexed first. Only then: sorting all documents takes a third more.
            hits = [KeywordHit(*row[:5]) for row in tx.rows(statement_if_equal, **parameters)]
        return hits[:limit], total


def _terms_by_field(entry: IndexEntry) -> dict[SearchField, list[str]]:
    texts = zip(SEARCH_FIELDS, (entry.title_words, entry.tag_words, entry.body_words), strict=True)
    return {field: text.split(" ") if text else [] for field, text in texts}


def _posting_columns(fields: Mapping[SearchField, Iterable[str]]) -> dict[str, list[Any]]:
    """Return the columns of the postings: each term once, with its count in each field."""
    counts = {field: Counter(map(stored_term, terms)) for field, terms in fields.items()}
    terms = list(dict.fromkeys(term for counter in counts.values() for term in counter))
    return {
        "terms": terms,
        **{field: [min(MAX_COUNT, counts[field][term]) for term in terms] for field in SEARCH_FIELDS},
    }


def _add_to_corpus(tx: Tx, documents: int, terms: int) -> None:
    """Update the totals that BM25 needs, so that no search has to count them."""
    tx.run(_ADD_TO_FACT, name="documents", n=documents)
    tx.run(_ADD_TO_FACT, name="terms", n=terms)


def _score_parameters(query: KeywordQuery, corpus: Mapping[str, int], folder: Folders | None) -> dict[str, Any]:
    weights = {field: FIELD_WEIGHTS[field] if field in query.fields else 0.0 for field in SEARCH_FIELDS}
    mean_length = corpus["terms"] / corpus["documents"]
    return {
        **{str(field): weight for field, weight in weights.items()},
        "weights": list(weights.values()),
        "documents": corpus["documents"],
        "slope": 0.9 / mean_length if mean_length else 0.0,
        "longest": 0.9 * MAX_LENGTH_RATIO,
        "least": len(query.phrases) if query.mode == "all" else 1,
        "folders": [] if folder is None else folder_list(folder),
    }


def _phrase_parameters(phrases: Sequence[tuple[str, ...]]) -> dict[str, list[Any]]:
    """Return the tsqueries of all phrases, with the number of the phrase and how many tsqueries it has."""
    queries = [
        (number, text, len(parts))
        for number, phrase in enumerate(phrases)
        for parts in [phrase_parts(phrase)]
        for text in map(_tsquery, parts)
    ]
    return {
        "numbers": [number for number, _, _ in queries],
        "pieces": [text for _, text, _ in queries],
        "sizes": [size for _, _, size in queries],
    }


@cache
def _search_statement(
    terms: int, has_phrases: bool, all_fields: bool, conditions: str, with_total: bool, all_equal: bool
) -> Sql:
    """Return the statement for a kind of query: the parts of each document's score, their sums, the best of them.

    `terms` is 0, 1, or 2 for more. One document more than the limit is read; of those with equal scores the ones with
    the first paths if `all_equal`, any otherwise.
    """
    tables, parts = [], []
    if terms:
        tables.append(_TERMS_TABLE.format(condition="true" if all_fields else f"{_WEIGHTED_COUNT} > 0"))
        parts.append(_TERM_SCORES + ("" if all_fields else " and f > 0") + conditions)
    if has_phrases:
        tables += [_PHRASES_TABLE, _PHRASE_RARITIES_TABLE]
        parts.append(_PHRASE_SCORES + conditions)
    scores, total = f"({' union all '.join(parts)}) parts", "(select count(*) from scored)"
    if terms == 1 and not has_phrases:
        scored = f"select doc_id, part as score from {scores}"
        if not conditions:
            # `single` has counted the same documents. So `scored` is used once, and only its best rows are kept.
            total = "(select n from single)"
    else:
        # Each term or phrase that matches adds one row per document: their number tells whether enough match.
        scored = f"select doc_id, sum(part) as score from {scores} group by doc_id having count(*) >= :least"
    best = _best_documents("scored", total if with_total else "0", all_equal)
    return Sql(f"with {', '.join(tables)}, scored as ({scored}) {best}")


def _best_documents(table: str, total: str, all_equal: bool) -> str:
    best = "fetch first (:limit) rows with ties" if all_equal else "limit :limit + 1"
    return f"""select d.doc_id, d.path, d.title, d.body, best.score, {total}
        from (select doc_id, score from {table} order by score desc {best}) best
        join documents d on d.doc_id = best.doc_id order by best.score desc, d.path limit :limit + 1"""


def _prune(tx: Tx, parameters: Mapping[str, Any], conditions: str) -> tuple[int, dict[str, Any]] | None:
    """Return the number of common terms, and the parameters of the statement that leaves documents out.

    A term is common if all common ones together cannot bring a document among the best that has none of the others:
    their postings are read only for documents that have (MaxScore). None if leaving documents out gains nothing.
    """
    limit = parameters["limit"]
    terms = [_Term(*row) for row in tx.rows(_COUNT_TERMS, **parameters, min_length=MIN_LENGTH)]
    counts = list(accumulate(term.documents for term in terms))
    if not counts or counts[-1] < MIN_PRUNED_POSTINGS:
        return None
    seed = next((n for n, count in enumerate(counts, 1) if count >= SEED_POSTINGS * limit), len(terms))
    ((least, found),) = tx.rows(_seed_statement(conditions), **parameters, **_rare_and_common(terms, seed))
    # What the terms from this one on can add.
    most = list(accumulate(term.most for term in reversed(terms)))[::-1]
    rare = max(seed, next((n for n, added in enumerate(most) if added < least), len(terms)))
    if found <= limit or rare == len(terms):
        return None
    steps = {
        f"{name}_{step}": value
        for step, (term, added) in enumerate(zip(terms[rare:], most[rare:], strict=True))
        for name, value in (("term", term.text), ("rarity", term.rarity), ("most", added))
    }
    return len(terms) - rare, {**parameters, **_rare_and_common(terms, rare), **steps}


def _rare_and_common(terms: Sequence[_Term], rare: int) -> dict[str, list[Any]]:
    return {
        "rare": [term.text for term in terms[:rare]],
        "rarities": [term.rarity for term in terms[:rare]],
        "common": [term.text for term in terms[rare:]],
        "common_rarities": [term.rarity for term in terms[rare:]],
    }


@cache
def _seed_statement(conditions: str) -> Sql:
    tables = _RARE_SCORES.format(conditions=conditions)
    return Sql(f"with {tables} select coalesce(min(score), 0), count(*) from ({_SEED_SCORES}) found")


@cache
def _pruned_statement(common: int, conditions: str, all_equal: bool) -> Sql:
    """Return the statement that adds the common terms one by one, to the documents that can still be among the best."""
    # A little less, as the same sums in another order may differ in the last digit.
    tables = [
        _RARE_SCORES.format(conditions=conditions),
        f"least as materialized (select min(score) - 1e-9 as score from ({_SEED_SCORES}) found)",
    ]
    last = "rare"
    for step in range(common):
        # The limit keeps PostgreSQL from reading all postings of the term instead.
        tables.append(
            f"""added_{step} as materialized (
                select {last}.doc_id, {last}.score + coalesce(added.part, 0) as score from {last} left join lateral (
                    select {_SCORE_PART} as part from (
                        select p.length, :rarity_{step}::float8 as rarity, {_WEIGHTED_COUNT} as f from postings p
                        where p.term = :term_{step}::text collate "C" and p.doc_id = {last}.doc_id limit 1
                    ) found
                ) added on true where {last}.score + :most_{step}::float8 >= (select score from least)
            )"""
        )
        last = f"added_{step}"
    return Sql(f"with {', '.join(tables)} {_best_documents(last, '0', all_equal)}")


def stored_term(term: str) -> str:
    """Return what a term is stored as: itself, or a prefix with a hash if it is too long."""
    return (
        term if len(term) <= MAX_TERM_CHARS else f"{term[:MAX_TERM_CHARS]}{hashlib.sha256(term.encode()).hexdigest()}"
    )


def tsvector_windows(terms: Sequence[str]) -> Iterator[str]:
    """Yield the text of a tsvector for each window in which a phrase can begin."""
    # Up to the last term but one: a phrase has at least two terms.
    for start in range(0, len(terms) - 1, WINDOW_TERMS):
        yield _tsvector(terms[start : start + WINDOW_TERMS + OVERLAP_TERMS])


def _tsvector(terms: Sequence[str]) -> str:
    positions: dict[str, list[str]] = defaultdict(list)
    for position, term in enumerate(terms, 1):
        positions[stored_term(term)].append(f"{position}A" if position <= WINDOW_TERMS else str(position))
    return " ".join(f"{_quote(term)}:{','.join(labels)}" for term, labels in positions.items())


def _tsquery(terms: Sequence[str]) -> str:
    first, *rest = (_quote(stored_term(term)) for term in terms)
    return " <-> ".join([f"{first}:A", *rest])


def _quote(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
