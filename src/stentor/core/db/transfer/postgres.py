"""A PostgreSQL database as source or target of a copy; reads and writes rows with COPY."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, LiteralString

import psycopg
from psycopg import sql

from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.locks import locks
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sql import Row
from stentor.core.db.transfer.model import VERSION_TABLE, Column, Table, require_current_schema
from stentor.core.errors import StartRefused, StoreUnavailable

# The subscripts of indkey begin at 0, which stands here for a column that is not in the key.
_TABLES = """
select c.relname, a.attname, t.typname, coalesce(array_position(i.indkey::smallint[], a.attnum) + 1, 0)
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
join pg_type t on t.oid = a.atttypid
left join pg_index i on i.indrelid = c.oid and i.indisprimary
where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace and not c.relispartition
order by c.relname, a.attnum
"""
_FOREIGN_KEYS = """
select f.conrelid::regclass::text, f.confrelid::regclass::text from pg_constraint f
where f.contype = 'f' and f.connamespace = current_schema()::regnamespace
"""
# A lock with one key of 64 bits has it in two halves, classid and objid, and objsubid 1; one with two keys has 2.
_HOLDERS = """
select a.pid, a.application_name, host(a.client_addr) from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.granted and l.pid <> pg_backend_pid() and l.objsubid = 1
and l.database = (select oid from pg_database where datname = current_database())
and (l.classid::bigint << 32) + l.objid::bigint = %s
order by a.backend_start
"""


class PostgresSide:
    """The `Side` for PostgreSQL; exclusive through the serving lock, which all writers share."""

    _begin: ClassVar[LiteralString] = "begin isolation level repeatable read read only"
    _resumable: ClassVar[str | None] = None

    def __init__(self, address: DatabaseUrl, *, write: bool) -> None:
        self.display = address.display
        self.driver = PostgresDriver(address.url)
        self._write = write
        self._raw: psycopg.Connection[Any]

    @contextmanager
    def open(self) -> Iterator[None]:
        server = "read-write" if self._write else "primary"
        with translated_errors(), self.driver.connect(server) as self._raw:
            self._raw.autocommit = True
            # The name appears in the messages of other processes that find the database in use.
            self._raw.execute("set application_name = 'stentor db copy'")
            # Rows are copied unchanged: the trigger that assigns a queued task its turn must skip them.
            self._raw.execute("set stentor.copying = 'on'")
            self._raw.execute("set statement_timeout = 0")
            self._raw.execute("set lock_timeout = 0")
            self._raw.execute("set idle_in_transaction_session_timeout = 0")
            if self._raw.info.server_version >= 170_000:
                self._raw.execute("set transaction_timeout = 0")
            self._require_alone()
            require_current_schema(self.driver, self.display, write=self._write, resumable=self._resumable)
            if not self._write:
                self._raw.execute(self._begin)
            yield

    def _require_alone(self) -> None:
        # Every connected writer shares this lock, so it is free only if no service is connected.
        row = self._raw.execute("select pg_try_advisory_lock(%s)", (locks.SERVING_LOCK_ID,)).fetchone()
        if row is not None and row[0]:
            return
        holders = self._raw.execute(_HOLDERS, (locks.SERVING_LOCK_ID,)).fetchall()
        who = "; ".join(
            f"{name or 'a program'}{f' on {host}' if host else ''}, session {pid}" for pid, name, host in holders
        )
        raise StartRefused(
            f"{self.display} is in use ({who or 'by another process'}). Stop that process, then copy again."
        )

    def tables(self) -> dict[str, Table]:
        columns: dict[str, list[tuple[str, str, int]]] = {}
        with translated_errors():
            for table, name, kind, key_position in self._raw.execute(_TABLES):
                columns.setdefault(table, []).append((name, kind, key_position))
            foreign_keys = self._raw.execute(_FOREIGN_KEYS).fetchall()
        return {
            table: Table(
                table,
                tuple(Column(name, kind) for name, kind, _ in table_columns),
                tuple(name for name, _, position in sorted(table_columns, key=lambda column: column[2]) if position),
                frozenset(referenced for referencing, referenced in foreign_keys if referencing == table),
            )
            for table, table_columns in columns.items()
        }

    def count_rows(self, table: Table) -> int:
        with translated_errors():
            row = self._raw.execute(sql.SQL("select count(*) from {}").format(table_name(table))).fetchone()
        assert row is not None
        return int(row[0])

    def read_rows(self, table: Table) -> Generator[Row]:
        return self._read(
            table, sql.SQL("copy (select {} from {}) to stdout").format(column_list(table), table_name(table))
        )

    def _read(self, table: Table, statement: sql.Composed) -> Generator[Row]:
        with translated_errors(), self._raw.cursor().copy(statement) as copy:
            copy.set_types([column.kind or "text" for column in table.columns])
            yield from copy.rows()

    def set_schema_version(self, version: str) -> None:
        with translated_errors():
            self._raw.execute(f"update {VERSION_TABLE} set version_num = %s", (version,))  # noqa: S608 - the table name comes from the code

    @contextmanager
    def load_transaction(self) -> Iterator[None]:
        with translated_errors(), self._raw.transaction():
            yield

    def clear(self, tables: Iterable[Table]) -> None:
        # All tables in one statement, because they reference each other; unlike delete it leaves no dead rows behind.
        with translated_errors():
            self._raw.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(map(table_name, tables))))

    def load_rows(self, table: Table, rows: Iterable[Row]) -> None:
        statement = sql.SQL("copy {} ({}) from stdin").format(table_name(table), column_list(table))
        with translated_errors(), self._raw.cursor().copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def finish_load(self, tables: Iterable[Table]) -> None:
        with translated_errors():
            for table in tables:
                for column in table.names:
                    self._reset_sequence(table, column)
                self._raw.execute(sql.SQL("analyze {}").format(table_name(table)))

    def _reset_sequence(self, table: Table, column: str) -> None:
        # COPY writes ids without the sequence, so the next insert would start at 1 and fail.
        row = self._raw.execute(
            "select pg_get_serial_sequence(%s, %s)", (table_name(table).as_string(), column)
        ).fetchone()
        if row is not None and row[0] is not None:
            statement = sql.SQL("select setval(%s, (select coalesce(max({}), 0) + 1 from {}), false)")
            self._raw.execute(statement.format(sql.Identifier(column), table_name(table)), (row[0],))


def table_name(table: Table) -> sql.Identifier:
    return sql.Identifier(table.name)


def column_list(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, table.names))


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors, with only the first line of PostgreSQL's message: the rest may contain data of rows."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL cannot be used: {_first_line(error)}.") from error
    except psycopg.IntegrityError as error:
        raise StartRefused(f"PostgreSQL rejected a row: {_first_line(error)}.") from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"PostgreSQL rejected a statement: {_first_line(error)}.") from None


def _first_line(error: psycopg.Error) -> str:
    message = error.diag.message_primary or next(iter(str(error).strip().splitlines()), "")
    return message.rstrip(".") or type(error).__name__
