"""The search index that several processes share: a tsvector for each task, in the database itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stentor.core.db import NO_LOCKS, Database, RowsSql, Sql, Tx
from stentor.domains.tasks.search.model import Phrase, Position, TaskText, split_words

MAX_POSITIONS = 16_383
"""A tsvector counts no further, so the words after that many are found, but not as parts of a phrase."""
MAX_WORD_POSITIONS = 255
"""Positions that a tsvector keeps of one word."""
WORDS_PER_MERGE = 200_000
"""New words that take 4 MB to 6 MB in the pending list of the index, which has room for 16 MB."""
_PUT = RowsSql(
    ("tenant", "task_id", "words"),
    """insert into task_search (tenant, task_id, words) select tenant, task_id, cast(words as tsvector) from given
    on conflict (tenant, task_id) do update set
        doc_id = nextval('task_search_documents'), words = excluded.words""",
)
_READ_POSITION = Sql("select number, event_id from task_search_position")
_DROP_POSITION = Sql("delete from task_search_position")
_SET_POSITION = Sql("insert into task_search_position (number, event_id) values (:number, :event_id)")
_FIND = Sql(
    """select doc_id, task_id from task_search
    where tenant = :tenant and words @@ cast(:query as tsquery) and doc_id < :before
    order by doc_id desc limit :limit"""
)
_CLEAR = Sql("delete from task_search")
# Only the owner of an index may do it. For another role autovacuum does it, or the insert that fills the list.
_MERGE = Sql(
    """select gin_clean_pending_list(oid) from pg_class
    where oid = cast('task_search_words' as regclass) and pg_has_role(relowner, 'usage')"""
)


class PostgresTaskIndex:
    """The tables `task_search...` of the database; `db` is not closed here."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._unmerged_words = 0

    async def read_position(self) -> Position | None:
        row = await self._db.read(lambda tx: tx.row(_READ_POSITION))
        return Position(*row) if row else None

    async def put(self, texts: Sequence[TaskText], position: Position) -> None:
        # Not in the writer's thread, in which all other commits would wait.
        rows, words = await asyncio.to_thread(_build_rows, texts)

        def work(tx: Tx) -> None:
            for put, params in _PUT.chunks(rows):
                tx.run(put, **params)
            tx.run(_DROP_POSITION)
            tx.run(_SET_POSITION, number=position.number, event_id=position.event_id)

        await self._db.write(work, NO_LOCKS)
        self._unmerged_words += words
        if self._unmerged_words >= WORDS_PER_MERGE:
            # On a connection for reads: the write that fills the list would merge it, while all commits wait for it.
            self._unmerged_words = 0
            await self._db.read(lambda tx: tx.rows(_MERGE))

    async def find(self, tenant: str, phrases: list[Phrase], before: int, limit: int) -> list[tuple[int, str]]:
        query = build_tsquery(phrases)
        rows = await self._db.read(lambda tx: tx.rows(_FIND, tenant=tenant, query=query, before=before, limit=limit))
        return [(int(doc_id), str(task_id)) for doc_id, task_id in rows]

    async def clear(self) -> None:
        def work(tx: Tx) -> None:
            tx.run(_CLEAR)
            tx.run(_DROP_POSITION)

        await self._db.write(work, NO_LOCKS)

    async def close(self) -> None:
        pass


def _build_rows(texts: Sequence[TaskText]) -> tuple[list[tuple[str, str, str]], int]:
    """Return the rows of the texts, and how many entries they have in the index."""
    rows, entries = [], 0
    for text in texts:
        words = split_words(text.text)
        entries += len(set(words))
        rows.append((text.tenant, text.task_id, build_tsvector(words)))
    return rows, entries


def build_tsvector(words: list[str]) -> str:
    """Return the words with their positions as the text of a tsvector. They need no escape, see `split_words`."""
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(words, 1):
        places = positions.setdefault(word, [])
        if len(places) < MAX_WORD_POSITIONS:
            places.append(min(position, MAX_POSITIONS))
    return " ".join(f"'{word}':{','.join(map(str, dict.fromkeys(places)))}" for word, places in positions.items())


def build_tsquery(phrases: list[Phrase]) -> str:
    """Return the text of a tsquery."""
    return " & ".join(f"({_phrase(phrase)})" for phrase in phrases)


def _phrase(phrase: Phrase) -> str:
    *others, last = (f"'{word}'" for word in phrase.words)
    return " <-> ".join([*others, last + (":*" if phrase.is_prefix else "")])
