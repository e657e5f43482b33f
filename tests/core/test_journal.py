"""Rows that are written with the commit: never late for a reader, never a burden for other units. On both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from stentor.core.db import AppendOnlyTable, Database, Sql, Tx
from stentor.core.errors import Conflict
from tests.core.test_group_commit import together

LINES = AppendOnlyTable("rate_buckets", ("agent_id", "tool", "tokens", "updated_at"))
OF_TOOL = Sql("select agent_id from rate_buckets where tool = :tool order by updated_at")
RENAME = Sql("update rate_buckets set tool = 'renamed' where agent_id = :agent_id")


def line(name: str, tool: str = "t", order: int = 0) -> Callable[[Tx], None]:
    return lambda tx: tx.append(LINES, (name, tool, 1.0, order))


async def names(db: Database, tool: str = "t") -> list[str]:
    return [row[0] for row in await db.read(lambda tx: tx.rows(OF_TOOL, tool=tool))]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 200])
async def test_every_row_is_written_in_its_order(db: Database, count: int) -> None:
    def work(tx: Tx) -> None:
        for i in range(count):
            line(f"{i:03}", order=i)(tx)

    await db.write(work)
    assert await names(db) == [f"{i:03}" for i in range(count)]


async def test_rows_of_many_units_share_a_commit(db: Database) -> None:
    await together(db, *(line(f"{i:03}", order=i) for i in range(100)))
    assert await names(db) == [f"{i:03}" for i in range(100)]


async def test_a_unit_reads_what_it_appended_and_what_others_did_before_it(db: Database) -> None:
    def look(tx: Tx) -> list[str]:
        line("second", order=2)(tx)
        return [row[0] for row in tx.rows(OF_TOOL, tool="t")]

    assert (await together(db, line("first", order=1), look))[1] == ["first", "second"]


async def test_a_change_of_the_table_meets_the_rows_that_wait(db: Database) -> None:
    def work(tx: Tx) -> int:
        line("a")(tx)
        return tx.run(RENAME, agent_id="a")

    assert await db.write(work) == 1
    assert await names(db, "renamed") == ["a"]


async def test_a_row_that_is_refused_fails_its_own_unit_only(db: Database) -> None:
    called: list[str] = []

    def twice(tx: Tx) -> None:
        line("a")(tx)
        tx.after_commit(lambda: called.append("twice"))

    results = await together(db, line("a"), twice, line("b", order=1))
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    assert await names(db) == ["a", "b"]
    assert called == []


async def test_rows_of_a_unit_that_fails_are_not_written(db: Database) -> None:
    runs: Counter[str] = Counter()

    def good(tx: Tx) -> None:
        runs["good"] += 1
        line("good")(tx)

    def bad(tx: Tx) -> None:
        line("bad")(tx)
        raise Conflict("no")

    results = await together(db, good, bad)
    assert isinstance(results[1], Conflict)
    assert (await names(db), runs["good"]) == (["good"], 2)


@pytest.mark.parametrize("refused", [False, True], ids=["it raises", "its row is refused"])
async def test_rows_of_a_part_that_fails_are_not_written(db: Database, refused: bool) -> None:
    def part(tx: Tx) -> None:
        with tx.savepoint():
            line("before" if refused else "inside", order=1)(tx)
            if not refused:
                raise Conflict("no")

    def work(tx: Tx) -> str:
        line("before")(tx)
        try:
            part(tx)
        except Exception as error:  # noqa: BLE001 - each database has its own
            line("after", order=2)(tx)
            return type(error).__name__
        return "nothing"

    assert "nothing" not in await together(db, work)
    assert await names(db) == ["before", "after"]
