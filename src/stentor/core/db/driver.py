"""What a database must be able to do; the conformance suite runs against every implementation.

SQL as named text, in the subset that SQLite 3.40 and PostgreSQL share.

Rows that are only ever added: written many at once, just before their commit or before they are read.

A database that is only read: what has no writer cannot write or checkpoint, whatever asks it to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

from stentor.core.errors import StoreUnavailable

Params = Mapping[str, Any]
Locks = Collection[str] | None
"""What a transaction must not share with those of other processes: names, or None for everything."""
Row = tuple[Any, ...]


class DbConnection(Protocol):
    """One connection, used by one thread at a time. Failures of the store raise StoreUnavailable."""

    def begin(self, locks: Locks = ()) -> int:
        """Open a transaction once the locks are held; answers the time of the store in microseconds, taken then."""
        ...

    def lock(self, name: str) -> bool:
        """Hold one more lock until the end of the transaction; False when another process has it."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """End the open transaction, if any. Never raises."""
        ...

    def in_transaction(self) -> bool: ...

    def control(self, text: str) -> None:
        """Run a statement of transaction control: SAVEPOINT, RELEASE, ROLLBACK TO."""
        ...

    def run(self, sql: Sql, params: Params) -> int:
        """Execute; answers the number of rows touched."""
        ...

    def many(self, sql: Sql, rows: Iterable[Params]) -> None: ...

    def add(self, journal: AppendOnlyTable, rows: list[Row]) -> None:
        """Insert the rows into the journal's table."""
        ...

    def rows(self, sql: Sql, params: Params) -> list[Row]: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """Opens connections to one database."""

    name: str
    shared: bool
    """Whether other processes may write to the same database."""

    def writer(self) -> DbConnection: ...

    def reader(self) -> DbConnection: ...


_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_TABLE = re.compile(r"\b(?:from|join|into|update) ([a-z_]+)")


class Sql:
    """One statement with `:name` parameters, translated once for the drivers: `?` or `%(name)s`.

    `tables` are those that it names, `writes` whether it may change one.
    """

    __slots__ = ("_pick", "pyformat", "qmark", "tables", "text", "writes")

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.writes = not self.text.startswith("select ")
        self.tables = frozenset(_TABLE.findall(self.text))
        self.pyformat = _PARAMETER.sub(r"%(\1)s", self.text.replace("%", "%%"))
        self.qmark = _PARAMETER.sub("?", self.text)
        self._pick = _picker(_PARAMETER.findall(self.text))

    def values(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in the order of the question marks. Raises KeyError for one that is missing."""
        return self._pick(params)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


def _picker(names: list[str]) -> Any:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple(params[name] for name in names)


MAX_ROWS_PER_INSERT = 64
"""Rows of one statement at most."""


class AppendOnlyTable:
    """A table that grows and never changes, and the columns that its rows give, in their order."""

    def __init__(self, table: str, columns: tuple[str, ...]) -> None:
        self.table = table
        self.columns = columns

    def insert(self, rows: int, mark: str) -> str:
        """The statement for so many rows; `mark` is the driver's sign for a positional parameter."""
        return _insert(self.table, self.columns, rows, mark)


@cache
def _insert(table: str, columns: tuple[str, ...], rows: int, mark: str) -> str:
    row = f"({', '.join([mark] * len(columns))})"
    return f"insert into {table} ({', '.join(columns)}) values {', '.join([row] * rows)}"  # noqa: S608 - names of ours


def insert_statements(
    journal: AppendOnlyTable, rows: list[tuple[Any, ...]], mark: str
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Statements with their parameters that insert all rows; a few sizes only, so that each is prepared once."""
    start, size = 0, MAX_ROWS_PER_INSERT
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield journal.insert(size, mark), tuple(chain.from_iterable(rows[start : start + size]))
        start += size


class PendingRows:
    """Rows of an open transaction that are not written yet, in the order in which they came."""

    __slots__ = ("_by_table",)

    def __init__(self) -> None:
        self._by_table: dict[str, tuple[AppendOnlyTable, list[tuple[Any, ...]]]] = {}

    def add(self, journal: AppendOnlyTable, row: tuple[Any, ...]) -> None:
        known = self._by_table.get(journal.table)
        if known is None:
            known = self._by_table[journal.table] = (journal, [])
        known[1].append(row)

    def touches(self, tables: frozenset[str]) -> bool:
        return not tables.isdisjoint(self._by_table)

    def take(self) -> list[tuple[AppendOnlyTable, list[tuple[Any, ...]]]]:
        """All of them, which are the caller's to write now."""
        taken = list(self._by_table.values())
        self._by_table = {}
        return taken


class ReadOnlyDriver:
    """The driver of a process that is a guest at the database: its readers, and a refusal instead of a writer."""

    shared = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.name = driver.name

    def writer(self) -> DbConnection:
        raise StoreUnavailable("This process has the database open for reading alone.")

    def reader(self) -> DbConnection:
        return self._driver.reader()
