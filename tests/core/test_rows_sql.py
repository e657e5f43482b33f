"""Statements that take many rows: each row is in one of their parts, whatever the number."""

from __future__ import annotations

import pytest

from stentor.core.db import Database, RowsSql

SUMS = RowsSql(
    ("name", "number"),
    "select given.name, cast(given.number as bigint) + cast(:more as bigint) from given order by given.name",
)


@pytest.mark.parametrize("count", [0, 1, 3, 64, 65, 150])
async def test_each_row_is_taken_once(db: Database, count: int) -> None:
    rows = [(f"row {number:03}", number) for number in range(count)]
    found = await db.read(lambda tx: tx.rows_for(SUMS, rows, more=1000))
    assert found == [(name, number + 1000) for name, number in rows]


def test_few_different_statements_are_made() -> None:
    sizes = {count: [len(values) // 2 for _, values in SUMS.chunks([("a", 1)] * count)] for count in (5, 90, 129)}
    assert sizes == {5: [4, 1], 90: [64, 16, 4, 4, 1, 1], 129: [64, 64, 1]}
