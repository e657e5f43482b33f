"""The search index of a single process: FTS5 in a file of its own, so that it delays no commit of a task.

The words are stored without the texts, which the database has. FTS5 cannot remove such a document, so a task that is
put again gets a new one, and nothing refers to the old one any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from stentor.core.db import NO_LOCKS, Sql, Tx
from stentor.core.db.sqlite.rebuildable import open_rebuildable
from stentor.domains.tasks.search.model import MAX_WORD_CHARACTERS, Phrase, Position, TaskText, split_words

INDEX_FILE = "search.db"
SCHEMA_VERSION = 2
_STATEMENTS = """
create table documents (
    doc_id integer primary key,
    tenant text not null,
    task_id text not null,
    unique (tenant, task_id)
);
create virtual table words using fts5(tenant, body, content='', tokenize='unicode61 remove_diacritics 2');
create table position (number integer not null, event_id text not null)
"""
_LAST_ID = Sql("select coalesce(max(doc_id), 0) from documents")
_PUT = Sql("insert or replace into documents (doc_id, tenant, task_id) values (:doc_id, :tenant, :task_id)")
_PUT_WORDS = Sql("insert into words (rowid, tenant, body) values (:doc_id, :token, :body)")
_READ_POSITION = Sql("select number, event_id from position")
_DROP_POSITION = Sql("delete from position")
_SET_POSITION = Sql("insert into position (number, event_id) values (:number, :event_id)")
_FIND = Sql(
    """select w.rowid, d.task_id from words w join documents d on d.doc_id = w.rowid
    where words match :query and w.rowid < :before order by w.rowid desc limit :limit"""
)
_LONG_WORD = re.compile(f"[a-zA-Z0-9]{{{MAX_WORD_CHARACTERS + 1}}}")
_CLEAR = (
    Sql("insert into words (words) values ('delete-all')"),
    Sql("delete from documents"),
    Sql("delete from position"),
)


class SqliteTaskIndex:
    """The index in a folder. Raises StartRefused if it cannot be created."""

    def __init__(self, folder: Path) -> None:
        self._db = open_rebuildable(folder / INDEX_FILE, _STATEMENTS, SCHEMA_VERSION)

    async def read_position(self) -> Position | None:
        row = await self._db.read(lambda tx: tx.row(_READ_POSITION))
        return Position(*row) if row else None

    async def put(self, texts: Sequence[TaskText], position: Position) -> None:
        await self._db.write(lambda tx: _put(tx, texts, position), NO_LOCKS)

    async def find(self, tenant: str, phrases: list[Phrase], before: int, limit: int) -> list[tuple[int, str]]:
        query = build_fts5_query(tenant, phrases)
        rows = await self._db.read(lambda tx: tx.rows(_FIND, query=query, before=before, limit=limit))
        return [(int(doc_id), str(task_id)) for doc_id, task_id in rows]

    async def clear(self) -> None:
        await self._db.write(lambda tx: [tx.run(statement) for statement in _CLEAR], NO_LOCKS)

    async def close(self) -> None:
        self._db.close()


def _put(tx: Tx, texts: Sequence[TaskText], position: Position) -> None:
    # Never reuses the id of a document, because its words are still there: each id is replaced by a greater one.
    numbered = list(enumerate(texts, int(tx.rows(_LAST_ID)[0][0]) + 1))
    tx.many(_PUT, [{"doc_id": n, "tenant": text.tenant, "task_id": text.task_id} for n, text in numbered])
    words = [{"doc_id": n, "token": tenant_token(text.tenant), "body": _to_body(text.text)} for n, text in numbered]
    tx.many(_PUT_WORDS, words)
    # In one transaction with the words, so that a crash in between misses no event.
    tx.run(_DROP_POSITION)
    tx.run(_SET_POSITION, number=position.number, event_id=position.event_id)


def _to_body(text: str) -> str:
    # FTS5 splits ASCII as `split_words` does, but faster; it does not truncate words, and it treats other letters
    # differently.
    return text if text.isascii() and not _LONG_WORD.search(text) else " ".join(split_words(text))


@lru_cache(maxsize=64)
def tenant_token(tenant: str) -> str:
    """Return the one word that stands for a tenant in the index, so that a search reads no other tenant's tasks."""
    return "t" + sha256(tenant.encode()).hexdigest()[:24]


def build_fts5_query(tenant: str, phrases: list[Phrase]) -> str:
    """Return the query in FTS5's syntax; words hold letters and digits only, so nothing needs to be escaped."""
    found = " AND ".join(f'"{" ".join(phrase.words)}"' + (" *" if phrase.is_prefix else "") for phrase in phrases)
    return f"tenant : {tenant_token(tenant)} AND body : ({found})"
