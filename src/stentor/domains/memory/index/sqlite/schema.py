"""Opens the index file; one that is missing, damaged or of another version is made anew, empty."""

from __future__ import annotations

import logging
from pathlib import Path

from stentor.core.db import Database, Sql
from stentor.core.db.driver import DbConnection
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.domains.memory.index.dense.vectors import MatrixVectors
from stentor.domains.memory.index.index import Index
from stentor.domains.memory.index.sqlite.words import Fts5Words

VERSION = 3
FILE = "memory.db"
log = logging.getLogger(__name__)

_STATEMENTS = """
create table documents (
    doc_id integer primary key,
    path text not null unique,
    folder text not null,
    raw_hash text not null,
    content_hash text not null,
    size integer not null,
    modified_at integer not null,
    created_at integer not null,
    title text not null,
    tags text not null,
    frontmatter text not null,
    problem text,
    weight real,
    body text not null,
    model text
);
create index documents_of_folder on documents (folder);
create index documents_without_vectors on documents (size, doc_id) where model is null;
create virtual table words using fts5(title, tags, content, tokenize='unicode61 remove_diacritics 0');
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
) without rowid;
create table facts (name text primary key, value integer not null) without rowid
"""
_VERSION = Sql("select value from facts where name = 'version'")


def open_index(folder: Path) -> Index:
    """The index in this folder, with a writer of its own. Raises StartRefused when it cannot be made."""
    tables = _open(folder)
    return Index(tables, Fts5Words(), MatrixVectors(tables), tables.driver.name, shared=False)


def _open(folder: Path) -> Database:
    path = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _usable(path):
            _remove(path)
            _make(path)
    except (OSError, StoreUnavailable) as error:
        raise StartRefused(f"The search index {path} cannot be made: {error}.") from None
    # What a power cut takes of it is found again by comparing; the database is never torn by one.
    return Database(SqliteDriver(path, durable=False))


def _usable(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        connection = SqliteDriver(path).writer()
    except StoreUnavailable as error:
        log.warning("the search index is made anew: %s", error.message)
        return False
    try:
        rows = connection.rows(_VERSION, {})
        return bool(rows) and rows[0][0] == VERSION
    except StoreUnavailable as error:
        log.warning("the search index is made anew: %s", error.message)
        return False
    finally:
        connection.close()


def _make(path: Path) -> None:
    connection: DbConnection = SqliteDriver(path).writer()
    try:
        connection.begin()
        for statement in _STATEMENTS.split(";"):
            connection.control(statement)
        connection.run(Sql("insert into facts (name, value) values ('version', :n)"), {"n": VERSION})
        connection.commit()
    finally:
        connection.close()


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
