"""Several statements in one message to PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stentor.core import ids, migrations
from stentor.core.db import AppendOnlyTable, Database, RowsSql, Sql, Tx
from stentor.core.db.locks.locks import NAMED_LOCKS
from stentor.core.db.postgres import driver as postgres
from stentor.core.db.postgres import pipeline
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.postgres.pipeline import Pipeline, PipelineError
from stentor.core.db.postgres.server_waits import LimitedConnection
from stentor.core.db.rows_sql import joint_insert_statements

NAMES = AppendOnlyTable("events_waiting", ("event_id", "leaf"))
FIND = RowsSql(("name",), "select given.name, leaf from given join events_waiting on event_id = given.name")
LIST = Sql("select event_id, leaf from events_waiting order by event_id")


@pytest.fixture
def db(postgres_url: str) -> Iterator[Database]:
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    database = Database(driver)
    yield database
    database.close()


@pytest.fixture
def raw(postgres_url: str) -> Iterator[LimitedConnection]:
    with LimitedConnection.connect(postgres_url, autocommit=True) as connection:
        yield connection


def add(name: str, leaf: Any = None) -> Any:
    def work(tx: Tx) -> list[Any]:
        found = tx.prefetched_rows(FIND, (name,))
        tx.append(NAMES, (name, leaf))
        return found

    return work


async def test_a_transaction_that_reads_ahead_and_adds_rows_takes_two_messages(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db.write(add("first"), (), [(FIND, ("first",))])  # connects
    sent: list[int] = []
    run = Pipeline.run

    def counted(self: Pipeline, statements: Any) -> Any:
        sent.append(len(statements))
        return run(self, statements)

    monkeypatch.setattr(Pipeline, "run", counted)
    monkeypatch.setattr(LimitedConnection, "wait", None)  # nothing besides may wait for the server
    assert await db.write(add("second"), ("a lock",), [(FIND, ("second",))]) == []
    assert sent == [3, 2]  # begin, locks with the time, and the read; the insert and the commit
    monkeypatch.undo()
    assert await db.read(lambda tx: tx.rows(LIST)) == [("first", None), ("second", None)]


async def test_a_transaction_takes_any_number_of_locks(db: Database) -> None:
    names = [f"lock {n}" for n in range(2_000)]
    held = Sql(f"select count(*) from pg_locks where classid = {NAMED_LOCKS} and pid = pg_backend_pid()")
    assert await db.write(lambda tx: tx.rows(held), names) == [(len(names),)]


@pytest.mark.parametrize("leaf", ["a\0b", "lone \ud800", object()])
async def test_a_row_that_cannot_be_stored_fails_its_transaction_alone(db: Database, leaf: Any) -> None:
    good, bad = await asyncio.gather(db.write(add("good")), db.write(add("bad", leaf)), return_exceptions=True)
    assert good == []
    assert isinstance(bad, Exception)
    assert await db.read(lambda tx: tx.rows(LIST)) == [("good", None)]


async def test_a_row_that_is_there_already_fails_its_transaction_alone(db: Database) -> None:
    await db.write(add("a"))
    again, other = await asyncio.gather(db.write(add("a")), db.write(add("b")), return_exceptions=True)
    assert isinstance(again, psycopg.errors.UniqueViolation)
    assert other == []


async def test_a_failed_row_is_undone_alone_while_as_many_statements_as_may_are_prepared(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MAX_PREPARED", 1)
    await db.write(add("there"))
    bad, good = await asyncio.gather(db.write(add("there")), db.write(add("good")), return_exceptions=True)
    assert isinstance(bad, psycopg.errors.UniqueViolation)
    assert good == []


async def test_a_transaction_whose_connection_ends_before_its_last_rows_runs_again(
    db: Database, postgres_url: str
) -> None:
    tries: list[int] = []

    def lose(tx: Tx) -> None:
        tries.append(1)
        tx.append(NAMES, ("once", None))
        if len(tries) == 1:
            (pid,) = tx.rows(Sql("select pg_backend_pid()"))[0]
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s, 60000)", (pid,))

    await db.write(lose)
    assert len(tries) == 2
    assert await db.read(lambda tx: tx.rows(LIST)) == [("once", None)]


async def test_a_process_that_stands_still_after_its_first_reads_loses_its_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres._SETTINGS, "idle_in_transaction_session_timeout", "'200ms'")
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    stopped, other = Database(driver), Database(driver)
    inside, go_on, tries = threading.Event(), threading.Event(), list[int]()

    def still(tx: Tx) -> list[Any]:
        tries.append(1)
        inside.set()
        if len(tries) == 1:
            go_on.wait(60)
        tx.append(NAMES, ("still", None))
        return tx.prefetched_rows(FIND, ("other",))

    waiting = asyncio.create_task(stopped.write(still, None, [(FIND, ("other",))]))
    await asyncio.to_thread(inside.wait)
    await other.write(add("other"), None)  # waits for the lock of the one that stands still
    go_on.set()
    assert await waiting == [("other", None)]
    assert len(tries) == 2
    stopped.close()
    other.close()


def test_values_come_back_as_they_were_given(raw: LimitedConnection) -> None:
    given = ("text 'ü\n", 2**62, -1, 0.1, b"\0\xff", None)
    text = "select $1::text, $2::bigint, $3::integer, $4::float8, $5::bytea, $6::text"
    assert Pipeline(raw).run([(text, given), (text, given)]) == [[given], [given]]


def test_texts_are_sent_in_the_encoding_of_the_connection(postgres_url: str) -> None:
    with LimitedConnection.connect(postgres_url, autocommit=True, client_encoding="latin1") as latin:
        assert Pipeline(latin).run([("select $1::text", ("ü",))]) == [[("ü",)]]
        with pytest.raises(PipelineError):
            Pipeline(latin).run([("select $1::text", ("€",))])


def test_rows_longer_than_the_buffers_of_both_sides_are_no_deadlock(raw: LimitedConnection) -> None:
    long = "x" * 20_000_000
    assert [rows[0][0] for rows in Pipeline(raw).run([("select $1::text", (long,))] * 3)] == [long] * 3


def test_the_results_of_many_statements_come_while_a_later_one_waits(
    raw: LimitedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends something is not lost, however long all statements of a message take."""
    waits, heard = list[int](), threading.Event()
    wait_ready = raw.wait_ready

    def count(events: int) -> int:
        waits.append(events)
        if len(waits) == 2:
            heard.set()
        return wait_ready(events)

    monkeypatch.setattr(raw, "wait_ready", count)
    lock = ("select pg_advisory_lock(7)", ())
    with psycopg.connect(raw.info.dsn, autocommit=True) as other:
        other.execute(*lock)
        statements = [("select 1", ())] * pipeline.FLUSH_EVERY + [lock]
        thread = threading.Thread(target=Pipeline(raw).run, args=(statements,), daemon=True)
        thread.start()
        assert heard.wait(60)
        other.execute("select pg_advisory_unlock(7)")
        thread.join(60)
    assert not thread.is_alive()


