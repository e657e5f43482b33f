"""Keyword search: FTS5 over terms, best first by BM25. The caller's text never becomes query syntax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.memory.text import words
from stentor.domains.memory.text.excerpt import excerpt

Field = Literal["title", "tags", "content"]
MatchMode = Literal["all", "any"]
FIELDS: tuple[Field, ...] = ("title", "tags", "content")
# The weights of the columns: a word in the title says more than one in the text. Bodies are read of the best alone.
_SEARCH = Sql(
    """select d.doc_id, d.path, d.title, d.body, best.rank from (
        select rowid, rank from words where words match :query and rank match 'bm25(5.0, 3.0, 1.0)'
        order by rank limit :limit) best
    join documents d on d.doc_id = best.rowid order by best.rank, d.path"""
)
_COUNT = Sql("select count(*) from words where words match :query")
_SEARCH_FOLDER = Sql(
    """select d.doc_id, d.path, d.title, d.body, best.rank from (
        select rowid, rank from words where words match :query and rank match 'bm25(5.0, 3.0, 1.0)'
            and rowid in (select doc_id from documents where folder = :folder)
        order by rank limit :limit) best
    join documents d on d.doc_id = best.rowid order by best.rank, d.path"""
)
_COUNT_FOLDER = Sql(
    """select count(*) from words where words match :query
    and rowid in (select doc_id from documents where folder = :folder)"""
)


class Hit(msgspec.Struct, frozen=True):
    """`score` is BM25's, larger is better."""

    doc_id: int
    path: str
    title: str
    body: str
    score: float


class Match(msgspec.Struct, frozen=True):
    path: str
    title: str
    excerpt: str
    relevance_score: float


def query_of(wanted: Sequence[str], fields: Sequence[Field], mode: MatchMode) -> str | None:
    """The FTS5 query; a text of several words is a phrase. None when there is no word to look for."""
    phrases = [" ".join(f'"{term}"' for term in found) for text in wanted if (found := words.terms(text))]
    if not phrases or not fields:
        return None
    together = [" + ".join(phrase.split(" ")) for phrase in dict.fromkeys(phrases)]
    joint = " AND " if mode == "all" else " OR "
    columns = "" if set(fields) == set(FIELDS) else "{" + " ".join(dict.fromkeys(fields)) + "} : "
    return f"{columns}({joint.join(together)})"


def find(tx: Tx, query: str, limit: int, folder: str | None = None) -> list[Hit]:
    """The best, of the whole vault or of one folder."""
    if folder is None:
        rows = tx.rows(_SEARCH, query=query, limit=limit)
    else:
        rows = tx.rows(_SEARCH_FOLDER, query=query, limit=limit, folder=folder)
    return [Hit(doc_id, path, title, body, -rank) for doc_id, path, title, body, rank in rows]


def count(tx: Tx, query: str, folder: str | None = None) -> int:
    row = tx.row(_COUNT, query=query) if folder is None else tx.row(_COUNT_FOLDER, query=query, folder=folder)
    return int(row[0]) if row else 0


def shown(hits: list[Hit], wanted: frozenset[str]) -> list[Match]:
    """With excerpts, and scores as shares of the best one."""
    best = max((hit.score for hit in hits), default=0.0) or 1.0
    return [Match(hit.path, hit.title, excerpt(hit.body, wanted), round(hit.score / best, 6)) for hit in hits]
