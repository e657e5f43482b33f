"""Statements that take many rows at once, where one statement for each would take most of the time.

Reads and updates of given rows are `RowsSql`. Rows that are inserted or updated in a transaction are collected in
`PendingRows`, and written together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import Any

from stentor.core.db.sql import PARAMETER, Params, Row, Sql, Statement

_SIZES = (64, 16, 4, 1)
"""Rows in one statement: few different ones, so that few statements have to be prepared."""


class RowsSql:
    """A statement that begins with `with given (...) as (values ...)`, a table of the rows that it is given.

    `text` follows, `columns` are the columns of `given`. Cast those that are no text: PostgreSQL takes a parameter in
    `values` for one.
    """

    __slots__ = ("columns", "statements", "tables")

    def __init__(self, columns: tuple[str, ...], text: str) -> None:
        self.columns = columns
        self.statements = {size: Sql(f"{_head(columns, size)} {text}") for size in _SIZES}
        self.tables = self.statements[1].tables

    def chunks(self, rows: Sequence[Row]) -> Iterator[tuple[Sql, Params]]:
        """Yield statements with their parameters that together take all rows."""
        for batch in split_rows(rows, _SIZES):
            yield self._statement(batch)

    def padded_chunks(self, rows: Sequence[Row]) -> Iterator[tuple[Sql, Params]]:
        """Yield fewer statements than `chunks`, padded with rows of nulls, which must match nothing."""
        for start in range(0, len(rows), _SIZES[0]):
            batch = rows[start : start + _SIZES[0]]
            size = min(size for size in _SIZES if size >= len(batch))
            yield self._statement([*batch, *[(None,) * len(self.columns)] * (size - len(batch))])

    def _statement(self, rows: Sequence[Row]) -> tuple[Sql, Params]:
        names = _names(self.columns, len(rows))
        return self.statements[len(rows)], dict(zip(names, chain.from_iterable(rows), strict=True))


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


class NumberedTable(AppendOnlyTable):
    """An append-only table with one more column, in which PostgreSQL numbers the rows of a group as they are inserted.

    SQLite leaves it to its default. `group_of` returns the values of `group`, which are names and their types, or None
    for a row without a group: its number is 0. `function` is one of PostgreSQL that takes them and returns the number
    of the first row and the greatest possible one, or null. It does not see the rows that are inserted with it.
    """

    def __init__(
        self,
        table: str,
        columns: tuple[str, ...],
        column: str,
        *,
        group: Mapping[str, str],
        group_of: Callable[[Row], Row | None],
        function: str,
    ) -> None:
        super().__init__(table, columns)
        self.column, self.group, self.function = column, group, function
        self.width = len(columns) + 2 + len(group)
        self._group_of = group_of

    def insert(self, rows: int, first: int | None = None) -> str:
        return super().insert(rows) if first is None else _numbered_insert(self, rows, first)

    def values(self, rows: Sequence[Row]) -> Row:
        counts: dict[Row, int] = {}
        places: dict[Row, int] = {}
        values: list[Any] = []
        for row in rows:
            values += row
            group = self._group_of(row)
            if group is None:
                values += (0, None)
            else:
                counts[group] = counts.get(group, -1) + 1
                values += (counts[group], places.setdefault(group, len(places)))
        for group in places:
            values += group
        values += (None,) * (len(self.group) * (len(rows) - len(places)))
        return tuple(values)


@cache
def _numbered_insert(table: NumberedTable, rows: int, first: int) -> str:
    """Return the statement, with place for as many groups as there are rows, so that it is always the same one."""
    numbers = iter(range(first, first + rows * table.width))
    inserted = list[str]()
    for _ in range(rows):
        row = [f"${next(numbers)}" for _ in table.columns]
        count, place = f"cast(${next(numbers)} as bigint)", f"cast(${next(numbers)} as integer)"
        found = f"select least(first + {count}, most) from numbered where place = {place}"  # noqa: S608 - as in driver
        inserted.append(f"({', '.join(row)}, coalesce(({found}), 0))")
    types = table.group.values()
    given = (", ".join(f"cast(${next(numbers)} as {kind})" for kind in types) for _ in range(rows))
    groups = ", ".join(f"({place}, {values})" for place, values in enumerate(given))
    names = ", ".join(table.group)
    return (
        f"with numbered (place, first, most) as materialized (select given.place, numbers.*"  # noqa: S608
        f" from (values {groups}) as given (place, {names}), {table.function}({names}) as numbers"
        f" where {next(iter(table.group))} is not null)"
        f" insert into {table.table} ({', '.join(table.columns)}, {table.column}) values {', '.join(inserted)}"
    )


@cache
def _names(columns: tuple[str, ...], size: int) -> list[str]:
    return [f"{column}_{n}" for n in range(size) for column in columns]


def _head(columns: tuple[str, ...], size: int) -> str:
    rows = (", ".join(f":{column}_{n}" for column in columns) for n in range(size))
    return f"with given ({', '.join(columns)}) as (values {', '.join(f'({row})' for row in rows)})"


class RowUpdate:
    """An update of one row by its key, for several rows in one statement on PostgreSQL.

    `text` names the table before each column of its condition. `types` are those of the parameters that are no texts.
    """

    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self.one = Sql(text)
        self._types = {name: types.get(name, "text") for name in self.one.numbers}

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
        update = PARAMETER.sub(r"given.\1", f"{changes} from given where {condition} returning 1")
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
