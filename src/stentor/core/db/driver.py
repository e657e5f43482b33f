"""The interface of a database driver, and the statements and batched inserts that every driver takes.

SQL is written in the subset that SQLite 3.40 and PostgreSQL share. The implementations are `sqlite` and `postgres`;
one conformance suite runs against both. Transactions are in `transaction` and `group_commit`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, LiteralString, Protocol, cast

from stentor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from stentor.core.db.locks.session import LockSession

Params = Mapping[str, Any]
Locks = Collection[str] | None
"""Locks that a transaction holds against other processes: names, or None for all of them."""
NO_LOCKS: Locks = ()
"""For a transaction whose statements are all safe against concurrent writers."""
Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]
"""Text with the placeholders `$1` and so on, and its parameters: texts, numbers, bytes and None."""


class StatementFailed(Exception):
    """A statement failed that was sent together with others. Nothing was committed."""


class DbConnection(Protocol):
    """One connection, used by one thread at a time. Database failures raise StoreUnavailable."""

    def begin(self, locks: Locks = ()) -> int:
        """Open a transaction and wait for the locks; returns the database's time (microseconds) after that.

        The time is read under the locks, so that it increases from one holder of a lock to the next.
        """
        ...

    def begin_reading(self, locks: Locks, reads: Sequence[Read]) -> tuple[int, list[list[Row]]]:
        """Open a transaction like `begin`, and return also what these statements read in it.

        Raises StatementFailed if one of them fails.
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

    def add(self, inserts: list[Insert]) -> None:
        """Insert rows, those of a table in their order."""
        ...

    def add_at_commit(self, inserts: list[Insert]) -> None:
        """Insert rows like `add`, now or with the commit, which raises StatementFailed if that fails."""
        ...

    def update_at_commit(self, update: RowUpdate, rows: list[Params]) -> None:
        """Update rows now or with the commit. Raises StatementFailed, or the commit does, if one is not as expected."""
        ...

    def run_at_commit(self, sql: Sql, params: Params) -> None:
        """Execute a statement now or with the commit, which raises StatementFailed if that fails."""
        ...

    def rows(self, sql: Sql, params: Params) -> list[Row]: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """Opens connections to one database."""

    name: str
    shared: bool
    """Whether other processes may write to the same database."""

    def writer(self) -> DbConnection: ...

    def reader(self, *, may_idle: bool = False) -> DbConnection:
        """Open a connection that only reads; with `may_idle` there is no limit of time between its statements."""
        ...

    def lock_session(self) -> LockSession:
        """Return the session for locks that outlive a transaction; only of a shared database."""
        ...

    def wait_less(self) -> None:
        """Give up sooner on a server that does not answer, even in running statements, because the process stops."""
        ...


_WRITING = re.compile(r"\b(?:insert|update|delete)\b")
# Not after another colon: `::text` is a cast.
_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
# Not what follows `do update` and `for update`: no table is named there.
_TABLE = re.compile(r"\b(?:from|join|into|(?<!do )(?<!for )update) ([a-z_]+)")


def as_literal(text: str) -> LiteralString:
    """Return a statement of this program: psycopg's types ask for a literal of the source."""
    return cast("LiteralString", text)


