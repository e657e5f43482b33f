"""Makes the index's schema, and opens the index over it.

Everything in it can be made again from the vault, so it has no migrations: a schema of another version is dropped.

Transactions over the index's schema, one writer at a time among all processes.

Whether the database has pgvector, and what to do when it has not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec
import psycopg

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.leader import INDEX_LOCK_ID
from stentor.core.db.postgres import PostgresConnection, PostgresDriver, TableMissing
from stentor.core.errors import StartRefused
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.postgres.keywords import PostgresKeywordStore
from stentor.domains.memory.index.postgres.pgvector import PgvectorStore
from stentor.domains.memory.index.postgres.shared_vectors import SharedInMemoryVectorStore
from stentor.domains.memory.index.protocols import VectorStore

SCHEMA_VERSION = 2
SCHEMA_NAME = "stentor_index"
log = logging.getLogger(__name__)

# Paths and folders may be longer than a B-tree takes, so they are found by hash.
_STATEMENTS = """
create table documents (
    doc_id integer generated always as identity primary key,
    path text collate "C" not null,
    folder text collate "C" not null,
    raw_hash text not null,
    content_hash text not null,
    size bigint not null,
    modified_at bigint not null,
    created_at bigint not null,
    title text not null,
    tags text not null,
    frontmatter text not null,
    problem text,
    weight double precision,
    body text not null,
    model text,
    pieces integer not null default 0,
    exclude using hash (path with =)
);
create index documents_of_folder on documents using hash (folder);
create index documents_without_vectors on documents (size, doc_id) where model is null;
create index documents_with_pieces on documents (created_at) include (weight, doc_id) where pieces > 0;
create table postings (
    doc_id integer not null,
    length integer not null,
    content integer not null,
    title smallint not null,
    tags smallint not null,
    term text collate "C" not null
);
create index postings_of_term on postings (term, doc_id) include (length, content, title, tags);
create index postings_of_document on postings (doc_id);
create table lengths (doc_id integer primary key, length integer not null);
create table windows (
    doc_id integer not null,
    length integer not null,
    field smallint not null,
    words tsvector not null
);
create index windows_of_words on windows using gin (words) with (fastupdate = off);
create index windows_of_document on windows (doc_id);
create table claims (
    doc_id integer primary key,
    raw_hash text not null,
    holder text not null,
    until bigint not null
);
create table facts (name text primary key, value bigint not null)
"""
_THERE = Sql("select to_regclass(:facts) is not null")
_FACTS = Sql("select name, value from facts where name in ('version', 'pgvector')")
_SCHEMA = Sql("select 1 from pg_namespace where nspname = :schema")
_TABLES = Sql("select tablename from pg_tables where schemaname = :schema")
_STATE = Sql(
    """insert into facts (name, value) values ('version', :version), ('pgvector', :pgvector), ('documents', 0),
    ('terms', 0)"""
)


def open_index(driver: PostgresDriver, name: str = "") -> SearchIndex:
    """The index of the default vault or a named one in this database, made when there is none.

    Raises StartRefused, StoreUnavailable.
    """
    found = find_pgvector(driver)
    schema = f"{SCHEMA_NAME}_{name}" if name else SCHEMA_NAME
    _prepare(driver, found, schema)
    tables = SharedIndexDatabase(Database(_session(driver, found, schema)), lambda tx: _make(tx, found, schema))
    vectors: VectorStore = PgvectorStore(tables) if found.is_usable else SharedInMemoryVectorStore(tables)
    return SearchIndex(tables, PostgresKeywordStore(), vectors, driver.name, is_shared=True, warning=found.problem)


LOCK_SPACE = 7_305_010
"""The lock of what writes to the index alone."""


def _session(driver: PostgresDriver, found: PgvectorExtension, schema: str) -> PostgresDriver:
    """Commits need not be durable: what a crash of the server takes is found by comparing, like any difference.

    Every statement has its index, and must use it before anything is known of the tables, too.
    """
    settings = {
        "search_path": f'{schema}, "{found.schema}"',
        "synchronous_commit": "off",
        "enable_seqscan": "off",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        "hnsw.iterative_scan": "strict_order",
    }
    return PostgresDriver(driver.url, None, [f"set {name} = {value}" for name, value in settings.items()], LOCK_SPACE)


def _prepare(driver: PostgresDriver, found: PgvectorExtension, schema: str) -> None:
    """Drop what is of another version or kind. Only a start does this: processes that run know what they made."""
    connection = _session(driver, found, schema).writer()
    try:
        tx = Tx(connection, connection.begin())
        tx.row(ACQUIRE_LOCK, lock=INDEX_LOCK_ID)
        if _is_there(tx, schema) and dict(tx.rows(_FACTS)) != _state(found):
            log.warning("the search index is made anew: it is of another version, or pgvector came or went")
            _drop(tx, schema)
        _make(tx, found, schema)
        connection.commit()
    except psycopg.errors.InsufficientPrivilege as error:
        reason = str(error).partition("\n")[0]
        raise StartRefused(
            f"The search index cannot be made in the database ({reason}). Its owner can: CREATE SCHEMA {schema}"
            " AUTHORIZATION <the service's role>."
        ) from None
    finally:
        connection.close()


def _make(tx: Tx, found: PgvectorExtension, schema: str) -> None:
    """What is not there."""
    if not _is_there(tx, schema):
        if not tx.rows(_SCHEMA, schema=schema):
            tx.run(Sql(f"create schema {schema}"))
        vectors = PgvectorStore if found.is_usable else SharedInMemoryVectorStore
        for statement in f"{_STATEMENTS};{vectors.TABLES}".split(";"):
            tx.run(Sql(statement))
        tx.run(_STATE, **_state(found))


def _drop(tx: Tx, schema: str) -> None:
    """The tables, not the schema: who made that may be somebody else."""
    names = [row[0] for row in tx.rows(_TABLES, schema=schema)]
    tx.run(Sql("drop table " + ", ".join(f'{schema}."{name}"' for name in names)))


def _is_there(tx: Tx, schema: str) -> bool:
    return bool(tx.rows(_THERE, facts=f"{schema}.facts")[0][0])


def _state(found: PgvectorExtension) -> dict[str, int]:
    return {"version": SCHEMA_VERSION, "pgvector": int(found.is_usable)}


T = TypeVar("T")
logger = logging.getLogger(__name__)

ACQUIRE_LOCK = Sql("select pg_advisory_xact_lock(:lock)")


class SharedIndexDatabase:
    """Implements the port `Store`. A schema that was dropped is made anew, empty, by whoever misses it first.

    Writes wait for each other, as they do in one process. They are short, and two processes that index the same
    notes at the same time can neither deadlock nor insert a note twice.
    """

    def __init__(self, database: Database, make: Callable[[Tx], None]) -> None:
        self._database = database
        self._make = make

    async def read(self, fn: Callable[[Tx], T]) -> T:
        try:
            return await self._database.read(fn)
        except TableMissing:
            await self._make_anew()
            raise

    async def write(self, fn: Callable[[Tx], T]) -> T:
        try:
            return await self._database.write(lambda tx: _locked(tx, fn))
        except TableMissing:
            await self._make_anew()
            raise

    async def _make_anew(self) -> None:
        logger.warning("the tables of the search index are gone: they are made anew")
        await self._database.write(lambda tx: _locked(tx, self._make))

    def close(self) -> None:
        self._database.close()


def _locked(tx: Tx, fn: Callable[[Tx], T]) -> T:
    tx.row(ACQUIRE_LOCK, lock=INDEX_LOCK_ID)
    return fn(tx)


MIN_PGVECTOR_VERSION = (0, 8)
"""The first version whose index scans go on until enough rows pass the filters."""
_FIND_EXTENSION = Sql(
    """select e.extversion, n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector'"""
)
_CREATE_EXTENSION = Sql("create extension if not exists vector schema public")


