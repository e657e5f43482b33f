"""What is copied: tables, their columns and their order; what a value must be; what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import Any

import msgspec

from stentor.core.db.driver import Row
from stentor.core.errors import StartRefused

VERSION_TABLE = "alembic_version"
_DIGEST_BYTES = 32


class Column(msgspec.Struct, frozen=True):
    """`kind` is the type on PostgreSQL; None on SQLite, where a column takes any value."""

    name: str
    kind: str | None = None


class Table(msgspec.Struct, frozen=True):
    """`key` are the columns that name a row, `needs` the tables that must be filled before."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    depends_on: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


class CopyPlan(msgspec.Struct, frozen=True):
    """`tables` in the order in which they are filled. What only one of the databases has can be made again there."""

    tables: tuple[Table, ...]
    skipped_tables: tuple[str, ...]


class CopiedTable(msgspec.Struct, frozen=True):
    """A table with the number of its rows and a digest that does not depend on their order, in hex."""

    table: str
    rows: int
    digest: str


class InvalidValue(Exception):
    """A value that the other database cannot hold; the message says why without repeating it."""


def plan_copy(source: Mapping[str, Table], target: Mapping[str, Table]) -> CopyPlan:
    """Raises StartRefused where a table has other columns on the other side."""
    both = sorted(source.keys() & target.keys() - {VERSION_TABLE})
    for name in both:
        if odd := set(source[name].names) ^ set(target[name].names):
            raise StartRefused(f"The table {name} has the column {min(odd)} in only one of the databases.")
    known = {name: _known(source[name], target[name]) for name in both}
    order = TopologicalSorter({name: sorted(known[name].depends_on & known.keys() - {name}) for name in both})
    only = source.keys() ^ target.keys()
    return CopyPlan(tuple(known[name] for name in order.static_order()), tuple(sorted(only - {VERSION_TABLE})))


def _known(one: Table, other: Table) -> Table:
    """The table with its types, whichever of the two sides knows them."""
    typed, plain = (one, other) if one.columns[0].kind else (other, one)
    return msgspec.structs.replace(typed, key=typed.key or plain.key, depends_on=one.depends_on | other.depends_on)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int):
            raise InvalidValue("is no whole number")
        if not low <= value <= high:
            raise InvalidValue(f"is outside of {low} to {high}")
        return int(value)

    return check


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise InvalidValue("is no number")
    if math.isnan(value):
        raise InvalidValue("is not a number (NaN)")
    return float(value) + 0.0  # SQLite knows no negative zero


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue("is no text")
    if "\0" in value:
        raise InvalidValue("holds the character NUL, which PostgreSQL's texts cannot")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidValue("is not valid UTF-8")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidValue("is not bytes")
    return bytes(value)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "int2": _whole(-(2**15), 2**15 - 1),
    "int4": _whole(-(2**31), 2**31 - 1),
    "int8": _whole(-(2**63), 2**63 - 1),
    "float8": _number,
    "text": _text,
    "varchar": _text,
    "bytea": _bytes,
    "bool": _whole(0, 1),
}


class RowValidator:
    """Takes the rows of one table, judges each, and keeps count and digest."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._checks = [self._check(column) for column in table.columns]
        self._sum = 0
        self.table = table.name
        self.count = 0

    def _check(self, column: Column) -> Callable[[Any], Any]:
        check = _KINDS.get(column.kind or "")
        if check is None:
            place = f"{self._table.name}.{column.name}"
            raise StartRefused(f"The column {place} has a type that is not copied yet: {column.kind}.")
        return check

    def validate(self, row: Row) -> Row:
        """The row as both databases hold it. Raises StartRefused, which names it."""
        if len(row) != len(self._checks):
            raise StartRefused(f"A row of the table {self._table.name} has {len(row)} columns.")
        taken = []
        for check, value in zip(self._checks, row, strict=True):
            try:
                taken.append(None if value is None else check(value))
            except InvalidValue as unfit:
                raise StartRefused(self._refusal(row, len(taken), unfit)) from None
        self.count += 1
        # A sum does not depend on the order, which differs between the databases.
        self._sum += int.from_bytes(sha256(msgspec.msgpack.encode(taken)).digest())
        return tuple(taken)

    def _refusal(self, row: Row, at: int, unfit: InvalidValue) -> str:
        named = dict(zip(self._table.names, row, strict=True))
        key = ", ".join(f"{name} = {named[name]!r}"[:80] for name in self._table.key)
        which = f" where {key}" if key else f" number {self.count + 1}"
        return f"{self._table.name}.{self._table.names[at]} {unfit}, in the row{which}."

    @property
    def result(self) -> CopiedTable:
        digest = (self._sum % 2 ** (8 * _DIGEST_BYTES)).to_bytes(_DIGEST_BYTES).hex()
        return CopiedTable(self._table.name, self.count, digest)