class Sql:
    """One statement with `:name` parameters, translated once into each driver's form: `?` or `$1`.

    `tables` are the tables in the statement, `writes` is whether it may change one.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        # Conservative: a select in parentheses counts as a write, and a CTE with such a word anywhere.
        is_read = self.text.startswith("select ") or (
            self.text.startswith("with ") and _WRITING.search(self.text) is None
        )
        self.writes = not is_read
        self.tables = frozenset(_TABLE.findall(self.text))
        self.qmark = _PARAMETER.sub("?", self.text)
        self.values = _picker(_PARAMETER.findall(self.text))
        """Returns the parameters in the order of the question marks. Raises KeyError if one is missing."""

    @classmethod
    def insert(cls, table: str, columns: Iterable[str], key: Sequence[str] = ()) -> Sql:
        """Return the statement that inserts a row; its parameters have the names of the columns.

        With `key`, some of the columns, a row that has the same key gets the other values.
        """
        columns = tuple(columns)
        names = ", ".join(f":{name}" for name in columns)
        text = f"insert into {table} ({', '.join(columns)}) values ({names})"  # noqa: S608 - as in _insert
        if key:
            changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
            text += f" on conflict ({', '.join(key)}) do update set {changes}"
        return cls(text)

    # Translated on first use: a process with SQLite does not need them.
    @cached_property
    def numbered(self) -> LiteralString:
        numbers = self._numbers
        return as_literal(_PARAMETER.sub(lambda match: f"${numbers[match[1]]}", self.text))

    @cached_property
    def numbered_values(self) -> Callable[[Params], Row]:
        """Returns the parameters in the order of their numbers. Raises KeyError if one is missing."""
        return _picker(self._numbers)

    @property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(dict.fromkeys(_PARAMETER.findall(self.text)), 1)}

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


Read = tuple[Sql, Params]
"""A statement that reads, and its parameters."""


def _picker(names: Iterable[str]) -> Callable[[Params], Row]:
    # Interned, as the names of keyword arguments are: a dictionary then finds the very same text and compares none.
    names = [sys.intern(name) for name in names]
    # itemgetter is the fastest way to a tuple, but returns a bare value for one name.
    if len(names) > 1:
        return itemgetter(*names)
    if names:
        [name] = names
        return lambda params: (params[name],)
    return lambda params: ()


_INSERT_SIZES = (64, 32, 16, 8, 4, 3, 2, 1)
"""Rows in one insert statement: few different ones, so that few statements have to be prepared. A queued task has 3."""
_SIZES_IN_MESSAGE = (64, 48, 32, 24, *range(16, 0, -1))
"""The same on PostgreSQL, where a second statement for tasks costs as much as three more rows in the first."""
_JOINT_ROWS = 6
"""Rows of each table that are inserted with those of other tables."""


_UPDATE_SIZES = (16, 4, 1)
"""Rows in one update statement. For more rows than these, PostgreSQL would read a small table completely, and keep that
plan when the table has grown."""

_ROW_CHANGED = "a row has changed meanwhile, so the transaction runs again"


class AppendOnlyTable:
    """A table to which rows are added many at a time, and the order of the values in a row.

    `join` makes fewer rows of those that are written together.
    """

    def __init__(
        self, table: str, columns: tuple[str, ...], join: Callable[[list[Row]], list[Row]] | None = None
    ) -> None:
        self.table = table
        self.columns = columns
        self.join = join
        self.width = len(columns)
        """Parameters for each row of the insert statement with numbers."""

    def insert(self, rows: int, first: int | None = None) -> str:
        """Return the insert statement for `rows` rows with the placeholders `?`, or `$` with a number from `first`."""
        return _insert(self.table, self.columns, rows, first)

    def values(self, rows: Sequence[Row]) -> Row:
        """Return the parameters of the insert statement with numbers."""
        return tuple(chain.from_iterable(rows))

    @cached_property
    def insert_new(self) -> Sql:
        """The statement that inserts one row unless its key is there. Its parameters are named like the columns."""
        return Sql(f"{Sql.insert(self.table, self.columns).text} on conflict do nothing")


@cache
def _insert(table: str, columns: tuple[str, ...], rows: int, first: int | None) -> str:
    width = len(columns)
    marks = ["?" if first is None else f"${first + number}" for number in range(rows * width)]
    values = ", ".join(f"({', '.join(marks[start : start + width])})" for start in range(0, len(marks), width))
    return f"insert into {table} ({', '.join(columns)}) values {values}"  # noqa: S608 - table and column names come from the code


Insert = tuple[AppendOnlyTable, list[Row]]
"""Rows of a table to be inserted in their order."""


def insert_statements(table: AppendOnlyTable, rows: list[Row]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield statements with their parameters that together insert all rows."""
    for some in split_rows(rows, _INSERT_SIZES):
        yield table.insert(len(some)), tuple(chain.from_iterable(some))


