"""Counters stored in rows that many transactions change.

The increments of all transactions that share a commit are summed, and each table is written with one statement: on
PostgreSQL each statement is a round trip, and its rows are locked from then on.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from stentor.core.db.rows_sql import split_rows
from stentor.core.db.sql import Params, Row, Sql

Execute = Callable[[Sql, Params], object]
_SIZES = (64, 32, 16, 12, 8, 6, 4, 2, 1)
"""Numbers of rows in one statement. There are few of them, because each is a statement to prepare."""


class CounterTable:
    """A table whose rows have the primary key `key`, and counters in the columns `counts`."""

    __slots__ = ("_by_size", "_columns", "table")

    def __init__(self, table: str, key: tuple[str, ...], counts: tuple[str, ...] = ("n",)) -> None:
        self.table = table
        self._columns = (*key, *counts)
        self._by_size = {size: Sql(_upsert(table, key, counts, size)) for size in _SIZES}

    @property
    def statements(self) -> list[Sql]:
        """The statements that add to rows, one for each number of rows."""
        return list(self._by_size.values())

    def write(self, execute: Execute, rows: list[Row]) -> None:
        """Add to counters. A row is a key and the amounts; no two of them have the same key."""
        for part in split_rows(rows, _SIZES):
            names = (f"{column}_{n}" for n in range(len(part)) for column in self._columns)
            params = dict(zip(names, chain.from_iterable(part), strict=True))
            execute(self._by_size[len(part)], params)


CounterIncrement = tuple[CounterTable, Row, tuple[Any, ...]]
"""Table, key and amounts."""


def write_increments(execute: Execute, increments: Iterable[CounterIncrement]) -> None:
    """Execute the statements that add the sums, sorted by table and key: every process locks rows in the same order."""
    sums: dict[CounterTable, dict[Row, tuple[Any, ...]]] = defaultdict(dict)
    for table, key, amounts in increments:
        total = sums[table].get(key)
        sums[table][key] = amounts if total is None else tuple(map(operator.add, total, amounts))
    for table, totals in sorted(sums.items(), key=lambda item: item[0].table):
        if rows := [(*key, *amounts) for key, amounts in sorted(totals.items()) if any(amounts)]:
            table.write(execute, rows)


def _upsert(table: str, key: tuple[str, ...], counts: tuple[str, ...], size: int) -> str:
    columns = (*key, *counts)
    rows = (", ".join(f":{column}_{n}" for column in columns) for n in range(size))
    values = ", ".join(f"({row})" for row in rows)
    sums = ", ".join(f"{column} = {table}.{column} + excluded.{column}" for column in counts)
    head = f"insert into {table} ({', '.join(columns)}) values {values}"  # noqa: S608 - the names come from the code
    return f"{head} on conflict ({', '.join(key)}) do update set {sums}"
