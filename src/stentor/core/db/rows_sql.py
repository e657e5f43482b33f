"""Statements that take many rows at once, where one statement for each would take most of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from stentor.core.db.driver import AppendOnlyTable, Row, Sql, split_rows

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

    def chunks(self, rows: Sequence[Row]) -> Iterator[tuple[Sql, dict[str, Any]]]:
        """Yield statements with their parameters that together take all rows."""
        for batch in split_rows(rows, _SIZES):
            yield self._statement(batch)

    def padded_chunks(self, rows: Sequence[Row]) -> Iterator[tuple[Sql, dict[str, Any]]]:
        """Yield fewer statements than `chunks`, padded with rows of nulls, which must match nothing."""
        for start in range(0, len(rows), _SIZES[0]):
            batch = rows[start : start + _SIZES[0]]
            size = min(size for size in _SIZES if size >= len(batch))
            yield self._statement([*batch, *[(None,) * len(self.columns)] * (size - len(batch))])

    def _statement(self, rows: Sequence[Row]) -> tuple[Sql, dict[str, Any]]:
        names = _names(self.columns, len(rows))
        return self.statements[len(rows)], dict(zip(names, chain.from_iterable(rows), strict=True))


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