def joint_insert_statements(inserts: list[Insert]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield statements with their parameters that together insert the rows of all tables, with placeholders `$1`.

    One statement if they are few, else one for each table: each number of rows is another statement to prepare, and
    joined, so is each combination of such numbers.
    """
    if all(len(rows) <= _JOINT_ROWS for _, rows in inserts):
        shape = tuple((table, len(rows)) for table, rows in inserts)
        yield _joint_insert(shape), tuple(chain.from_iterable(table.values(rows) for table, rows in inserts))
        return
    for table, rows in inserts:
        for some in split_rows(rows, _SIZES_IN_MESSAGE):
            yield table.insert(len(some), 1), table.values(some)


@cache
def _joint_insert(shape: tuple[tuple[AppendOnlyTable, int], ...]) -> str:
    texts, first = list[str](), 1
    for table, rows in shape:
        texts.append(table.insert(rows, first))
        first += table.width * rows
    *others, last = texts
    if not others:
        return last
    ctes = ", ".join(f"part{number} as ({text})" for number, text in enumerate(others))
    return f"with {ctes}, {last.removeprefix('with ')}" if last.startswith("with ") else f"with {ctes} {last}"


class RowUpdate:
    """An update of one row by its key, for several rows in one statement on PostgreSQL.

    `text` names the table before each column of its condition. `types` are those of the parameters that are no texts.
    """

    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self.one = Sql(text)
        self._types = {name: types.get(name, "text") for name in self.one._numbers}

    def statements(self, rows: Sequence[Params]) -> Iterator[Statement]:
        """Yield statements that update all rows, with the placeholders `$1` and so on, and fail if one is not updated.

        Two updates of the same row fail too.
        """
        for start in range(0, len(rows), _UPDATE_SIZES[0]):
            some = rows[start : start + _UPDATE_SIZES[0]]
            size = min(size for size in _UPDATE_SIZES if size >= len(some))
            values = [params[name] for params in some for name in self._types]
            # Padded with rows of nulls, which match nothing.
            yield self._joined[size], [*values, *[None] * ((size - len(some)) * len(self._types)), len(some)]

    @cached_property
    def _joined(self) -> dict[int, str]:
        return {size: self._join(size) for size in _UPDATE_SIZES}

    def _join(self, size: int) -> str:
        width, columns = len(self._types), ", ".join(self._types)
        # The types of the first row apply to all rows.
        values = [f"cast(${number} as {kind})" for number, kind in enumerate(self._types.values(), 1)]
        values += [f"${number}" for number in range(width + 1, size * width + 1)]
        given = ", ".join(f"({', '.join(values[start : start + width])})" for start in range(0, len(values), width))
        changes, _, condition = self.one.text.rpartition(" where ")
        update = _PARAMETER.sub(r"given.\1", f"{changes} from given where {condition} returning 1")
        # The cast fails unless as many rows are changed as are given, and the server's log says why.
        changed = f"case count(*) when cast(${size * width + 1} as bigint) then '1' else '{_ROW_CHANGED}' end"
        check = f"select cast({changed} as integer) from changed"  # noqa: S608 - as in _insert
        return f"with given ({columns}) as (values {given}), changed as ({update}) {check}"


def split_rows(rows: Sequence[Row], sizes: Iterable[int]) -> Iterator[Sequence[Row]]:
    """Yield all rows in parts of these sizes, which descend to 1."""
    start = 0
    for size in sizes:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


class PendingRows:
    """Rows of an open transaction that are not written yet: inserts in their order, updates, the last put of a key."""

    __slots__ = ("_by_table", "_puts", "_updates", "tables")

    def __init__(self) -> None:
        self._by_table: dict[str, tuple[AppendOnlyTable, list[tuple[Any, ...]]]] = {}
        self._updates: dict[RowUpdate, list[Params]] = {}
        self._puts: dict[Sql, dict[Row, Params]] = {}
        self.tables: set[str] = set()
        """The tables for which rows are pending."""

    def add(self, table: AppendOnlyTable, rows: Iterable[Row]) -> None:
        entry = self._by_table.get(table.table)
        if entry is None:
            entry = self._by_table[table.table] = (table, [])
            self.tables.add(table.table)
        entry[1].extend(rows)

    def update(self, update: RowUpdate, rows: list[Params]) -> None:
        self._updates.setdefault(update, []).extend(rows)
        self.tables |= update.one.tables

    def put(self, sql: Sql, key: Row, params: Params) -> None:
        """Put a row, in place of an earlier one for the same key."""
        if sql not in self._puts:
            self._puts[sql] = {}
            self.tables |= sql.tables
        self._puts[sql][key] = params

    def find_put(self, sql: Sql, key: Row) -> Params | None:
        return self._puts[sql].get(key) if sql in self._puts else None

    def take(
        self, used: Collection[str] | None = None
    ) -> tuple[list[Insert], dict[RowUpdate, list[Params]], list[tuple[Sql, list[Params]]]]:
        """Remove and return all rows, the puts sorted by their keys; the caller must write them, in this order.

        Updates stay if none of them has a table among `used`.
        """
        inserts = [(table, table.join(rows) if table.join else rows) for table, rows in self._by_table.values()]
        updates = self._updates
        puts = [(sql, [params for _, params in sorted(by_key.items())]) for sql, by_key in self._puts.items()]
        self._by_table, self._updates, self._puts, self.tables = {}, {}, {}, set()
        if used is not None and all(update.one.tables.isdisjoint(used) for update in updates):
            for update, rows in updates.items():
                self.update(update, rows)
            updates = {}
        return inserts, updates, puts


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

    def reader(self, *, may_idle: bool = False) -> DbConnection:
        return self._driver.reader(may_idle=may_idle)

    def lock_session(self) -> LockSession:
        raise StoreUnavailable("This process has opened the database read-only.")

    def wait_less(self) -> None:
        self._driver.wait_less()
