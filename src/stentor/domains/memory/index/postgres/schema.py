"""Makes the index's schema, and opens the index over it.

Everything in it can be made again from the vault, so it has no migrations: a schema of another version is dropped.
"""

from __future__ import annotations

import logging

import psycopg

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.leader import INDEX_LOCK_ID
from stentor.core.db.postgres import PostgresDriver
from stentor.core.errors import StartRefused
from stentor.domains.memory.index.index import Index
from stentor.domains.memory.index.port import VectorStore
from stentor.domains.memory.index.postgres import extension
from stentor.domains.memory.index.postgres.extension import Extension
from stentor.domains.memory.index.postgres.matrix import SharedMatrixVectors
from stentor.domains.memory.index.postgres.tables import LOCK, SharedTables
from stentor.domains.memory.index.postgres.vectors import PgVectors
from stentor.domains.memory.index.postgres.words import PostgresWords

VERSION = 2
SCHEMA = "stentor_index"
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


def open_index(driver: PostgresDriver, name: str = "") -> Index:
    """The index of the default vault or a named one in this database, made when there is none.

    Raises StartRefused, StoreUnavailable.
    """
    found = extension.find(driver)
    schema = f"{SCHEMA}_{name}" if name else SCHEMA
    _prepare(driver, found, schema)
    tables = SharedTables(Database(_session(driver, found, schema)), lambda tx: _make(tx, found, schema))
    vectors: VectorStore = PgVectors(tables) if found.usable else SharedMatrixVectors(tables)
    return Index(tables, PostgresWords(), vectors, driver.name, shared=True, note=found.problem)


SPACE = 7_305_010
"""The lock of what writes to the index alone."""


def _session(driver: PostgresDriver, found: Extension, schema: str) -> PostgresDriver:
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
    return PostgresDriver(driver.url, None, [f"set {name} = {value}" for name, value in settings.items()], SPACE)


def _prepare(driver: PostgresDriver, found: Extension, schema: str) -> None:
    """Drop what is of another version or kind. Only a start does this: processes that run know what they made."""
    connection = _session(driver, found, schema).writer()
    try:
        tx = Tx(connection, connection.begin())
        tx.row(LOCK, lock=INDEX_LOCK_ID)
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


def _make(tx: Tx, found: Extension, schema: str) -> None:
    """What is not there."""
    if not _is_there(tx, schema):
        if not tx.rows(_SCHEMA, schema=schema):
            tx.run(Sql(f"create schema {schema}"))
        vectors = PgVectors if found.usable else SharedMatrixVectors
        for statement in f"{_STATEMENTS};{vectors.TABLES}".split(";"):
            tx.run(Sql(statement))
        tx.run(_STATE, **_state(found))


def _drop(tx: Tx, schema: str) -> None:
    """The tables, not the schema: who made that may be somebody else."""
    names = [row[0] for row in tx.rows(_TABLES, schema=schema)]
    tx.run(Sql("drop table " + ", ".join(f'{schema}."{name}"' for name in names)))


def _is_there(tx: Tx, schema: str) -> bool:
    return bool(tx.rows(_THERE, facts=f"{schema}.facts")[0][0])


def _state(found: Extension) -> dict[str, int]:
    return {"version": VERSION, "pgvector": int(found.usable)}
