"""Reads that the functions of a group share: prefetched for all of them in one statement, or cached by the first one.

Nothing outdated is returned: a write to a table drops what was read from it, and later functions read again. What other
processes commit meanwhile may be missed, as after any read without a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stentor.core.db.rows_sql import RowsSql
from stentor.core.db.sql import Read, Row, Sql

Prefetch = tuple[RowsSql, Row]
"""A statement and its parameters, a row of texts. Each result row begins with the same columns."""


class PrefetchedReads:
    """The results of statements, by the rows that were given."""

    __slots__ = ("_found", "_kept", "_parts")

    def __init__(self, wanted: Iterable[Prefetch]) -> None:
        self._kept: dict[tuple[Sql, str], list[Row]] = {}
        self._found: dict[RowsSql, dict[Row, list[Row]]] = {}
        for sql, given in wanted:
            # A row that is given twice is taken once: the second function reads what the first one wrote.
            self._found.setdefault(sql, {})[given] = []
        self._parts = [
            (sql, part) for sql, by_given in self._found.items() for part in sql.padded_chunks(list(by_given))
        ]

    @property
    def reads(self) -> list[Read]:
        """The statements to execute before the first function runs."""
        return [part for _, part in self._parts]

    def fill(self, results: Iterable[list[Row]]) -> None:
        """Take the rows of each of the statements."""
        for (sql, _), rows in zip(self._parts, results, strict=True):
            by_given, width = self._found[sql], len(sql.columns)
            for row in rows:
                by_given[row[:width]].append(row)

    def take(self, sql: RowsSql, given: Row) -> list[Row] | None:
        """Return the rows of a statement once; None if they were not read, or may have changed."""
        return self._found.get(sql, {}).pop(given, None)

    def find_kept(self, sql: Sql, parameters: str) -> list[Row] | None:
        """Return the rows that `keep` stored for these parameters; None without any, or if they may have changed."""
        return self._kept.get((sql, parameters))

    def keep(self, sql: Sql, parameters: str, rows: list[Row]) -> None:
        self._kept[sql, parameters] = rows

    def forget(self, tables: Collection[str]) -> None:
        """Forget what was read of tables that change."""
        for key in [key for key in self._kept if not key[0].tables.isdisjoint(tables)]:
            del self._kept[key]
        for sql in [sql for sql in self._found if not sql.tables.isdisjoint(tables)]:
            del self._found[sql]
