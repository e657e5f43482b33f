"""Words in FTS5, over terms, best first by BM25."""

from __future__ import annotations

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import Entry, Folders, listed
from stentor.domains.memory.index.query import FIELDS, WEIGHTS, Hit, Query

_RANK = f"bm25({', '.join(str(WEIGHTS[field]) for field in FIELDS)})"
# Bodies are read of the best alone.
_SEARCH = Sql(
    f"""select d.doc_id, d.path, d.title, d.body, best.rank from (
        select rowid, rank from words where words match :query and rank match '{_RANK}' order by rank limit :limit
    ) best join documents d on d.doc_id = best.rowid order by best.rank, d.path"""  # noqa: S608 - names of ours
)
_COUNT = Sql("select count(*) from words where words match :query")
_SEARCH_FOLDER = Sql(
    f"""select d.doc_id, d.path, d.title, d.body, best.rank from (
        select rowid, rank from words where words match :query and rank match '{_RANK}'
            and rowid in (select doc_id from documents where folder in (select value from json_each(:folders)))
        order by rank limit :limit
    ) best join documents d on d.doc_id = best.rowid order by best.rank, d.path"""  # noqa: S608 - names of ours
)
_COUNT_FOLDER = Sql(
    """select count(*) from words where words match :query
    and rowid in (select doc_id from documents where folder in (select value from json_each(:folders)))"""
)
_PUT = Sql("insert into words (rowid, title, tags, content) values (:doc_id, :title, :tags, :content)")
_FORGET = Sql("delete from words where rowid = :doc_id")


class Fts5Words:
    """Implements the port `WordStore`."""

    def put(self, tx: Tx, doc_id: int, entry: Entry) -> None:
        tx.run(_PUT, doc_id=doc_id, title=entry.title_words, tags=entry.tag_words, content=entry.body_words)

    def forget(self, tx: Tx, doc_id: int) -> None:
        tx.run(_FORGET, doc_id=doc_id)

    def find(self, tx: Tx, query: Query, limit: int, folder: Folders | None, *, counted: bool) -> tuple[list[Hit], int]:
        search, count = (_SEARCH, _COUNT) if folder is None else (_SEARCH_FOLDER, _COUNT_FOLDER)
        asked = {"query": match(query)} | ({} if folder is None else {"folders": jsontext.dump(listed(folder))})
        rows = tx.rows(search, limit=limit, **asked)
        hits = [Hit(doc_id, path, title, body, -rank) for doc_id, path, title, body, rank in rows]
        return hits, int(tx.rows(count, **asked)[0][0]) if counted else 0


def match(query: Query) -> str:
    """The query as FTS5 has it."""
    phrases = [" + ".join(f'"{term}"' for term in phrase) for phrase in query.phrases]
    columns = "" if query.fields == set(FIELDS) else "{" + " ".join(sorted(query.fields)) + "} : "
    return f"{columns}({(' AND ' if query.mode == 'all' else ' OR ').join(phrases)})"
