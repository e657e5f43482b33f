"""Statements that take many rows at once, where one statement for each would take most of the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from stentor.core.db.driver import Row, Sql, split_rows

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


@cache
def _names(columns: tuple[str, ...], size: int) -> list[str]:
    return [f"{column}_{n}" for n in range(size) for column in columns]


def _head(columns: tuple[str, ...], size: int) -> str:
    rows = (", ".join(f":{column}_{n}" for column in columns) for n in range(size))
    return f"with given ({', '.join(columns)}) as (values {', '.join(f'({row})' for row in rows)})"
