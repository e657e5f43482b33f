"""The interface of a database driver, and the statements and batched inserts that every driver takes.

SQL is written in the subset that SQLite 3.40 and PostgreSQL share. The implementations are `sqlite` and `postgres`;
one conformance suite runs against both. Transactions are in `transaction` and `group_commit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, LiteralString, Protocol, cast

from stentor.core.errors import StoreUnavailable

Params = Mapping[str, Any]
Locks = Collection[str] | None
"""Locks that a transaction holds against other processes: names, or None for all of them."""
NO_LOCKS: Locks = ()
"""For a transaction whose statements are all safe against concurrent writers."""
Row = tuple[Any, ...]


class DbConnection(Protocol):
    """One connection, used by one thread at a time. Database failures raise StoreUnavailable."""

    def begin(self, locks: Locks = ()) -> int:
        """Open a transaction and wait for the locks; returns the database's time (microseconds) after that.

        The time is read under the locks, so that it increases from one holder of a lock to the next.
        """
        ...

    def lock(self, name: str) -> bool:
        """Take one more lock until the end of the transaction; False if another process has it. Never waits."""
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
        """Execute a statement; returns the number of affected rows."""
        ...

    def many(self, sql: Sql, rows: Iterable[Params]) -> None: ...

    def add(self, table: AppendOnlyTable, rows: list[Row]) -> None:
        """Insert the rows in their order."""
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


# Not after another colon: `::text` is a cast.
_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_TABLE = re.compile(r"\b(?:from|join|into|update) ([a-z_]+)")


def as_literal(text: str) -> LiteralString:
    """Return a statement of this program: psycopg's types ask for text that stands in the source as it is."""
    return cast("LiteralString", text)


class Sql:
    """One statement with `:name` parameters, translated once into each driver's form: `?` or `%(name)s`.

    `tables` are the tables in the statement, `writes` is whether it may change one.
    """

    __slots__ = ("_pick", "pyformat", "qmark", "tables", "text", "writes")

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        # Conservative: a select in parentheses or a CTE counts as a write.
        self.writes = not self.text.startswith("select ")
        self.tables = frozenset(_TABLE.findall(self.text))
        # psycopg reads every % as the start of a placeholder, also the one of `like`.
        self.pyformat = as_literal(_PARAMETER.sub(r"%(\1)s", self.text.replace("%", "%%")))
        self.qmark = _PARAMETER.sub("?", self.text)
        self._pick = _picker(_PARAMETER.findall(self.text))

    def values(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the parameters in the order of the question marks. Raises KeyError if one is missing."""
        return self._pick(params)

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


def _picker(names: list[str]) -> Callable[[Params], Row]:
    # itemgetter is the fastest way to a tuple, but returns a bare value for one name.
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple(params[name] for name in names)


_INSERT_SIZES = (64, 32, 16, 8, 4, 2, 1)
"""Rows in one insert statement: few different ones, so that few statements have to be prepared."""


class AppendOnlyTable:
    """A table to which rows are only ever added, and the order of the values in a row."""

    def __init__(self, table: str, columns: tuple[str, ...]) -> None:
        self.table = table
        self.columns = columns

    def insert(self, rows: int, mark: str) -> str:
        """Return the insert statement for `rows` rows; `mark` is the driver's positional placeholder."""
        return _insert(self.table, self.columns, rows, mark)


@cache
def _insert(table: str, columns: tuple[str, ...], rows: int, mark: str) -> str:
    row = f"({', '.join([mark] * len(columns))})"
    return f"insert into {table} ({', '.join(columns)}) values {', '.join([row] * rows)}"  # noqa: S608 - table and column names come from the code


def insert_statements(
    table: AppendOnlyTable, rows: list[tuple[Any, ...]], mark: str
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield statements with their parameters that together insert all rows."""
    for some in split_rows(rows, _INSERT_SIZES):
        yield table.insert(len(some), mark), tuple(chain.from_iterable(some))


def split_rows(rows: Sequence[Row], sizes: Iterable[int]) -> Iterator[Sequence[Row]]:
    """Yield all rows in parts of these sizes, which descend to 1."""
    start = 0
    for size in sizes:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


class PendingRows:
    """Rows of an open transaction that are not inserted yet, in the order in which they were added."""

    __slots__ = ("_by_table",)

    def __init__(self) -> None:
        self._by_table: dict[str, tuple[AppendOnlyTable, list[tuple[Any, ...]]]] = {}

    def add(self, table: AppendOnlyTable, row: tuple[Any, ...]) -> None:
        entry = self._by_table.get(table.table)
        if entry is None:
            entry = self._by_table[table.table] = (table, [])
        entry[1].append(row)

    def touches(self, tables: frozenset[str]) -> bool:
        """Return whether rows are pending for one of the tables."""
        return not tables.isdisjoint(self._by_table)

    def take(self) -> list[tuple[AppendOnlyTable, list[tuple[Any, ...]]]]:
        """Remove and return all rows; the caller must insert them."""
        pending = list(self._by_table.values())
        self._by_table = {}
        return pending


class ReadOnlyDriver:
    """A driver that cannot write: its readers work, and opening a writer raises StoreUnavailable.

    For a process that reads the database of a running service. Without a writer it cannot checkpoint SQLite's WAL
    either, which a second process must never do.
    """

    shared = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.name = driver.name

    def writer(self) -> DbConnection:
        raise StoreUnavailable("This process has opened the database read-only.")

    def reader(self) -> DbConnection:
        return self._driver.reader()
