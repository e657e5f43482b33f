"""Creates and opens the search index that several processes share, in a PostgreSQL schema of its own.

The index is derived from the vault, so it has no migrations: a schema of another version is dropped and created again.
Also decides whether pgvector can be used. The index of a single process is in `sqlite/`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import psycopg

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.locks.leader import INDEX_LOCK_ID
from stentor.core.db.postgres.connection import PostgresConnection, TableMissing
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.postgres.keywords import PostgresKeywordStore
from stentor.domains.memory.index.postgres.pgvector import PgvectorStore
from stentor.domains.memory.index.postgres.shared_vectors import SharedInMemoryVectorStore
from stentor.domains.memory.index.protocols import VectorStore

SCHEMA_VERSION = 15
SCHEMA_NAME = "stentor_index"
LOCK_SPACE = 7_305_010
"""Namespace of the driver's own advisory locks, so that index writes do not wait for other writes of the service."""
MIN_PGVECTOR_VERSION = (0, 8)
"""The first version with iterative index scans, which continue until enough rows pass the filters."""
T = TypeVar("T")
log = logging.getLogger(__name__)

# Hash indexes, because paths, folders and names may exceed the size limit of a B-tree entry.
_STATEMENTS = """
create table documents (
    doc_id integer generated always as identity primary key,
    path text collate "C" not null,
    folder text collate "C" not null,
    name text collate "C" not null,
    raw_hash text not null,
    content_hash text not null,
    size bigint not null,
    modified_at bigint not null,
    created_at bigint not null,
    title text not null,
    tags text not null,
    tag_keys text not null,
    frontmatter text not null,
    problem text,
    weight double precision,
    head text not null default '',
    body text not null,
    full_body text,
    has_keys integer not null default 0,
    model text,
    pieces integer not null default 0,
    exclude using hash (path with =)
);
create index documents_of_folder on documents using hash (folder);
create index documents_of_name on documents using hash (name);
create index documents_without_vectors on documents (size, doc_id) where model is null;
create table links (
    doc_id integer not null,
    name text collate "C" not null,
    target text collate "C" not null
);
create index links_of on links (doc_id);
create index links_to on links using hash (name);
create table periods (doc_id integer primary key, valid_from bigint, valid_to bigint);
create table marks (doc_id integer not null, anchor text not null, claim text not null, mark text not null);
create index marks_of on marks (doc_id);
create table derivations (
    doc_id integer not null,
    ordinal integer not null,
    name text collate "C" not null,
    text text not null,
    target text not null,
    anchor text not null
);
create index derivations_of on derivations (doc_id);
create index derivations_from on derivations using hash (name);
create table invalid_sources (name text collate "C" not null, mark text not null);
create table excluded (doc_id integer primary key, parent_id integer, text text not null, cause text not null);
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
ACQUIRE_LOCK = Sql("select pg_advisory_xact_lock(:lock)")
_FIND_TABLES = Sql("select to_regclass(:facts) is not null")
_READ_STATE = Sql("select name, value from facts where name in ('version', 'pgvector')")
_READ_VERSION = Sql("select value from facts where name = 'version'")
_FIND_SCHEMA = Sql("select 1 from pg_namespace where nspname = :schema")
_LIST_TABLES = Sql("select tablename from pg_tables where schemaname = :schema")
_INSERT_STATE = Sql(
    """insert into facts (name, value) values ('version', :version), ('pgvector', :pgvector), ('documents', 0),
    ('terms', 0)"""
)
_FIND_EXTENSION = Sql(
    """select e.extversion, n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector'"""
)
_REPLACED = (
    "The search index belongs to another version of the service, and only instances of that version can fill it. "
    "Replace or stop this instance: while it watches the vault, they cannot."
)
_CREATE_EXTENSION = Sql("create extension if not exists vector schema public")


class PgvectorExtension(msgspec.Struct, frozen=True):
    """The pgvector extension: the schema of its types, and why it cannot be used and how to fix that."""

    schema: str = "public"
    problem: str | None = None

    @property
    def is_usable(self) -> bool:
        return self.problem is None


class SharedIndexDatabase:
    """Implements `IndexDatabase` for several processes.

    Writes are serialized by one advisory lock. They are short, and so two processes that index the same notes can
    neither deadlock nor insert a note twice. If the tables are missing because the schema was dropped, the process that
    notices first creates them again, empty; the failed call still raises. After the start of another version has
    replaced the tables, a write raises StoreUnavailable: this version would fill them with other words.
    """

    def __init__(self, database: Database, create_tables: Callable[[Tx], None]) -> None:
        self._database = database
        self._create_tables = create_tables

    async def read(self, fn: Callable[[Tx], T]) -> T:
        try:
            return await self._database.read(fn)
        except TableMissing:
            await self._rebuild()
            raise

    async def write(self, fn: Callable[[Tx], T]) -> T:
        try:
            result = await self._database.write(lambda tx: _with_lock(tx, partial(_write, fn)))
        except TableMissing:
            await self._rebuild()
            raise
        # Not in the transaction, which would log it each time as a failure of the database.
        if result is None:
            raise StoreUnavailable(_REPLACED)
        return result[0]

    async def _rebuild(self) -> None:
        log.warning("index: rebuilding reason=tables_missing")
        await self._database.write(lambda tx: _with_lock(tx, self._create_tables))

    def close(self) -> None:
        self._database.close()