class PgvectorExtension(msgspec.Struct, frozen=True):
    """`schema` is where its types are; `problem` says why it is not used and how it could be."""

    schema: str = "public"
    problem: str | None = None

    @property
    def is_usable(self) -> bool:
        return self.problem is None


def find_pgvector(driver: PostgresDriver) -> PgvectorExtension:
    """Looks for it, and makes it where that is allowed. Raises StoreUnavailable."""
    connection = driver.writer()
    try:
        known = connection.rows(_FIND_EXTENSION, {})
        if not known:
            _create_extension(connection)
            known = connection.rows(_FIND_EXTENSION, {})
    except psycopg.Error as error:
        reason = str(error).strip().partition("\n")[0]
        return PgvectorExtension(
            problem=f"pgvector cannot be made ({reason}); a superuser can: CREATE EXTENSION vector"
        )
    finally:
        connection.close()
    ((version, schema),) = known
    if _parse_version(version) < MIN_PGVECTOR_VERSION:
        old = f"pgvector is {version}, and 0.8 is the first that serves; a superuser can: ALTER EXTENSION vector UPDATE"
        return PgvectorExtension(schema, old)
    return PgvectorExtension(schema)


def _create_extension(connection: PostgresConnection) -> None:
    """Two processes at once would get into each other's way."""
    connection.begin()
    try:
        connection.rows(Sql("select pg_advisory_xact_lock(:lock)"), {"lock": INDEX_LOCK_ID})
        connection.run(_CREATE_EXTENSION, {})
        connection.commit()
    finally:
        connection.rollback()


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
