"""The distinct values of a column, read value by value through an index: fast however many rows there are."""

from __future__ import annotations

from collections.abc import Iterator

from stentor.core.db.driver import Sql
from stentor.core.db.transaction import Tx


def iter_distinct(tx: Tx, next_value: Sql, **params: str) -> Iterator[str]:
    """Yield the values in their order; `next_value` selects the least one that is greater than `:after`."""
    value = ""
    while (row := tx.row(next_value, after=value, **params)) and row[0] is not None:
        value = str(row[0])
        yield value
