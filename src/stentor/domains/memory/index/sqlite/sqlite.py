"""The search index of a single process: a SQLite file with keywords in FTS5, and vectors in memory.

A file that is missing, damaged or of another schema version is rebuilt empty; reconciliation with the vault fills it.
The index that several processes share is in `postgres/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sqlite.rebuildable import open_rebuildable
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.model import (
    MIN_LENGTH,
    Folders,
    IndexEntry,
    KeywordHit,
    KeywordQuery,
    ListExcluded,
)
from stentor.domains.memory.index.sqlite.in_memory_vectors import InMemoryVectorStore
from stentor.domains.memory.index.sqlite.term_ranking import TermRanking

SCHEMA_VERSION = 17
INDEX_FILE = "memory.db"

_STATEMENTS = """
create table documents (
    doc_id integer primary key,
    path text not null unique,
    folder text not null,
    name text not null,
    raw_hash text not null,
    content_hash text not null,
    size integer not null,
    modified_at integer not null,
    created_at integer not null,
    title text not null,
    tags text not null,
    tag_keys text not null,
    frontmatter text not null,
    problem text,
    weight real,
    head text not null default '',
    body text not null,
    full_body text,
    has_keys integer not null default 0,
    model text
);
create index documents_of_folder on documents (folder, size);
create index documents_by_time on documents (modified_at desc, path);
create index documents_of_name on documents (name);
create index documents_without_vectors on documents (size, doc_id) where model is null;
create table links (
    doc_id integer not null,
    name text not null,
    target text not null
);
create index links_of on links (doc_id);
create index links_to on links (name);
create table periods (doc_id integer primary key, valid_from integer, valid_to integer);
create table marks (doc_id integer not null, anchor text not null, claim text not null, mark text not null);
create index marks_of on marks (doc_id);
create table derivations (
    doc_id integer not null,
    ordinal integer not null,
    name text not null,
    text text not null,
    target text not null,
    anchor text not null
);
create index derivations_of on derivations (doc_id);
create index derivations_from on derivations (name);
create table invalid_sources (name text not null unique, mark text not null);
create table excluded (doc_id integer primary key, parent_id integer, text text not null, cause text not null);
create virtual table words using fts5(title, tags, content, tokenize='unicode61 remove_diacritics 0');
create virtual table terms using fts5vocab(words, instance);
create table chunks (
    doc_id integer not null,
    ordinal integer not null,
    heading text not null,
    hash text not null,
    primary key (doc_id, ordinal)
) without rowid;
create table vectors (
    model text not null,
    hash text not null,
    vector blob not null,
    primary key (model, hash)
) without rowid
"""


def open_index(folder: Path) -> SearchIndex:
    """Open the index in this folder, and create it if needed. Raises StartRefused if it cannot be created."""
    database = open_rebuildable(folder / INDEX_FILE, _STATEMENTS, SCHEMA_VERSION, kept="vectors")
    return SearchIndex(
        database, Fts5KeywordStore(), InMemoryVectorStore(database), database.driver.name, is_shared=False
    )


_READ_HITS = Sql(
    "select doc_id, path, title, body from documents where doc_id in (select value from json_each(:doc_ids))"
)
_LIST_FIRST = Sql(
    """select doc_id from documents where doc_id in (select value from json_each(:doc_ids))
    order by path limit :limit"""
)
_LIST_PAGE = Sql("select doc_id, path from documents where path > :after order by path limit :limit")
PAGE = 500
"""Documents that are read at a time, to find the first ones of many."""
_INSERT = Sql("insert into words (rowid, title, tags, content) values (:doc_id, :title, :tags, :content)")
_DELETE = Sql("delete from words where rowid = :doc_id")
_FILLER = "\ue000"
"""A term for FTS5's tokenizer (private use), but not for ours."""


class Fts5KeywordStore:
    """Implements `KeywordStore` with an FTS5 table over stemmed terms, which `TermRanking` reads."""

    def __init__(self) -> None:
        self._ranking = TermRanking()

    def insert(self, tx: Tx, doc_id: int, entry: IndexEntry) -> None:
        # FTS5 uses the number of terms as the length, so a short document is padded with terms that no query can
        # contain.
        fields = (entry.title_words, entry.tag_words, entry.body_words)
        length = sum(len(words.split()) for words in fields)
        content = f"{entry.body_words}{f' {_FILLER}' * (MIN_LENGTH - length)}"
        tx.run(_INSERT, doc_id=doc_id, title=entry.title_words, tags=entry.tag_words, content=content)
        tx.after_commit(partial(self._ranking.change, doc_id, max(MIN_LENGTH, length), fields))

    def delete(self, tx: Tx, doc_id: int) -> None:
        tx.run(_DELETE, doc_id=doc_id)
        tx.after_commit(partial(self._ranking.change, doc_id, None))

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
        scores, total = self._ranking.rank(tx, query, limit, folder, list_excluded)
        if len(scores) > limit:
            scores = _cut(tx, scores, limit)
        rows = tx.rows(_READ_HITS, doc_ids=jsontext.dump(list(scores)))
        hits = [KeywordHit(doc_id, path, title, body, scores[doc_id]) for doc_id, path, title, body in rows]
        return sorted(hits, key=lambda hit: (-hit.score, hit.path)), total


def _cut(tx: Tx, scores: Mapping[int, float], limit: int) -> dict[int, float]:
    """Return the best scores, of equal ones those of the first paths: ids follow the order of indexing."""
    lowest = min(scores.values())
    kept = {doc_id: score for doc_id, score in scores.items() if score > lowest}
    equal = [doc_id for doc_id, score in scores.items() if score == lowest]
    return kept | dict.fromkeys(_list_first(tx, equal, limit - len(kept)), lowest)


def _list_first(tx: Tx, doc_ids: Sequence[int], limit: int) -> list[int]:
    """Return the documents with the first paths."""
    wanted, first, after = frozenset(doc_ids), list[int](), ""
    # If they are many, some are probably among the first of all; if not, little was read in vain.
    for _ in range(len(doc_ids) // (2 * PAGE)):
        page = tx.rows(_LIST_PAGE, after=after, limit=PAGE)
        first += [doc_id for doc_id, _ in page if doc_id in wanted]
        if len(first) >= limit or len(page) < PAGE:
            return first[:limit]
        after = page[-1][1]
    return [row[0] for row in tx.rows(_LIST_FIRST, doc_ids=jsontext.dump(doc_ids), limit=limit)]
