"""Databases that tests in one process use one after another: emptied in between, with their connections still open.

A new one costs more than most tests do: PostgreSQL copies hundreds of files, and each connection learns the schema. A
database is used again only if its test left nothing but rows in it: the same schema, and no connection in use.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from stentor.core.clock import Clock
from stentor.core.db.postgres.connection import PostgresConnection
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteConnection, SqliteDriver

C = TypeVar("C", SqliteConnection, PostgresConnection)

FRESH = (
    "tests/bench/",
    "tests/cli/",
    "tests/conformance/",
    "tests/core/",
    "tests/deploy/",
    "tests/domains/llm/test_providers.py",
    "tests/domains/sandbox/",
    "tests/domains/steps/test_steps.py",
    "tests/faults/",
    "tests/processes/",
    "tests/surfaces/gateway/test_monitoring.py",
)
"""Tests of the databases themselves, those that look for their files, and those of programs that need a database in
which nobody serves, as an idle connection of a writer shows: each has its own in its own folder."""
MAX_BYTES = 8_000_000
"""A file or a table that has grown larger is not used again."""
MAX_USES = 100
SCHEMA_VERSION = "alembic_version"


def may_reuse(nodeid: str) -> bool:
    return not nodeid.startswith(FRESH)


class Connections(Generic[C]):
    """The connections to one database: those in use, and those that wait for the next test."""

    def __init__(self, is_usable: Callable[[C], bool]) -> None:
        self._is_usable = is_usable
        self._is_open = True
        self._close = dict[C, Callable[[], None]]()
        self.used = set[C]()
        self.idle = defaultdict[Hashable, list[C]](list)

    def take(self, kind: Hashable, open_one: Callable[[], C], **of_driver: object) -> C:
        """Return a connection of this kind, with what it has of its driver. Its `close` gives it back."""
        connection = self.idle[kind].pop() if self.idle[kind] else open_one()
        self._close.setdefault(connection, connection.close)
        vars(connection).update(of_driver, close=partial(self._give_back, kind, connection))
        self.used.add(connection)
        return connection

    def _give_back(self, kind: Hashable, connection: C) -> None:
        if connection not in self.used:
            return
        self.used.discard(connection)
        connection.rollback()
        if self._is_open and self._is_usable(connection):
            self.idle[kind].append(connection)
        else:
            self._close.pop(connection)()

    def close(self) -> None:
        """Close those that are not in use. The others close themselves when they are given back."""
        self._is_open = False
        for idle in self.idle.values():
            while idle:
                self._close.pop(idle.pop())()


class SqliteFile:
    """A file with the schema."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections = Connections[SqliteConnection](lambda connection: True)
        self._own = SqliteDriver(path).writer()
        self._raw = self._own._raw
        names = self._raw.execute("select name from sqlite_master where type = 'table'").fetchall()
        filled = (f"select '{name}' where exists (select 1 from {name})" for (name,) in names if name != SCHEMA_VERSION)
        self._filled = " union all ".join(filled)
        self._schema = self._describe()

    def empty(self) -> bool:
        """Delete all rows; returns whether another test may use the file."""
        if self.connections.used or self.path.stat().st_size > MAX_BYTES:
            return False
        try:
            if self._describe() != self._schema:
                return False
            if filled := self._raw.execute(self._filled).fetchall():
                # So that tables may be emptied in any order.
                deletions = ";".join(f"delete from {name}" for (name,) in filled)
                self._raw.executescript(f"pragma foreign_keys=off; begin immediate; {deletions}; commit")
        except sqlite3.Error:
            return False
        return True

    def close(self) -> None:
        self.connections.close()
        self._own.close()

    def _describe(self) -> tuple[object, ...]:
        """What changes when a test changes more than rows."""
        version = self._raw.execute(f"select * from {SCHEMA_VERSION}").fetchall()
        return self.path.stat().st_ino, version, *self._raw.execute("pragma schema_version").fetchone()


