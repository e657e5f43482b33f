"""Search indexes over each database, and documents and vectors to put into them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psycopg
from numpy.typing import NDArray

from stentor.core.db.postgres.driver import PostgresDriver
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.model import (
    SEARCH_FIELDS,
    EmbeddingModel,
    IndexEntry,
    MatchMode,
    PendingDocument,
    SearchField,
    SearchFilters,
    build_query,
    parse_entry,
)
from stentor.domains.memory.index.postgres import schema as postgres
from stentor.domains.memory.index.sqlite import sqlite
from stentor_vault.notes import frontmatter
from stentor_vault.notes.model import Note, Stat
from stentor_vault.text.markdown import Chunk

KINDS = ["sqlite", "postgresql", "postgresql without pgvector"]
MODEL = EmbeddingModel("a model", 8)
PASSWORD = "plain-role-51c0"


def document(path: str, text: str, at: int = 1, **values: Any) -> IndexEntry:
    """A note as the index takes it; `at` is when it was changed."""
    raw = frontmatter.edit(text, values).encode()
    made = parse_entry(Note(Stat(path, len(raw), at, at), raw))
    assert made is not None
    return made


async def fill(index: SearchIndex, *entries: IndexEntry) -> list[int]:
    return list((await index.upsert(entries, [], 1, force=False)).values())


async def found(
    index: SearchIndex,
    *wanted: str,
    fields: Sequence[SearchField] = SEARCH_FIELDS,
    mode: MatchMode = "any",
    folder: str | None = None,
) -> list[str]:
    """The paths, best first."""
    return list(await scores(index, *wanted, fields=fields, mode=mode, folder=folder))


async def scores(
    index: SearchIndex,
    *wanted: str,
    fields: Sequence[SearchField] = SEARCH_FIELDS,
    mode: MatchMode = "any",
    folder: str | None = None,
) -> dict[str, float]:
    query = build_query(wanted, fields, mode)
    if query is None:
        return {}
    hits, total, _ = await index.search_keywords(query, 1000, folder)
    assert total == len(hits)
    return {hit.path: hit.score for hit in hits}


Vector = NDArray[np.float32]


def unit(*numbers: float) -> Vector:
    """A vector of length 1 in the direction of these numbers; the rest is 0."""
    vector = np.zeros(MODEL.dimensions, np.float32)
    vector[: len(numbers)] = numbers
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def chunks(*texts: str) -> list[Chunk]:
    return [Chunk(n, f"part {n}", text) for n, text in enumerate(texts)]


async def embed(index: SearchIndex, vectors: dict[str, list[Vector]]) -> None:
    """Give every document that waits the vectors of its path; the texts of its chunks are the path and a number."""
    while waiting := await index.vectors.next_pending(50):
        for one in waiting:
            rows = vectors[one.path]
            assert await index.vectors.save(one, chunks(*(f"{one.path} {n}" for n in range(len(rows)))), np.stack(rows))


async def one_waiting(index: SearchIndex) -> PendingDocument:
    (one,) = await index.vectors.next_pending(10)
    return one


async def near(index: SearchIndex, vector: Vector, most: int = 10, **filters: Any) -> tuple[list[str], int]:
    """Paths, best first, and how many pass."""
    hits, total = await index.vectors.nearest(vector, most, SearchFilters(**filters))
    rows = await index.read_rows([hit.doc_id for hit in hits])
    return [rows[hit.doc_id].path for hit in hits], total


@contextmanager
def plain_role(url: str) -> Iterator[str]:
    """The address of the database for a role that owns it and may not make pgvector."""
    name = f"plain_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as admin:
        database = admin.info.dbname
        admin.execute(f"create role {name} login password '{PASSWORD}'".encode())
        admin.execute(f'alter database "{database}" owner to {name}'.encode())
    head, _, rest = url.partition("://")
    yield f"{head}://{name}:{quote(PASSWORD)}@{rest.rpartition('@')[2] if '@' in rest else rest}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f'alter database "{database}" owner to current_user'.encode())
        # Services of the test may still ask: what waits for each other would be a deadlock.
        admin.execute(f"alter role {name} nologin".encode())
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (name,))
        admin.execute(f"drop owned by {name}".encode())
        admin.execute(f"drop role {name}".encode())


def open_kind(kind: str, folder: Path, url: str) -> SearchIndex:
    return sqlite.open_index(folder) if kind == "sqlite" else postgres.open_index(PostgresDriver(url))


async def opened(kind: str, folder: Path, url: str) -> AsyncIterator[SearchIndex]:
    index = open_kind(kind, folder, url)
    yield index
    await asyncio.to_thread(index.close)