def open_index(driver: PostgresDriver, name: str = "") -> SearchIndex:
    """Open the index of the default vault or a named one, and create it if needed.

    Raises StartRefused, StoreUnavailable.
    """
    extension = find_pgvector(driver)
    schema = f"{SCHEMA_NAME}_{name}" if name else SCHEMA_NAME
    _prepare(driver, extension, schema)
    database = SharedIndexDatabase(
        Database(_session(driver, extension, schema)), lambda tx: _create_tables(tx, extension, schema)
    )
    vectors: VectorStore = PgvectorStore(database) if extension.is_usable else SharedInMemoryVectorStore(database)
    return SearchIndex(
        database, PostgresKeywordStore(), vectors, driver.name, is_shared=True, warning=extension.problem
    )


def find_pgvector(driver: PostgresDriver) -> PgvectorExtension:
    """Find the extension, and create it if the role may. Raises StoreUnavailable."""
    connection = driver.writer()
    try:
        rows = connection.rows(_FIND_EXTENSION, {})
        if not rows:
            _create_extension(connection)
            rows = connection.rows(_FIND_EXTENSION, {})
    except (psycopg.Error, StoreUnavailable) as error:
        cause = error if isinstance(error, psycopg.Error) else _missing_right(error)
        reason = str(cause).strip().partition("\n")[0]
        return PgvectorExtension(
            problem=f"pgvector cannot be created ({reason}); a superuser can run: CREATE EXTENSION vector, "
            "once the package pgvector is installed on the server"
        )
    finally:
        connection.close()
    ((version, schema),) = rows
    if _parse_version(version) < MIN_PGVECTOR_VERSION:
        problem = f"pgvector is {version}, but 0.8 is required; a superuser can run: ALTER EXTENSION vector UPDATE"
        return PgvectorExtension(schema, problem)
    return PgvectorExtension(schema)


def _session(driver: PostgresDriver, extension: PgvectorExtension, schema: str) -> PostgresDriver:
    """Return a driver whose connections use the index's schema and settings."""
    settings = {
        "search_path": f'{schema}, "{extension.schema}"',
        # Commits need not be durable: reconciliation finds what a crash of the server loses.
        "synchronous_commit": "off",
        # Every statement has its index, and must use it also while the planner has no statistics of the tables.
        "enable_seqscan": "off",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        "hnsw.iterative_scan": "strict_order",
    }
    return driver.with_settings(settings, LOCK_SPACE)


def _prepare(driver: PostgresDriver, extension: PgvectorExtension, schema: str) -> None:
    """Create the tables, and drop those of another version or vector store first.

    Only a start may drop tables: running processes rely on the ones that they opened.
    """
    connection = _session(driver, extension, schema).writer()
    try:
        tx = Tx(connection, connection.begin())
        tx.row(ACQUIRE_LOCK, lock=INDEX_LOCK_ID)
        if _has_tables(tx, schema) and dict(tx.rows(_READ_STATE)) != _state(extension):
            log.warning("index: rebuilding reason=version_or_pgvector_changed")
            _drop_tables(tx, schema)
        _create_tables(tx, extension, schema)
        connection.commit()
    except StoreUnavailable as error:
        reason = str(_missing_right(error)).partition("\n")[0]
        raise StartRefused(
            f"The search index cannot be created in the database ({reason}). The database's owner can run:"
            f" CREATE SCHEMA {schema} AUTHORIZATION <the service's role>."
        ) from None
    finally:
        connection.close()


def _create_tables(tx: Tx, extension: PgvectorExtension, schema: str) -> None:
    """Create the schema and its tables if they do not exist."""
    if not _has_tables(tx, schema):
        if not tx.rows(_FIND_SCHEMA, schema=schema):
            tx.run(Sql(f"create schema {schema}"))
        vectors = PgvectorStore if extension.is_usable else SharedInMemoryVectorStore
        for statement in f"{_STATEMENTS};{vectors.TABLES}".split(";"):
            tx.run(Sql(statement))
        tx.run(_INSERT_STATE, **_state(extension))


def _drop_tables(tx: Tx, schema: str) -> None:
    """Drop the tables but not the schema, which the database's owner may have created for this role."""
    names = [row[0] for row in tx.rows(_LIST_TABLES, schema=schema)]
    tx.run(Sql("drop table " + ", ".join(f'{schema}."{name}"' for name in names)))


def _has_tables(tx: Tx, schema: str) -> bool:
    return bool(tx.rows(_FIND_TABLES, facts=f"{schema}.facts")[0][0])


def _state(extension: PgvectorExtension) -> dict[str, int]:
    return {"version": SCHEMA_VERSION, "pgvector": int(extension.is_usable)}


def _with_lock(tx: Tx, fn: Callable[[Tx], T]) -> T:
    tx.row(ACQUIRE_LOCK, lock=INDEX_LOCK_ID)
    return fn(tx)


def _write(fn: Callable[[Tx], T], tx: Tx) -> tuple[T] | None:
    """Return the result of `fn`; None if another version has replaced the tables."""
    return (fn(tx),) if tx.row(_READ_VERSION) == (SCHEMA_VERSION,) else None


def _missing_right(error: StoreUnavailable) -> psycopg.errors.InsufficientPrivilege:
    """Return the right that the role lacks; raise the error again if it has another cause."""
    if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
        raise error
    return error.__cause__


def _create_extension(connection: PostgresConnection) -> None:
    connection.begin()
    try:
        # `create extension if not exists` fails with a unique violation if two processes run it at the same time.
        connection.rows(ACQUIRE_LOCK, {"lock": INDEX_LOCK_ID})
        connection.run(_CREATE_EXTENSION, {})
        connection.commit()
    finally:
        # Does nothing after a commit.
        connection.rollback()


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