class ReusedSqliteDriver(SqliteDriver):
    """A driver of such a file. `path` is a link to it, in the test's own folder."""

    def __init__(self, file: SqliteFile, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._file = file

    def writer(self) -> SqliteConnection:
        return self._take("writer", super().writer)

    def reader(self, *, may_idle: bool = False) -> SqliteConnection:
        return self._take("reader", super().reader)

    def _take(self, kind: str, open_one: Callable[[], SqliteConnection]) -> SqliteConnection:
        connection = self._file.connections.take(kind, open_one, _clock=self._clock, _path=self.path)
        connection._raw.text_factory = str
        return connection


class SqliteFiles:
    """Hands out files; `create` makes one with the schema at a path in the folder."""

    def __init__(self, folder: Path, create: Callable[[Path], Path]) -> None:
        self._folder = folder
        self._create = create
        self._idle: list[SqliteFile] = []
        self._count = 0

    @contextmanager
    def driver(self, path: Path, clock: Clock) -> Iterator[SqliteDriver]:
        """A driver of an empty database at this path."""
        if self._idle:
            file = self._idle.pop()
        else:
            self._count += 1
            file = SqliteFile(self._create(self._folder / f"reused{self._count}.db"))
        path.symlink_to(file.path)
        yield ReusedSqliteDriver(file, path, clock)
        if file.empty():
            self._idle.append(file)
        else:
            file.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


CATALOGS = ("pg_class", "pg_attribute", "pg_trigger", "pg_constraint", "pg_proc", "pg_db_role_setting")
# A row that is changed has another xmin. Analyzed tables have other plans.
_SCHEMA = f"""
select {", ".join(f"(select sum(xmin::text::bigint + 1) from {name})" for name in CATALOGS)},
  (select sum(reltuples) from pg_class where oid >= 16384), (select min(version_num) from {SCHEMA_VERSION})
"""
_END_OTHERS = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s and not pid = any(%s)"


class PostgresDatabase:
    """A database with the schema, by its name and its address."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.connections = Connections[PostgresConnection](
            lambda connection: connection._raw.info.transaction_status == TransactionStatus.IDLE
        )
        self._uses = 0
        self._own = psycopg.connect(url, autocommit=True, prepare_threshold=1)
        rows = self._own.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        names = sorted(name for (name,) in rows if name != SCHEMA_VERSION)
        filled = (f"select '{name}', pg_relation_size('{name}') where exists (select from {name})" for name in names)
        self._filled = " union all ".join(filled)
        self._schema = self._own.execute(_SCHEMA.encode()).fetchone()

    def empty(self) -> bool:
        """Delete all rows; returns whether another test may use the database."""
        self._uses += 1
        if self.connections.used or self._uses == MAX_USES:
            return False
        own = self._own
        try:
            idle = [one._raw.info.backend_pid for kind in self.connections.idle.values() for one in kind]
            own.execute(_END_OTHERS, (self.name, [own.info.backend_pid, *idle]))
            if own.execute(_SCHEMA.encode()).fetchone() != self._schema:
                return False
            filled = own.execute(self._filled.encode()).fetchall()
            # As a replica checks no foreign key, tables may be emptied in any order.
            deletions = "".join(f"delete from {name}; " for name, _ in filled)
            text = f"begin; set local session_replication_role = replica; {deletions}commit"
            own.execute(text.encode(), prepare=False)
            own.execute("select setval(oid, 1, false) from pg_class where relkind = 'S'")
        except psycopg.Error:
            return False
        return all(size < MAX_BYTES for _, size in filled)

    def close(self) -> None:
        self.connections.close()
        self._own.close()


class ReusedPostgresDriver(PostgresDriver):
    """A driver of such a database."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        super().__init__(database.url, clock)
        self._database = database

    def _open(self, *, read_only: bool, may_idle: bool = False) -> PostgresConnection:
        def open_one() -> PostgresConnection:
            return super(ReusedPostgresDriver, self)._open(read_only=read_only, may_idle=may_idle)

        of_driver: dict[str, Any] = {"_clock": self._clock, "_pause": self._pause, "_limit": self._limit}
        connection = self._database.connections.take((read_only, may_idle), open_one, **of_driver)
        connection._raw.limit = self._limit
        return connection
