"""A PostgreSQL database as one side of a copy: rows leave and enter it by COPY."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from stentor.core.db import locks
from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.driver import Row
from stentor.core.db.postgres import PostgresDriver
from stentor.core.db.transfer.database_copy import require_current_schema
from stentor.core.db.transfer.model import VERSION_TABLE, Column, Table
from stentor.core.errors import StartRefused, StoreUnavailable

_TABLES = """
select c.relname, a.attname, t.typname, coalesce(array_position(i.indkey::smallint[], a.attnum), 0)
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
join pg_type t on t.oid = a.atttypid
left join pg_index i on i.indrelid = c.oid and i.indisprimary
where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace and not c.relispartition
order by c.relname, a.attnum
"""
_NEEDS = """
select f.conrelid::regclass::text, f.confrelid::regclass::text from pg_constraint f
where f.contype = 'f' and f.connamespace = current_schema()::regnamespace
"""
_HOLDERS = """
select a.pid, a.application_name, host(a.client_addr) from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.granted and l.pid <> pg_backend_pid() and l.objsubid = 1
and l.database = (select oid from pg_database where datname = current_database())
and (l.classid::bigint << 32) + l.objid::bigint = %s
order by a.backend_start
"""


class PostgresSide:
    def __init__(self, address: DatabaseUrl, *, write: bool) -> None:
        self.display = address.display
        self.driver = PostgresDriver(address.url)
        self._url = address.url
        self._write = write
        self._raw: psycopg.Connection[Any]

    @contextmanager
    def open(self) -> Iterator[None]:
        with _errors(), psycopg.connect(self._url, autocommit=True, connect_timeout=10) as self._raw:
            self._raw.execute("set application_name = 'stentor db copy'")
            self._raw.execute("set statement_timeout = 0")
            self._raw.execute("set idle_in_transaction_session_timeout = 0")
            self._require_alone()
            require_current_schema(self.driver, self.display, write=self._write)
            if not self._write:
                self._raw.execute("begin isolation level repeatable read read only")
            yield

    def _require_alone(self) -> None:
        """Services hold this lock together for as long as they are connected."""
        row = self._raw.execute("select pg_try_advisory_lock(%s)", (locks.SERVING_LOCK_ID,)).fetchone()
        if row is not None and row[0]:
            return
        holders = self._raw.execute(_HOLDERS, (locks.SERVING_LOCK_ID,)).fetchall()
        who = "; ".join(
            f"{name or 'a program'}{f' on {host}' if host else ''}, session {pid}" for pid, name, host in holders
        )
        raise StartRefused(f"{self.display} is in use ({who or 'by somebody'}). Stop that first, and copy then.")

    def tables(self) -> dict[str, Table]:
        columns: dict[str, list[tuple[str, str, int]]] = {}
        with _errors():
            for table, name, kind, at in self._raw.execute(_TABLES):
                columns.setdefault(table, []).append((name, kind, at))
            needs = self._raw.execute(_NEEDS).fetchall()
        return {
            table: Table(
                table,
                tuple(Column(name, kind) for name, kind, _ in found),
                tuple(name for name, _, at in sorted(found, key=lambda column: column[2]) if at),
                frozenset(other for one, other in needs if one == table),
            )
            for table, found in columns.items()
        }

    def count_rows(self, table: Table) -> int:
        with _errors():
            row = self._raw.execute(sql.SQL("select count(*) from {}").format(_name(table))).fetchone()
        assert row is not None
        return int(row[0])

    def read_rows(self, table: Table) -> Generator[Row]:
        statement = sql.SQL("copy (select {} from {}) to stdout").format(_columns(table), _name(table))
        with _errors(), self._raw.cursor().copy(statement) as copy:
            copy.set_types([column.kind or "text" for column in table.columns])
            yield from copy.rows()

    def set_schema_version(self, version: str) -> None:
        with _errors():
            self._raw.execute(f"update {VERSION_TABLE} set version_num = %s", (version,))  # noqa: S608 - a name of ours

    @contextmanager
    def load_transaction(self) -> Iterator[None]:
        with _errors(), self._raw.transaction():
            yield

    def clear(self, tables: Iterable[Table]) -> None:
        """Quick, and without what rows of an earlier try would leave behind."""
        with _errors():
            self._raw.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(map(_name, tables))))

    def load_rows(self, table: Table, rows: Iterable[Row]) -> None:
        statement = sql.SQL("copy {} ({}) from stdin").format(_name(table), _columns(table))
        with _errors(), self._raw.cursor().copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def finish_load(self, tables: Iterable[Table]) -> None:
        with _errors():
            for table in tables:
                for column in table.names:
                    self._count_on(table, column)
                self._raw.execute(sql.SQL("analyze {}").format(_name(table)))

    def _count_on(self, table: Table, column: str) -> None:
        """Have a column that counts by itself go on after its largest value."""
        row = self._raw.execute("select pg_get_serial_sequence(%s, %s)", (_name(table).as_string(), column)).fetchone()
        if row is not None and row[0] is not None:
            statement = sql.SQL("select setval(%s, (select coalesce(max({}), 0) + 1 from {}), false)")
            self._raw.execute(statement.format(sql.Identifier(column), _name(table)), (row[0],))


def _name(table: Table) -> sql.Identifier:
    return sql.Identifier(table.name)


def _columns(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, table.names))


@contextmanager
def _errors() -> Iterator[None]:
    """Of what PostgreSQL says only the first line: the rest may repeat rows."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL cannot be used: {_first(error)}.") from error
    except psycopg.IntegrityError as error:
        raise StartRefused(f"PostgreSQL refuses a row: {_first(error)}.") from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"PostgreSQL refuses it: {_first(error)}.") from None


def _first(error: psycopg.Error) -> str:
    words = error.diag.message_primary or next(iter(str(error).strip().splitlines()), "")
    return words.rstrip(".") or type(error).__name__
