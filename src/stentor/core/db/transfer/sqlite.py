"""A SQLite file as source or target of a copy."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stentor.core.clock import SystemClock, format_iso
from stentor.core.db.sql import Row
from stentor.core.db.sqlite import backup
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.db.transfer.model import VERSION_TABLE, Column, Table, require_current_schema
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.filesystem import DataFolderLock, read_lock_holder

SERVICE_FILE_NAME = "stentor.db"
"""The file name that a service uses. A file of another name belongs to no service, so it needs no lock."""
# Only PostgreSQL stores the turns of queued tasks. Here they are counted for each submitter, agent and priority.
_TASKS_WITH_TURNS = """
select {columns} from tasks left join (
    select task_id as id, tenant as tenant_of, row_number() over (
        partition by assigned_agent, priority, submitted_by order by queued_at, task_id) - 1 as turn_in_lane
    from tasks where status = 'queued' and parked = 0
) on tenant_of = tenant and id = task_id
"""
_NOT_INTERNAL = "name not like 'sqlite\\_%' escape '\\'"


class SqliteSide:
    """The `Side` for SQLite; exclusive through the lock of the data folder."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.display = str(path)
        self.driver = SqliteDriver(path)
        self._path = path
        self._write = write
        self._raw: sqlite3.Connection

    @contextmanager
    def open(self) -> Iterator[None]:
        with self._folder_lock(), _errors():
            self._prepare()
            with closing(self._connect()) as self._raw:
                if not self._write:
                    self._raw.execute("begin")
                yield

    def _prepare(self) -> None:
        # Before `open` connects: the upgrade opens a writer of its own, and SQLite must never have two.
        if not self._write and not self._path.is_file():
            raise StartRefused(f"There is no file {self._path}.")
        if not self._write:
            with closing(self._connect()) as raw:
                backup.check_integrity(raw, self._path)
        require_current_schema(self.driver, self.display, write=self._write)

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        lock = self._take_lock()
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _take_lock(self) -> DataFolderLock | None:
        folder = self._path.parent
        try:
            if self._write:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path.name != SERVICE_FILE_NAME or not folder.is_dir():
                return None
            return DataFolderLock(folder, format_iso(SystemClock().now()))
        except StartRefused:
            owner = read_lock_holder(folder)
            holder = f"process {owner.pid}, since {owner.since}" if owner else "another process"
            raise StartRefused(f"{self._path} is in use by {holder}. Stop that process, then copy again.") from None
        except OSError as error:
            raise StartRefused(f"The folder {folder} cannot be used: {error.strerror}.") from None

    def _connect(self) -> sqlite3.Connection:
        mode = "rw" if self._write else "ro"
        raw = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        # Returns invalid UTF-8 instead of raising an error, so that the validation can name the row.
        raw.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        if self._write:
            raw.execute("pragma journal_mode=wal")
            raw.execute("pragma synchronous=full")
            raw.execute("pragma foreign_keys=on")
        return raw

    def tables(self) -> dict[str, Table]:
        tables = self._raw.execute(f"select name from sqlite_master where type = 'table' and {_NOT_INTERNAL}")  # noqa: S608
        return {name: self._table(name) for (name,) in tables.fetchall()}

    def _table(self, name: str) -> Table:
        columns = self._raw.execute("select name, pk from pragma_table_info(?) order by cid", (name,)).fetchall()
        foreign_keys = self._raw.execute('select "table" from pragma_foreign_key_list(?)', (name,)).fetchall()
        key = tuple(column for column, position in sorted(columns, key=lambda column: int(column[1])) if position)
        depends_on = frozenset(referenced for (referenced,) in foreign_keys)
        return Table(name, tuple(Column(column) for column, _ in columns), key, depends_on)

    def count_rows(self, table: Table) -> int:
        with _errors():
            return int(self._raw.execute(f"select count(*) from {table.name}").fetchone()[0])  # noqa: S608

    def read_rows(self, table: Table) -> Generator[Row]:
        with _errors():
            yield from self._raw.execute(self._select(table))

    def _select(self, table: Table) -> str:
        # What was written is read back as it is.
        if table.name == "tasks" and not self._write:
            columns = ("coalesce(turn_in_lane, 0)" if name == "turn" else name for name in table.names)
            return _TASKS_WITH_TURNS.format(columns=", ".join(columns))
        return f"select {', '.join(table.names)} from {table.name}"  # noqa: S608

    def set_schema_version(self, version: str) -> None:
        with _errors():
            self._raw.execute(f"update {VERSION_TABLE} set version_num = ?", (version,))  # noqa: S608

    @contextmanager
    def load_transaction(self) -> Iterator[None]:
        with _errors():
            self._raw.execute("begin immediate")
            try:
                yield
                self._raw.execute("commit")
            except BaseException:
                if self._raw.in_transaction:
                    self._raw.execute("rollback")
                raise

    def clear(self, tables: Iterable[Table]) -> None:
        # In reverse order, because of the foreign keys.
        for table in reversed(list(tables)):
            self._raw.execute(f"delete from {table.name}")  # noqa: S608

    def load_rows(self, table: Table, rows: Iterable[Row]) -> None:
        placeholders = ", ".join("?" * len(table.columns))
        statement = f"insert into {table.name} ({', '.join(table.names)}) values ({placeholders})"  # noqa: S608
        with _errors():
            self._raw.executemany(statement, rows)

    def finish_load(self, tables: Iterable[Table]) -> None:
        """Nothing to do: SQLite continues after the largest id by itself."""


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"The SQLite database cannot be used: {error}.") from error
    except sqlite3.IntegrityError as error:
        raise StartRefused(f"SQLite rejected a row: {error}.") from None
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(f"The SQLite database is damaged: {error}.") from error
