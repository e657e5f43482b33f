"""A database as one side of a copy, the plan of a copy (tables and their order), and the validation of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from stentor.core import migrations
from stentor.core.db.driver import Driver
from stentor.core.db.sql import Row
from stentor.core.errors import StartRefused

VERSION_TABLE = "alembic_version"
NOT_COPIED = frozenset((VERSION_TABLE, "task_search", "task_search_position"))
"""Tables that each database has for itself; the index of the search in tasks is rebuilt from the others."""
_DIGEST_BYTES = 32


class Column(msgspec.Struct, frozen=True):
    """A column; `kind` is its type on PostgreSQL, None on SQLite, where a column takes any value."""

    name: str
    kind: str | None = None


class Table(msgspec.Struct, frozen=True):
    """A table; `key` are the columns that identify a row, `depends_on` the tables that must be loaded before it."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    depends_on: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


class CopyPlan(msgspec.Struct, frozen=True):
    """The tables in the order in which they are loaded.

    `skipped_tables` exist in only one of the databases, which can rebuild them from the others.
    """

    tables: tuple[Table, ...]
    skipped_tables: tuple[str, ...]


class CopiedTable(msgspec.Struct, frozen=True):
    """The number of rows of a table and a digest of them, in hex, that does not depend on their order."""

    table: str
    rows: int
    digest: str


class InvalidValue(Exception):
    """A value that the other database cannot store; the message gives the reason but not the value."""


class Side(Protocol):
    """The source or the target database; while it is open, no other process writes to it.

    Database failures raise StoreUnavailable.
    """

    display: str

    @property
    def driver(self) -> Driver: ...

    def open(self) -> AbstractContextManager[None]:
        """Open it exclusively, in one snapshot. Raises StartRefused that names the process that uses it."""
        ...

    def tables(self) -> dict[str, Table]: ...

    def count_rows(self, table: Table) -> int: ...

    def read_rows(self, table: Table) -> Generator[Row]:
        """Yield all rows, in any order."""
        ...

    def set_schema_version(self, version: str) -> None:
        """Write the schema version and commit."""
        ...

    def load_transaction(self) -> AbstractContextManager[None]:
        """Run the block in one transaction."""
        ...

    def clear(self, tables: Iterable[Table]) -> None: ...

    def load_rows(self, table: Table, rows: Iterable[Row]) -> None: ...

    def finish_load(self, tables: Iterable[Table]) -> None:
        """Set what depends on the rows: sequences and statistics."""
        ...


def plan_copy(source: Mapping[str, Table], target: Mapping[str, Table]) -> CopyPlan:
    """Plan the copy of all tables that both databases have.

    Raises StartRefused if their columns differ, or if the source lacks a table of the schema.
    """
    schema = re.findall(
        r"^create table (\w+)", migrations.SQLITE_SCHEMA.read_text("utf-8"), re.IGNORECASE | re.MULTILINE
    )
    if missing := set(schema) - NOT_COPIED - source.keys():
        raise StartRefused(f"The source has no table {min(missing)}, so it is damaged or incomplete: restore a backup.")
    both = sorted(source.keys() & target.keys() - NOT_COPIED)
    for name in both:
        if differing := set(source[name].names) ^ set(target[name].names):
            raise StartRefused(f"The table {name} has the column {min(differing)} in only one of the databases.")
    tables = {name: _merge_tables(source[name], target[name]) for name in both}
    order = TopologicalSorter({name: sorted(tables[name].depends_on & tables.keys() - {name}) for name in both})
    in_one_only = source.keys() ^ target.keys()
    return CopyPlan(tuple(tables[name] for name in order.static_order()), tuple(sorted(in_one_only - NOT_COPIED)))


def _merge_tables(source: Table, target: Table) -> Table:
    """Return the table with its column types, which only the PostgreSQL database has."""
    typed, plain = (source, target) if source.columns[0].kind else (target, source)
    depends_on = source.depends_on | target.depends_on
    return msgspec.structs.replace(typed, key=typed.key or plain.key, depends_on=depends_on)


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int):
            raise InvalidValue("is not an integer")
        if not low <= value <= high:
            raise InvalidValue(f"is not between {low} and {high}")
        return int(value)

    return check


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise InvalidValue("is not a number")
    if math.isnan(value):
        raise InvalidValue("is not a number (NaN)")
    return float(value) + 0.0  # turns -0.0 into 0.0: SQLite has no negative zero, and the digests must be equal


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue("is not text")
    if "\0" in value:
        raise InvalidValue("contains the character NUL, which PostgreSQL cannot store in text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidValue("is not valid UTF-8")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidValue("is not bytes")
    return bytes(value)


_VALIDATORS: dict[str, Callable[[Any], Any]] = {
    "int2": _integer(-(2**15), 2**15 - 1),
    "int4": _integer(-(2**31), 2**31 - 1),
    "int8": _integer(-(2**63), 2**63 - 1),
    "float8": _number,
    "text": _text,
    "varchar": _text,
    "bytea": _bytes,
    "bool": _integer(0, 1),
}


class RowValidator:
    """Validates the rows of one table one by one, and computes their number and digest."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._checks = [self._check(column) for column in table.columns]
        self._sum = 0
        self.table = table.name
        self.count = 0

    def _check(self, column: Column) -> Callable[[Any], Any]:
        check = _VALIDATORS.get(column.kind or "")
        if check is None:
            name = f"{self._table.name}.{column.name}"
            raise StartRefused(f"The column {name} has the type {column.kind}, which a copy does not support.")
        return check

    def validate(self, row: Row) -> Row:
        """Return the row as both databases store it. Raises StartRefused, which names the row, for an invalid value."""
        if len(row) != len(self._checks):
            raise StartRefused(f"A row of the table {self._table.name} has {len(row)} columns.")
        values = []
        for check, value in zip(self._checks, row, strict=True):
            try:
                values.append(None if value is None else check(value))
            except InvalidValue as error:
                raise StartRefused(self._error_message(row, len(values), error)) from None
        self.count += 1
        # A sum of hashes does not depend on the order of the rows, which differs between the databases.
        self._sum += int.from_bytes(sha256(msgspec.msgpack.encode(values)).digest())
        return tuple(values)

    def _error_message(self, row: Row, index: int, error: InvalidValue) -> str:
        by_name = dict(zip(self._table.names, row, strict=True))
        key = ", ".join(f"{name} = {by_name[name]!r}"[:80] for name in self._table.key)
        which = f" where {key}" if key else f" number {self.count + 1}"
        return f"{self._table.name}.{self._table.names[index]} {error}, in the row{which}."

    @property
    def result(self) -> CopiedTable:
        """The number and the digest of the rows so far."""
        digest = (self._sum % 2 ** (8 * _DIGEST_BYTES)).to_bytes(_DIGEST_BYTES).hex()
        return CopiedTable(self._table.name, self.count, digest)


def require_current_schema(driver: Driver, display: str, *, write: bool, resumable: str | None = None) -> None:
    """Raise StartRefused if the schema is not the one of this program.

    A target (`write`) may also be empty, and then gets its schema, or have the mark of an interrupted copy or the
    version `resumable`.
    """
    current = migrations.current_version(driver)
    if write and current is not None and current in (migrations.COPYING_PREFIX + migrations.HEAD, resumable):
        return
    migrations.require_supported(current)
    if write and current is None:
        migrations.upgrade(driver)
    elif current != migrations.HEAD:
        raise StartRefused(
            f"{display} has schema {current or 'none'}, but a copy needs {migrations.HEAD}. Upgrade it first: "
            f"{migrations.UPGRADE_COMMAND}."
        )