def test_few_statements_stay_prepared(raw: LimitedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MAX_PREPARED", 3)
    sends = Pipeline(raw)
    for n in (*range(10), 9, 8, 7, 0):
        assert sends.run([(f"select {n}", ()), ("select $1::text", (str(n),))]) == [[(n,)], [(str(n),)]]
    # One more, which the last message prepared.
    assert raw.execute("select count(*) from pg_prepared_statements").fetchone() == (4,)


def test_what_follows_an_error_is_not_executed_and_can_be_sent_again(raw: LimitedConnection) -> None:
    raw.execute("create temporary table names (name text unique)")
    sends, key = Pipeline(raw), ids.new_id()
    insert, count = "insert into names values ($1)", "select count(*) from names"
    with pytest.raises(PipelineError) as caught:
        sends.run([("begin", ()), (insert, (key,)), (insert, (key,)), (count, ()), ("commit", ())])
    assert caught.value.place == 2
    assert isinstance(caught.value.error, psycopg.errors.UniqueViolation)
    raw.execute("rollback")
    assert sends.run([(insert, (key,)), (count, ()), ("select 1", ())]) == [[], [(1,)], [(1,)]]


def test_a_plan_that_fits_its_table_no_longer_is_made_again(raw: LimitedConnection) -> None:
    raw.execute("create temporary table names as select 'a' as name")
    sends = Pipeline(raw)
    sends.run([("select * from names", ())])
    raw.execute("alter table names add column n integer")
    with pytest.raises(PipelineError):
        sends.run([("select * from names", ())])
    assert sends.run([("select * from names", ())]) == [[("a", None)]]


async def test_prepared_statements_outlive_a_rollback_and_are_made_again_if_they_are_gone(db: Database) -> None:
    def refuse(tx: Tx) -> None:
        tx.rows(LIST)
        tx.append(NAMES, ("refused", None))
        raise ValueError

    def deallocate(tx: Tx) -> None:
        tx.run(Sql("deallocate all"))

    for n in range(8):  # psycopg prepares what was executed five times
        outcomes = await asyncio.gather(db.write(add(f"{n}")), db.write(refuse), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [list, ValueError]
    await db.write(deallocate)
    await db.write(add("last"), (), [(FIND, ("last",))])
    assert len(await db.read(lambda tx: tx.rows(LIST))) == 9


@pytest.mark.parametrize("by", ["select pg_terminate_backend(pg_backend_pid())", "select 1"])
def test_a_lost_connection_is_an_outage_and_closed(raw: LimitedConnection, by: str) -> None:
    if by == "select 1":
        with psycopg.connect(raw.info.dsn, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s)", (raw.info.backend_pid,))
    with pytest.raises(PipelineError) as caught:
        Pipeline(raw).run([("select 0", ()), (by, ()), ("select 2", ())])
    assert isinstance(caught.value.error, psycopg.OperationalError)
    assert caught.value.place == (0 if by == "select 1" else 1)
    assert raw.closed


@pytest.mark.parametrize("tasks", [1, 2, 5, 7, 11, 13, 15, 16])
def test_the_tasks_of_a_commit_are_one_insert_and_every_row_is_inserted_in_its_order(tasks: int) -> None:
    """To insert into the table with the most indexes costs PostgreSQL as much for each statement as for three rows."""
    first, second = AppendOnlyTable("tasks", ("a", "b")), AppendOnlyTable("events", ("c",))
    inserts = [
        (first, [(f"{n}", n) for n in range(tasks)]),
        (second, [(f"event {n}",) for n in range(3 * tasks)]),
    ]
    statements = list(joint_insert_statements(inserts))
    assert sum("insert into tasks" in text for text, _ in statements) == 1
    assert len(statements) <= 3
    given = [value for _, values in statements for value in values]
    assert given == [value for _, rows in inserts for row in rows for value in row]
    for text, values in statements:
        assert text.count("$") == len(values)
        assert f"${len(values)}" in text


def test_few_different_inserts_have_to_be_prepared() -> None:
    table, other = AppendOnlyTable("tasks", ("a",)), AppendOnlyTable("events", ("b",))
    texts = {
        text
        for rows in range(1, 200)
        for others in range(1, 200, 7)
        for text, _ in joint_insert_statements([(table, [("",)] * rows), (other, [("",)] * others)])
    }
    assert len(texts) < 60
