"""Units that share a commit: what fails is undone alone, what is added up is written once. On both databases."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from stentor.core.db import AppendOnlyTable, CounterTable, Database, RowsSql, RowUpdate, Sql, Tx
from stentor.core.db.counters import write_increments
from stentor.core.db.driver import DbConnection, Driver
from stentor.core.db.group_commit import MAX_TRIES, WriteUnit, run_group
from stentor.core.db.sql import Params
from stentor.core.db.transaction import LockContended
from stentor.core.errors import Conflict, StoreConflict, StoreUnavailable
from tests.core.test_database import held, names, put

COUNT = CounterTable("task_counts", ("tenant", "hour", "status", "agent_id"))
COUNTS = Sql("select status, n from task_counts order by status")


async def together(db: Database, *units: Callable[[Tx], Any]) -> list[Any]:
    """Run units in one group; their results or errors."""
    holding, go_on = await held(db)
    waiting = [asyncio.create_task(db.write(unit)) for unit in units]
    await asyncio.sleep(0)
    go_on.set()
    await holding
    return await asyncio.gather(*waiting, return_exceptions=True)


async def counts(db: Database) -> dict[str, int]:
    return dict(await db.read(lambda tx: tx.rows(COUNTS)))


async def test_a_unit_that_fails_after_it_wrote_leaves_nothing_and_the_others_are_done_once(db: Database) -> None:
    runs: Counter[str] = Counter()
    called: list[str] = []

    def good(tx: Tx) -> str:
        runs["good"] += 1
        put("good")(tx)
        tx.after_commit(lambda: called.append("good"))
        return "done"

    def bad(tx: Tx) -> None:
        put("bad")(tx)
        tx.after_commit(lambda: called.append("bad"))
        raise Conflict("too late")

    results = await together(db, good, bad)
    assert results[0] == "done"
    assert isinstance(results[1], Conflict)
    assert (await names(db), called) == (["good"], ["good"])
    assert runs["good"] == 2  # the first run was rolled back with the unit that broke it


async def test_a_refusal_before_any_write_costs_the_others_nothing(db: Database) -> None:
    runs: Counter[str] = Counter()

    def good(tx: Tx) -> None:
        runs["good"] += 1
        put("good")(tx)

    def refuse(tx: Tx) -> None:
        tx.rows(COUNTS)
        raise Conflict("no")

    results = await together(db, refuse, good, refuse)
    assert [type(result) for result in results] == [Conflict, type(None), Conflict]
    assert (await names(db), runs["good"]) == (["good"], 1)


async def test_a_unit_that_the_store_fails_is_an_outage_until_a_commit_without_one(db: Database) -> None:
    def full(tx: Tx) -> None:
        put("b")(tx)
        raise StoreUnavailable("disk full")

    def look() -> tuple[float, float]:
        samples = {
            sample.name: sample.value
            for family in db.collect_metrics()
            for sample in family.samples
            if sample.labels.get("operation") == "write"
        }
        return samples["stentor_database_outage"], samples["stentor_database_failures_total"]

    results = await together(db, put("a"), full)
    assert isinstance(results[1], StoreUnavailable)
    assert (await names(db), look()) == (["a"], (1, 1))
    await db.write(put("c"))
    assert look() == (0, 1)


async def test_what_units_add_is_summed_and_what_failing_ones_add_is_not(db: Database) -> None:
    def add(status: str, n: int) -> Callable[[Tx], None]:
        return lambda tx: tx.increment(COUNT, ("t", 1, status, ""), n)

    def fail(tx: Tx) -> None:
        put("x")(tx)
        tx.increment(COUNT, ("t", 1, "queued", ""), 100)
        raise Conflict("no")

    await together(db, add("queued", 1), add("queued", 1), fail, add("failed", 1), add("failed", -1), add("done", 1))
    assert await counts(db) == {"queued": 2, "done": 1}
    await db.write(add("queued", -2))
    assert await counts(db) == {"queued": 0, "done": 1}


@pytest.mark.parametrize("size", [1, 4, 6, 7, 100])
async def test_the_counters_of_a_commit_are_written_with_few_statements(db: Database, size: int) -> None:
    statements: list[Sql] = []

    class Watched:
        def __init__(self, connection: DbConnection) -> None:
            self._connection = connection

        def run(self, sql: Sql, params: Params) -> int:
            statements.append(sql)
            return self._connection.run(sql, params)

    increments = [(COUNT, ("t", 1, f"status {n}", ""), (n + 1,)) for n in range(size)]
    connection = db.driver.writer()
    for _ in range(2):
        connection.begin()
        write_increments(Watched(connection).run, increments)
        connection.commit()
    connection.close()
    assert await counts(db) == {f"status {n}": 2 * (n + 1) for n in range(size)}
    assert len(statements) == 2 * {1: 1, 4: 1, 6: 1, 7: 2, 100: 3}[size]
    assert {sql.tables for sql in statements} == {frozenset(["task_counts"])}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
async def test_the_end_of_a_unit_is_told_once_after_its_transaction(db: Database, *, fails: bool, leaves: bool) -> None:
    order: list[str] = []

    def work(tx: Tx) -> None:
        put("x")(tx)
        tx.after_commit(lambda: order.append("committed"))
        if fails:
            raise Conflict("no")

    holding, go_on = await held(db)
    writing = asyncio.create_task(db.write(work, on_end=lambda: order.append("ended")))
    await asyncio.sleep(0)
    if leaves:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    assert order == []
    go_on.set()
    await asyncio.gather(holding, writing, return_exceptions=True)
    await db.write(lambda _: None)
    assert order == (["ended"] if fails else ["committed", "ended"])


async def test_the_end_is_told_when_the_database_is_closed(driver: Driver) -> None:
    db, ends = Database(driver), list[str]()
    await asyncio.to_thread(db.close)
    with pytest.raises(StoreUnavailable):
        await db.write(lambda _: None, on_end=lambda: ends.append("ended"))
    assert ends == ["ended"]


async def test_a_part_that_fails_takes_back_what_it_added(db: Database) -> None:
    def work(tx: Tx) -> None:
        tx.increment(COUNT, ("t", 1, "queued", ""), 1)
        try:
            with tx.savepoint():
                tx.increment(COUNT, ("t", 1, "queued", ""), 5)
                raise Conflict("no")
        except Conflict:
            pass

    await db.write(work)
    assert await counts(db) == {"queued": 1}


async def test_the_counts_of_a_commit_are_in_the_same_commit(db: Database) -> None:
    def work(tx: Tx) -> None:
        tx.increment(COUNT, ("t", 1, "queued", ""), 1)
        assert tx.rows(COUNTS) == []

    await db.write(work)
    assert await counts(db) == {"queued": 1}


NAMED = AppendOnlyTable("rate_buckets", ("agent_id", "tool", "tokens", "updated_at"))
PREFETCHED_NAMES = RowsSql(
    ("agent_id",), "select given.agent_id, r.tokens from given join rate_buckets r on r.agent_id = given.agent_id"
)


def named(name: str, tokens: int) -> tuple[str, str, int, int]:
    return name, "t", tokens, 0


async def ahead_together(db: Database, *units: tuple[Callable[[Tx], Any], str]) -> list[Any]:
    """Run units in one group, with what each of them prefetches."""
    holding, go_on = await held(db)
    waiting = [asyncio.create_task(db.write(unit, prefetch=[(PREFETCHED_NAMES, (name,))])) for unit, name in units]
    await asyncio.sleep(0)
    go_on.set()
    await holding
    return await asyncio.gather(*waiting)


def claim(name: str) -> tuple[Callable[[Tx], Any], str]:
    """Insert a name; the unit returns whether it was there before it, and whether it was inserted."""
    return lambda tx: (bool(tx.prefetched_rows(PREFETCHED_NAMES, (name,))), tx.insert_new(NAMED, named(name, 1))), name


async def test_of_units_that_insert_the_same_key_one_does_and_the_others_are_told(db: Database) -> None:
    results = await ahead_together(db, claim("a"), claim("b"), claim("a"))
    assert results == [(False, True), (False, True), (True, False)]
    assert await ahead_together(db, claim("c"), claim("b")) == [(False, True), (True, False)]


async def test_a_unit_that_does_not_look_first_is_told_by_the_second_run(db: Database) -> None:
    await db.write(lambda tx: tx.insert_new(NAMED, named("a", 1)))
    runs: Counter[str] = Counter()

    def insert(tx: Tx, name: str) -> bool:
        runs[name] += 1
        return tx.insert_new(NAMED, named(name, 2))

    results = await together(db, lambda tx: insert(tx, "a"), lambda tx: insert(tx, "b"))
    assert (results, runs) == ([False, True], {"a": 2, "b": 2})


async def test_what_was_read_ahead_is_forgotten_when_its_table_changes(db: Database) -> None:
    await db.write(lambda tx: tx.insert_new(NAMED, named("a", 1)))

    def change(tx: Tx) -> None:
        tx.run(Sql("update rate_buckets set tokens = 2 where agent_id = 'a'"))

    def append(tx: Tx) -> None:
        tx.append(NAMED, named("b", 3))

    def read(name: str) -> tuple[Callable[[Tx], Any], str]:
        return lambda tx: tx.prefetched_rows(PREFETCHED_NAMES, (name,)), name

    assert await ahead_together(db, read("a"), (change, "x"), read("a")) == [[("a", 1)], None, [("a", 2)]]
    assert await ahead_together(db, read("b"), (append, "x"), read("b")) == [[], None, [("b", 3)]]


async def test_a_read_that_units_share_is_executed_again_only_after_a_write_to_its_table(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Sql("select agent_id, tokens from rate_buckets where agent_id = :name")
    executed: list[str] = []
    rows = Tx.rows

    def counted(tx: Tx, sql: Sql, **params: Any) -> list[Any]:
        executed.append(params["name"])
        return rows(tx, sql, **params)

    def read(name: str) -> Callable[[Tx], Any]:
        return lambda tx: tx.rows_once(tokens, name=name)

    await db.write(lambda tx: tx.append(NAMED, named("a", 1)))
    monkeypatch.setattr(Tx, "rows", counted)
    change = Sql("update rate_buckets set tokens = 2 where agent_id = 'a'")
    found = await together(db, read("a"), read("b"), read("a"), lambda tx: tx.run(change), read("a"), read("a"))
    assert found == [[("a", 1)], [], [("a", 1)], 1, [("a", 2)], [("a", 2)]]
    assert executed == ["a", "b", "a"]
    await together(db, read("a"), read("a"))
    assert executed == ["a", "b", "a", "a"], "the next group reads again"


async def test_a_read_ahead_that_fails_fails_its_unit_alone(db: Database) -> None:
    broken = RowsSql(("agent_id",), "select agent_id, missing from given")
    holding, go_on = await held(db)
    wrong = asyncio.create_task(db.write(lambda tx: tx.prefetched_rows(broken, ("a",)), prefetch=[(broken, ("a",))]))
    right = asyncio.create_task(db.write(lambda tx: tx.insert_new(NAMED, named("a", 1))))
    await asyncio.sleep(0)
    go_on.set()
    await holding
    results = await asyncio.gather(wrong, right, return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert results[1] is True


class Contended:
    """A connection whose transactions wait for locks now and then, and conflict at every commit."""

    def __init__(self) -> None:
        self.commits = 0
        self.locks: set[str] = set()

    def begin(self, locks: set[str] | tuple[str, ...]) -> int:
        self.locks = set(locks)
        return 0

    def commit(self) -> None:
        self.commits += 1
        raise StoreConflict("another transaction was first")

    def rollback(self) -> None: ...

    def in_transaction(self) -> bool:
        return False

    def control(self, text: str) -> None: ...

    def run(self, *statement: Any) -> int:
        raise AssertionError("nothing is to be written")

    run_at_commit = run


async def test_a_group_that_conflicts_again_and_again_is_given_up_even_if_it_waited_for_locks() -> None:
    connection, names = Contended(), [f"lock {n}" for n in range(MAX_TRIES)]

    def work(tx: Tx) -> None:
        if missing := next((name for name in names if name not in connection.locks), None):
            raise LockContended(missing)

    loop = asyncio.get_running_loop()
    unit = WriteUnit(work, (), loop, loop.create_future())
    with pytest.raises(StoreConflict):
        await asyncio.to_thread(run_group, cast(Any, connection), [unit])
    assert connection.commits == MAX_TRIES


PUT_BUCKET = Sql(
    """insert into rate_buckets (agent_id, tool, tokens, updated_at) values (:agent_id, 't', :tokens, 0)
    on conflict (agent_id, tool) do update set tokens = excluded.tokens"""
)
BUCKETS = Sql("select agent_id, tokens from rate_buckets order by agent_id")


def add_tokens(name: str, tokens: int, seen: list[float]) -> Callable[[Tx], None]:
    """Read a row, add to it and put it back."""

    def work(tx: Tx) -> None:
        put_before = tx.find_put(PUT_BUCKET, (name,))
        found = [(name, put_before["tokens"])] if put_before else tx.rows(BUCKETS)
        before = dict(found).get(name, 0)
        seen.append(before)
        tx.put(PUT_BUCKET, (name,), agent_id=name, tokens=before + tokens)

    return work


async def test_units_that_share_a_commit_see_each_others_puts_and_write_the_last_one(db: Database) -> None:
    seen: list[float] = []
    await together(db, add_tokens("a", 1, seen), add_tokens("a", 2, seen), add_tokens("a", 4, seen))
    assert seen == [0, 1, 3]
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("a", 7)]
    await db.write(add_tokens("a", 8, seen))
    assert seen[3:] == [7]
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("a", 15)]


async def test_a_statement_of_the_same_transaction_finds_what_was_put(db: Database) -> None:
    def work(tx: Tx) -> list[Any]:
        add_tokens("b", 2, [])(tx)
        add_tokens("a", 1, [])(tx)
        return tx.rows(BUCKETS)

    assert await db.write(work) == [("a", 1), ("b", 2)]


CHANGE_BUCKET = RowUpdate(
    """update rate_buckets set tokens = :tokens where rate_buckets.agent_id = :name
        and rate_buckets.tokens = :expected""",
    {"tokens": "double precision", "expected": "double precision"},
)


def change(name: str, expected: int, tokens: int, runs: list[str]) -> Callable[[Tx], bool]:
    """Set the tokens of a row that has the expected ones; the unit returns whether it did."""

    def work(tx: Tx) -> bool:
        runs.append(name)
        changed = tx.update_row(CHANGE_BUCKET, name=name, expected=expected, tokens=tokens)
        tx.increment(COUNT, ("t", 1, "changed", ""), int(changed))
        return changed

    return work


async def test_updates_of_rows_that_are_as_expected_are_done_in_one_run(db: Database) -> None:
    await db.write(lambda tx: tx.append(NAMED, named("a", 1), named("b", 1)))
    runs: list[str] = []
    assert await together(db, change("a", 1, 2, runs), change("b", 1, 3, runs)) == [True, True]
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("a", 2), ("b", 3)]
    assert (await counts(db), runs) == ({"changed": 2}, ["a", "b"])
    again = await together(db, change("a", 2, 4, runs), change("a", 4, 5, runs))
    assert (again, (await db.read(lambda tx: tx.rows(BUCKETS)))[0]) == ([True, True], ("a", 5))


@pytest.mark.parametrize("number", [1, 2, 5, 16, 17, 40])
async def test_any_number_of_rows_is_updated_with_a_commit(db: Database, number: int) -> None:
    every = [f"row {n:02}" for n in range(number)]
    await db.write(lambda tx: tx.append(NAMED, *(named(name, 1) for name in [*every, "other"])))
    runs: list[str] = []
    units = [change(name, 1, n, runs) for n, name in enumerate(every)]
    assert await together(db, *units) == [True] * number
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("other", 1), *((name, n) for n, name in enumerate(every))]
    assert runs == every


async def test_an_update_of_a_row_that_has_changed_is_told_and_the_others_are_done_once(db: Database) -> None:
    await db.write(lambda tx: tx.append(NAMED, named("a", 1), named("b", 1)))
    runs: list[str] = []
    late = change("a", 1, 9, runs)
    assert await together(db, change("a", 1, 2, runs), late, change("b", 1, 2, runs)) == [True, False, True]
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("a", 2), ("b", 2)]
    assert await db.write(late) is False
    assert await counts(db) == {"changed": 2}


async def test_a_statement_finds_the_updates_before_it_and_a_late_one_is_told(db: Database) -> None:
    await db.write(lambda tx: tx.append(NAMED, named("a", 1)))
    runs: list[str] = []
    found = await together(db, change("a", 1, 2, runs), lambda tx: tx.rows(BUCKETS))
    assert (found, len(runs)) == ([True, [("a", 2)]], 1)
    found = await together(db, change("a", 1, 3, runs), lambda tx: tx.rows(BUCKETS))
    assert found == [False, [("a", 2)]]


async def test_a_unit_or_a_part_that_fails_takes_back_its_updates(db: Database) -> None:
    await db.write(lambda tx: tx.append(NAMED, named("a", 1)))
    runs: list[str] = []

    def fail_in_part(tx: Tx) -> bool:
        try:
            with tx.savepoint():
                change("a", 1, 9, runs)(tx)
                raise Conflict("no")
        except Conflict:
            return change("a", 1, 2, runs)(tx)

    assert await db.write(fail_in_part) is True
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("a", 2)]
    assert await counts(db) == {"changed": 1}


async def test_a_unit_or_a_part_that_fails_takes_back_what_it_put(db: Database) -> None:
    def fail(tx: Tx) -> None:
        add_tokens("a", 100, [])(tx)
        raise Conflict("no")

    def fail_in_part(tx: Tx) -> None:
        add_tokens("a", 1, [])(tx)
        try:
            with tx.savepoint():
                add_tokens("a", 200, [])(tx)
                raise Conflict("no")
        except Conflict:
            add_tokens("a", 1, [])(tx)

    await together(db, add_tokens("a", 1, []), fail, add_tokens("a", 1, []), fail_in_part)
    assert await db.read(lambda tx: tx.rows(BUCKETS)) == [("a", 4)]


@pytest.mark.parametrize("writes_first", [False, True])
async def test_what_a_refused_unit_holds_is_freed_without_the_garbage_collector(
    db: Database, writes_first: bool
) -> None:
    async def refused() -> weakref.ref[Any]:
        held = Counter[str]()

        def refuse(tx: Tx) -> None:
            if writes_first:
                put("some")(tx)
            raise Conflict(f"no {held}")

        try:
            await db.write(refuse)
        except Conflict:
            return weakref.ref(held)
        raise AssertionError("it was not refused")

    gc.disable()
    try:
        reference = await refused()
        await db.write(put("another"))  # the writer has let go of the group before
        assert reference() is None
    finally:
        gc.enable()
