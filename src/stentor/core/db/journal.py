"""Rows that are only ever added: written many at once, just before their commit or before they are read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

MOST = 64
"""Rows of one statement at most."""


class Journal:
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


def statements(journal: Journal, rows: list[tuple[Any, ...]], mark: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Statements with their parameters that insert all rows; a few sizes only, so that each is prepared once."""
    start, size = 0, MOST
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield journal.insert(size, mark), tuple(chain.from_iterable(rows[start : start + size]))
        start += size


class Pending:
    """Rows of an open transaction that are not written yet, in the order in which they came."""

    __slots__ = ("_by_table",)

    def __init__(self) -> None:
        self._by_table: dict[str, tuple[Journal, list[tuple[Any, ...]]]] = {}

    def add(self, journal: Journal, row: tuple[Any, ...]) -> None:
        known = self._by_table.get(journal.table)
        if known is None:
            known = self._by_table[journal.table] = (journal, [])
        known[1].append(row)

    def touches(self, tables: frozenset[str]) -> bool:
        return not tables.isdisjoint(self._by_table)

    def take(self) -> list[tuple[Journal, list[tuple[Any, ...]]]]:
        """All of them, which are the caller's to write now."""
        taken = list(self._by_table.values())
        self._by_table = {}
        return taken
