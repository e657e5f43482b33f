"""PostgreSQL: what several processes on one database do to each other, and what the network does to all of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from stentor.core import migrations
from stentor.core.db import AppendOnlyTable, CounterTable, Database, RowUpdate, Sql, Tx, readers
from stentor.core.db.database import MAX_GROUP_SIZE, READER_THREADS
from stentor.core.db.database_url import parse_database_url
from stentor.core.db.locks.leader import LeaderElection
from stentor.core.db.locks.locks import NAMED_LOCKS, SERVING_LOCK_ID, to_number
from stentor.core.db.postgres import driver as postgres
from stentor.core.db.postgres import server_waits
from stentor.core.db.postgres.connection import PostgresConnection
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.postgres.pipeline import Pipeline
from stentor.core.db.sql import Statement, as_literal
from stentor.core.db.transfer.postgres import PostgresSide
from stentor.core.errors import Conflict, StartRefused, StoreConflict, StoreUnavailable
from stentor.core.migrations import runner
from stentor.domains.tasks import store
from stentor.domains.tasks.queues import lease_store
from tests.databases import limited_role
from tests.faults.proxy import Proxy
from tests.requirements import requirement

WHO = Sql("select pg_backend_pid()")
READ = Sql("select n from task_counts where tenant = :tenant")
PUT = Sql(
    """insert into task_counts (tenant, hour, status, agent_id, n) values (:tenant, 1, '', '', :n)
    on conflict (tenant, hour, status, agent_id) do update set n = excluded.n"""
)
ADD = Sql("update task_counts set n = n + 1 where tenant = :tenant")
ADD_ROW = RowUpdate("update task_counts set n = n + 1 where task_counts.tenant = :tenant", {})
COUNT = CounterTable("task_counts", ("tenant", "hour", "status", "agent_id"))
BUCKETS = AppendOnlyTable("rate_buckets", ("agent_id", "tool", "tokens", "updated_at"))


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[Database, Database]]:
    """Two processes, as the database sees them."""
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    databases = Database(driver), Database(driver)
    yield databases
    for database in databases:
        database.close()


def one_more(*names: str, lock: bool = False) -> Callable[[Tx], None]:
    """Reads, adds one here, and writes back: what is lost when others do the same at the same time."""

    def work(tx: Tx) -> None:
        for name in names:
            if lock:
                tx.lock(name)
            row = tx.row(READ, tenant=name)
            tx.run(PUT, tenant=name, n=(row[0] if row else 0) + 1)

    return work


async def number(database: Database, name: str) -> int:
    row = await database.read(lambda tx: tx.row(READ, tenant=name))
    return int(row[0]) if row else 0


def end(url: str, pid: Any) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(%s)", (pid,))


async def test_no_update_is_lost_between_processes_whatever_a_transaction_says_of_itself(
    two: tuple[Database, Database],
) -> None:
    alone = [database.write(one_more("a")) for _ in range(100) for database in two]
    named = [database.write(one_more("b"), ("b",)) for _ in range(100) for database in two]
    found = [database.write(one_more("c", lock=True), ()) for _ in range(100) for database in two]
    await asyncio.gather(*alone, *named, *found)
    assert [await number(two[0], name) for name in "abc"] == [200, 200, 200]


async def test_locks_that_are_taken_in_any_order_never_end_in_a_circle(two: tuple[Database, Database]) -> None:
    orders = ("a", "b", "c"), ("c", "b", "a"), ("b", "a")
    work = [two[i % 2].write(one_more(*orders[i % 3], lock=True), ()) for i in range(240)]
    await asyncio.wait_for(asyncio.gather(*work), 60)
    assert [await number(two[0], name) for name in "abc"] == [240, 240, 160]


@pytest.mark.parametrize("undone", ["a unit", "a part of one"])
async def test_a_lock_of_what_was_undone_is_taken_again_before_others_rely_on_it(
    two: tuple[Database, Database], postgres_url: str, undone: str
) -> None:
    def fail(tx: Tx) -> None:
        one_more("a", lock=True)(tx)
        raise Conflict("no")

    def fail_in_part(tx: Tx) -> None:
        with suppress(Conflict), tx.savepoint():
            fail(tx)

    seen: list[bool] = []

    def look(tx: Tx) -> None:
        tx.lock("a")
        with psycopg.connect(postgres_url) as other:
            key = (NAMED_LOCKS, to_number("a"))
            row = other.execute("select pg_try_advisory_xact_lock(%s, %s)", key).fetchone()
        seen.append(row == (True,))

    # Both in one commit, behind one that is held up.
    go_on, inside = threading.Event(), threading.Event()
    before = asyncio.create_task(two[0].write(lambda tx: (inside.set(), go_on.wait(60)), ()))
    await asyncio.to_thread(inside.wait)
    units = [fail if undone == "a unit" else fail_in_part, look]
    work = [asyncio.create_task(two[0].write(unit, ())) for unit in units]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(before, *work, return_exceptions=True)
    assert seen
    assert not any(seen)  # nobody else could take it


async def test_transactions_that_name_nothing_in_common_run_at_the_same_time(two: tuple[Database, Database]) -> None:
    inside = threading.Barrier(2, timeout=200)
    await asyncio.gather(two[0].write(lambda tx: inside.wait(), ("a",)), two[1].write(lambda tx: inside.wait(), ("b",)))


async def test_a_transaction_that_names_nothing_at_all_is_alone(two: tuple[Database, Database]) -> None:
    inside = threading.Barrier(2, timeout=0.5)
    together = [two[0].write(lambda tx: inside.wait()), two[1].write(lambda tx: inside.wait(), ())]
    for error in await asyncio.gather(*together, return_exceptions=True):
        assert isinstance(error, threading.BrokenBarrierError)


@pytest.mark.parametrize(
    "write_last",
    [lambda tx, name: tx.run(ADD, tenant=name), lambda tx, name: tx.increment(COUNT, (name, 1, "", ""), 1)],
    ids=["at once", "with the commit"],
)
async def test_a_deadlock_is_tried_again_until_both_are_done(
    two: tuple[Database, Database], write_last: Callable[[Tx, str], object]
) -> None:
    for name in "ab":
        await two[0].write(one_more(name))
    met = threading.Barrier(2)

    def crossing(first: str, second: str) -> Callable[[Tx], None]:
        tries: list[int] = []

        def work(tx: Tx) -> None:
            tx.run(ADD, tenant=first)
            if not tries:
                tries.append(1)
                met.wait(60)
            write_last(tx, second)

        return work

    await asyncio.gather(two[0].write(crossing("a", "b"), ()), two[1].write(crossing("b", "a"), ()))
    assert [await number(two[0], name) for name in "ab"] == [3, 3]


async def test_a_counter_that_cannot_be_written_fails_its_transactions_once(two: tuple[Database, Database]) -> None:
    runs: list[int] = []

    def work(tx: Tx) -> None:
        runs.append(1)
        tx.increment(COUNT, ("a", 1, "", ""), 2**63)

    with pytest.raises(StoreUnavailable):
        await two[0].write(work)
    assert len(runs) <= 2
    await two[0].write(one_more("a"))
    assert await number(two[0], "a") == 1


async def test_the_log_of_the_server_says_why_an_update_of_a_changed_row_fails(
    postgres_url: str, two: tuple[Database, Database]
) -> None:
    """Whoever reads it must not take it for an error of the service."""
    ((text, values),) = ADD_ROW.statements([{"tenant": "a"}])
    said = pytest.raises(psycopg.Error, match="a row has changed meanwhile, so the transaction runs again")
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as connection, said:
        connection.execute(as_literal(text), values)


async def test_all_that_a_commit_writes_is_one_message(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    await two[0].write(one_more("a", "b"))
    sent: list[int] = []
    run = Pipeline.run

    def counted(pipeline: Pipeline, statements: Sequence[Statement]) -> Any:
        sent.append(len(statements))
        return run(pipeline, statements)

    def work(tx: Tx) -> None:
        tx.append(BUCKETS, ("a", "t", 1, 0), ("b", "t", 1, 0))
        assert tx.update_row(ADD_ROW, tenant="a")
        assert tx.update_row(ADD_ROW, tenant="b")
        tx.put(PUT, ("c",), tenant="c", n=5)
        tx.increment(COUNT, ("b", 1, "", ""), 3)

    monkeypatch.setattr(Pipeline, "run", counted)
    monkeypatch.setattr(psycopg.RawCursor, "execute", None)  # no message besides
    await two[0].write(work)
    monkeypatch.undo()
    assert sent == [2, 5], "the time, and then everything with the commit"
    assert [await number(two[0], name) for name in "abc"] == [2, 5, 5]


async def test_a_connection_that_broke_between_two_transactions_is_not_noticed(postgres_url: str) -> None:
    database = Database(PostgresDriver(postgres_url))
    for call in (database.write, database.read):
        first = await call(lambda tx: tx.row(WHO))
        assert first is not None
        end(postgres_url, first[0])
        assert await call(lambda tx: tx.row(WHO)) != first
    database.close()


async def test_a_connection_that_breaks_in_a_transaction_costs_one_more_try(two: tuple[Database, Database]) -> None:
    driver = two[0].driver
    assert isinstance(driver, PostgresDriver)
    url = driver.url
    broken: list[Any] = []

    def work(tx: Tx) -> None:
        one_more("a")(tx)
        if not broken:
            broken.extend(tx.row(WHO) or ())
            end(url, broken[0])
        one_more("a")(tx)

    await two[0].write(work)
    assert await number(two[0], "a") == 2


async def test_a_process_that_stands_still_does_not_hold_up_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres._SETTINGS, "idle_in_transaction_session_timeout", "'200ms'")
    migrations.upgrade(PostgresDriver(postgres_url))
    stopped, other = Database(PostgresDriver(postgres_url)), Database(PostgresDriver(postgres_url))
    go_on, inside = threading.Event(), threading.Event()
    tries: list[int] = []

    def still(tx: Tx) -> None:
        one_more("a")(tx)
        tries.append(1)
        inside.set()
        if len(tries) == 1:
            go_on.wait(60)

    waiting = asyncio.create_task(stopped.write(still))
    await asyncio.to_thread(inside.wait)
    await other.write(one_more("a"))
    go_on.set()
    await waiting  # its first try was thrown out, and had no effect
    assert await number(other, "a") == 2
    stopped.close()
    other.close()


async def test_what_became_of_a_commit_that_broke_is_not_guessed(two: tuple[Database, Database]) -> None:
    runs: list[int] = []

    def work(tx: Tx) -> None:
        runs.append(1)
        one_more("a")(tx)
        with breaking_at_commit(tx):
            pass

    with pytest.raises(StoreUnavailable) as failure:
        await two[0].write(work)
    assert len(runs) == 1
    assert "may have been made" in failure.value.message
    assert not failure.value.is_repeatable


@contextmanager
def breaking_at_commit(tx: Tx) -> Any:
    """Ends the connection as the commit is sent."""
    connection: Any = tx._connection
    commit, url = connection.commit, connection._url
    pid = connection._raw.info.backend_pid

    def broken() -> None:
        connection.commit = commit
        end(url, pid)
        commit()

    connection.commit = broken
    yield


def alter(url: str, setting: str) -> None:
    """Changes a default of the database, for the connections that come."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f'alter database "{admin.info.dbname}" set {setting}'.encode())


@requirement("scale.primary")
async def test_a_writer_whose_server_takes_no_writes_any_more_looks_for_one_that_does(
    two: tuple[Database, Database],
) -> None:
    await two[0].write(lambda tx: tx.run(Sql("set default_transaction_read_only = on")))
    await two[0].write(one_more("a"))
    assert await number(two[0], "a") == 1


@requirement("scale.primary")
@pytest.mark.parametrize("session", [False, True], ids=["alone", "pooled"])
async def test_a_server_that_takes_no_writes_is_an_outage_and_can_be_read(postgres_url: str, *, session: bool) -> None:
    alter(postgres_url, "default_transaction_read_only = on")
    database = Database(PostgresDriver(postgres_url, session_url=postgres_url if session else ""))
    with pytest.raises(StoreUnavailable, match="read-only"):
        await database.write(lambda tx: tx.now)
    assert await number(database, "a") == 0
    database.close()


async def test_a_right_that_the_role_lacks_is_an_outage_whose_reason_is_in_the_log(postgres_url: str) -> None:
    with limited_role(postgres_url) as (admin, role):
        with pytest.raises(
            StoreUnavailable, match=r"must own the tables .* permission denied for table alembic_version"
        ):
            migrations.current_version(PostgresDriver(postgres_url))
        admin.execute(f"grant select on all tables in schema public to {role}".encode())
        database = Database(PostgresDriver(postgres_url))
        assert await number(database, "a") == 0
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="permission denied for table task_counts") as failed:
                await database.write(one_more("a"))
            assert "task_counts" not in failed.value.message
        admin.execute(f"grant all on all tables in schema public to {role}".encode())
        await database.write(one_more("a"))
        assert await number(database, "a") == 1
        database.close()


@requirement("scale.primary")
def test_a_copy_and_an_upgrade_look_for_the_primary(postgres_url: str) -> None:
    source = PostgresSide(parse_database_url(postgres_url), write=False)
    with source.open():
        assert source._raw.info.get_parameters()["target_session_attrs"] == "primary"
    alter(postgres_url, "default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="session is read-only"):
        PostgresSide(parse_database_url(postgres_url), write=True).open().__enter__()
    with pytest.raises(StartRefused, match="session is read-only"):
        runner.run(PostgresDriver(postgres_url), None, None, print)


@pytest.mark.parametrize("session", [False, True], ids=["alone", "pooled"])
def test_what_is_read_under_a_lock_is_newer_than_the_lock_whatever_the_servers_default_is(
    postgres_url: str, *, session: bool
) -> None:
    alter(postgres_url, "default_transaction_isolation = 'repeatable read'")
    writer = PostgresDriver(postgres_url, session_url=postgres_url if session else "").writer()
    writer.begin()
    assert writer.rows(Sql("show transaction_isolation"), {}) == [("read committed",)]
    writer.close()


async def test_the_servers_own_time_is_the_stores_time(postgres_url: str) -> None:
    database = Database(PostgresDriver(postgres_url))
    sql = Sql("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
    now, asked = await database.write(lambda tx: (tx.now, tx.row(sql)))
    assert asked is not None
    assert 0 <= asked[0] - now < 60_000_000
    database.close()


async def test_a_transactions_time_is_after_those_that_it_waited_for(two: tuple[Database, Database]) -> None:
    waiting = Sql("select count(*) from pg_locks where locktype = 'advisory' and not granted")
    clock = Sql("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
    inside = threading.Event()

    def hold(tx: Tx) -> int:
        inside.set()
        while not tx.rows(waiting)[0][0]:
            time.sleep(0.01)
        return int(tx.rows(clock)[0][0])

    holding = asyncio.create_task(two[0].write(hold, ("a", "b")))
    await asyncio.to_thread(inside.wait)
    began = await two[1].write(lambda tx: tx.now, ("b",))
    assert began >= await holding


def test_an_address_where_nobody_listens_is_an_outage() -> None:
    with pytest.raises(StoreUnavailable, match="SERVICE_DATABASE_URL cannot be used") as direct:
        PostgresDriver("postgresql://nobody@127.0.0.1:1/none").writer()
    assert "\n" not in str(direct.value)
    pooled = PostgresDriver("postgresql://h/d", session_url="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable, match="SERVICE_DATABASE_SESSION_URL cannot be used"):
        pooled.lock_session().hold(object(), 1)


@requirement("scale.silent-database")
@pytest.mark.parametrize("operation", ["write", "read"])
async def test_all_that_wait_for_a_database_that_does_not_answer_fail_with_the_same_try(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(server_waits, "LONG_CONNECT_SECONDS", 0)
    monkeypatch.setattr(server_waits, "PAUSE_SECONDS", 600)
    monkeypatch.setattr(readers, "OPEN_AFTER_SECONDS", 0)
    tries: list[str] = []

    def time_out(url: str, **_: Any) -> None:
        tries.append(url)
        raise psycopg.OperationalError("timeout expired")

    monkeypatch.setattr(server_waits.LimitedConnection, "connect", time_out)
    database = Database(PostgresDriver("postgresql://nobody@127.0.0.1:1/none"))
    waiting = [getattr(database, operation)(lambda tx: tx.now) for _ in range(10 * MAX_GROUP_SIZE)]
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert len(tries) <= (1 if operation == "write" else READER_THREADS)
    database.close()


@requirement("scale.silent-database")
def test_only_a_connect_that_failed_after_a_long_wait_lets_others_fail_and_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pause = server_waits.ConnectPause()

    def time_out(seconds: float) -> None:
        nonlocal now
        now += seconds
        raise psycopg.OperationalError

    for seconds in (0.1, 10):
        with pytest.raises(psycopg.OperationalError), pause.observe():
            time_out(seconds)
    with pytest.raises(StoreUnavailable), pause.observe():
        raise AssertionError("it was tried again")
    now += server_waits.PAUSE_SECONDS
    with pause.observe():
        pass


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as between:
        yield between


@requirement("scale.silent-server")
@pytest.mark.parametrize("operation", ["write", "read"])
async def test_a_server_that_falls_silent_is_an_outage_until_there_is_a_new_connection(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    database = Database(PostgresDriver(proxy.url))
    call = getattr(database, operation)
    await call(lambda tx: tx.now)
    with proxy.silent():
        monkeypatch.setattr(server_waits, "SILENCE_SECONDS", 0.3)
        with pytest.raises(StoreUnavailable, match="sent nothing for"):
            await call(lambda tx: tx.now)
        assert outages(database)[operation] == 1
        monkeypatch.undo()
    await call(lambda tx: tx.now)
    assert outages(database)[operation] == 0
    database.close()


@requirement("scale.silent-server")
async def test_what_became_of_a_commit_that_is_not_answered_is_not_guessed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(PostgresDriver(proxy.url))
    with ExitStack() as silence:

        def work(tx: Tx) -> None:
            silence.enter_context(proxy.silent())
            monkeypatch.setattr(server_waits, "SILENCE_SECONDS", 0.3)

        with pytest.raises(StoreUnavailable, match="sent nothing for") as failure:
            await database.write(work)
        assert "may have been made" in failure.value.message
        assert not failure.value.is_repeatable
    database.close()


@requirement("scale.silent-server")
async def test_a_process_that_stops_does_not_wait_for_a_server_that_fell_silent(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_waits, "SILENCE_SECONDS", 3600)
    monkeypatch.setattr(server_waits, "SILENCE_AT_STOP_SECONDS", 0.3)
    database = Database(PostgresDriver(proxy.url))
    for call in (database.write, database.read):
        await call(lambda tx: tx.now)
    with proxy.silent():
        waiting = [asyncio.create_task(call(lambda tx: tx.now)) for call in (database.write, database.read)]
        await asyncio.sleep(0)  # both are handed in
        await asyncio.to_thread(database.close)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, StoreUnavailable)


def outages(database: Database) -> dict[str, float]:
    metrics = {metric.name: metric for metric in database.collect_metrics()}
    return {sample.labels["operation"]: sample.value for sample in metrics["stentor_database_outage"].samples}


STEPS: dict[str, Callable[[PostgresConnection], object]] = {
    "it began": lambda one: None,
    "a statement": lambda one: one.run(ADD, {"tenant": "a"}),
    "one statement of many rows": lambda one: one.many(ADD, [{"tenant": "a"}, {"tenant": "b"}]),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("locks", [None, {"a"}], ids=["all", "a name"])
def test_whoever_stands_still_is_thrown_out_whatever_it_did_last(
    postgres_url: str, step: Callable[[PostgresConnection], object], locks: set[str] | None
) -> None:
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    still, waits = driver.writer(), driver.writer()
    still.control("set idle_in_transaction_session_timeout = '0.3s'")
    waits.control("set statement_timeout = '20s'")
    still.begin(locks)
    step(still)
    waits.begin(locks)  # raises after 20 s
    with pytest.raises(StoreConflict):
        still.run(ADD, {"tenant": "a"})
    waits.close()
    still.close()


@pytest.mark.parametrize("session", [False, True], ids=["alone", "pooled"])
def test_a_reader_that_may_be_idle_is_not_thrown_out(postgres_url: str, *, session: bool) -> None:
    driver = PostgresDriver(postgres_url, session_url=postgres_url if session else "")
    limit = Sql("select current_setting('idle_in_transaction_session_timeout')")
    for connection, expected in ((driver.reader(), "10s"), (driver.reader(may_idle=True), "0")):
        connection.begin()
        assert connection.rows(limit, {}) == [(expected,)]
        connection.close()


def test_a_copy_knows_every_column_of_a_key_in_its_order(postgres_url: str) -> None:
    migrations.upgrade(PostgresDriver(postgres_url))
    side = PostgresSide(parse_database_url(postgres_url), write=False)
    with side.open():
        tables = side.tables()
    assert tables["tasks"].key == ("tenant", "task_id")
    assert tables["idempotency_keys"].key == ("tenant", "key_name", "route", "idempotency_key")


@requirement("scale.pooler")
def test_with_a_pooler_no_transaction_writes_while_the_database_is_copied(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url, session_url=postgres_url)
    writer = driver.writer()
    writer.begin()
    writer.rollback()
    with psycopg.connect(postgres_url, autocommit=True) as copy:
        copy.execute("select pg_advisory_lock(%s)", (SERVING_LOCK_ID,))
        with pytest.raises(StoreUnavailable, match="is being copied"):
            writer.begin()
        assert not writer.in_transaction()
        copy.execute("select pg_advisory_unlock(%s)", (SERVING_LOCK_ID,))
    writer.begin()
    writer.close()


@requirement("scale.pooler")
def test_with_a_pooler_a_transaction_leaves_no_setting_and_no_statement_on_its_connection(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url, None, {"search_path": "elsewhere"}, session_url=postgres_url)
    for connection in (driver.writer(), driver.reader()):
        connection.begin()
        for _ in range(10):
            assert connection.rows(Sql("select current_setting('search_path'), :n"), {"n": "x"}) == [("elsewhere", "x")]
        connection.rollback()
        assert connection.rows(Sql("select current_setting('search_path')"), {}) != [("elsewhere",)]
        assert connection.rows(Sql("select count(*) from pg_prepared_statements"), {}) == [(0,)]
        connection.close()


@requirement("scale.connections")
async def test_readers_are_opened_for_reads_at_the_same_time_and_closed_when_they_are_idle(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(PostgresDriver(postgres_url))
    together = threading.Barrier(3)
    await asyncio.gather(*(database.read(lambda tx: together.wait(200)) for _ in range(3)))
    assert database._connections._idle.qsize() == 3
    await database.read(lambda tx: tx.now)
    assert database._connections._idle.qsize() == 3
    monkeypatch.setattr(readers, "IDLE_SECONDS", 0)
    await database.read(lambda tx: tx.now)
    assert database._connections._idle.qsize() == 1
    assert await database.read(lambda tx: tx.now)
    database.close()


@requirement("scale.connections")
async def test_a_read_for_which_no_connection_can_be_opened_waits_for_one_that_is_open(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "WAIT_SECONDS", 3600)
    database = Database(PostgresDriver(postgres_url))
    began, refused, go_on = threading.Event(), threading.Event(), threading.Event()

    def refuse(**_: Any) -> None:
        refused.set()
        raise StoreUnavailable("too many clients already")

    first = asyncio.create_task(database.read(lambda tx: (began.set(), go_on.wait(60))))
    await asyncio.to_thread(began.wait)
    monkeypatch.setattr(database.driver, "reader", refuse)
    second = asyncio.create_task(database.read(lambda tx: tx.row(WHO)))
    await asyncio.to_thread(refused.wait)
    go_on.set()
    await first
    assert await second
    assert database._read_outages.total_failures == 0

    def fail(*_: Any) -> None:
        raise StoreUnavailable("it cannot be opened again")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "begin", fail)
        with pytest.raises(StoreUnavailable, match="again"):
            await database.read(lambda tx: tx.now)
    with pytest.raises(StoreUnavailable, match="too many"):  # at once: none is open
        await database.read(lambda tx: tx.now)
    database.close()


@requirement("scale.connections")
async def test_no_read_waits_for_an_open_connection_to_a_server_that_does_not_answer(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "WAIT_SECONDS", 3600)
    monkeypatch.setattr(server_waits, "LONG_CONNECT_SECONDS", 0)  # the first one that fails begins the pause
    monkeypatch.setattr(server_waits, "PAUSE_SECONDS", 3600)
    database = Database(PostgresDriver(f"{proxy.url}?connect_timeout=2"))
    began, go_on = threading.Event(), threading.Event()
    first = asyncio.create_task(database.read(lambda tx: (began.set(), go_on.wait(60))))
    await asyncio.to_thread(began.wait)
    with proxy.silent():
        for _ in range(2):  # the connect, and one in the pause after it
            with pytest.raises(StoreUnavailable):
                await database.read(lambda tx: tx.now)
    go_on.set()
    await first
    database.close()


@requirement("scale.connections")
async def test_all_jobs_of_a_process_hold_their_locks_on_one_connection(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url)
    jobs = [LeaderElection(driver, number, "a job") for number in (1, 2, 3)]
    assert [await job.is_leader() for job in jobs] == [True, True, True]
    with psycopg.connect(postgres_url) as admin:
        text = "select count(distinct pid), count(*) from pg_locks where locktype = 'advisory'"
        text += " and database = (select oid from pg_database where datname = current_database())"
        assert admin.execute(text.encode()).fetchall() == [(1, 3)]
        await jobs[0].close()
        assert admin.execute(text.encode()).fetchall() == [(1, 2)]
        assert await jobs[1].is_leader()
        for job in jobs[1:]:
            await job.close()
    other = LeaderElection(PostgresDriver(postgres_url), 1, "a job")
    assert await other.is_leader()
    await other.close()


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("change", ["claim", "end"])
async def test_claims_and_ends_find_their_tasks_by_the_key_whatever_the_statistics_say(
    two: tuple[Database, Database], change: str, rows: int
) -> None:
    """By status they would pass all tasks that are queued or execute, and those that were since the last vacuum."""
    database = two[0]
    columns = Sql(
        """select column_name, data_type from information_schema.columns
        where table_name = 'tasks' and is_nullable = 'NO' and column_default is null"""
    )
    needed = {name: "''" if kind == "text" else "0" for name, kind in await database.read(lambda tx: tx.rows(columns))}
    row = needed | {"tenant": "'t'", "task_id": "n::text", "status": "'waiting'", "timeout_seconds": "1"}
    filled = f"insert into tasks ({', '.join(row)}) select {', '.join(row.values())} from generate_series(1, 2000) as n"
    await database.write(lambda tx: tx.run(Sql(filled)))
    await database.write(lambda tx: tx.run(Sql("analyze tasks")))
    if change == "end":
        params = dict.fromkeys(store._FINISH.one.numbers)
        ((text, values),) = store._FINISH.statements([params] * rows)
        number = len(values)
    else:
        sql = lease_store._CLAIM_ONE if rows == 1 else lease_store._CLAIM_ALL.statements[rows]
        text, number = sql.numbered, len(sql.numbers)
    nulls = ", ".join(["null"] * number)

    def explain(tx: Tx) -> str:
        tx.run(Sql("set local plan_cache_mode = force_generic_plan"))
        tx.run(Sql(f"prepare changing as {text}"))
        return "\n".join(str(line) for (line,) in tx.rows(Sql(f"explain execute changing ({nulls})")))

    plan = await database.write(explain)
    assert "Index Scan using tasks_pkey on tasks" in plan, plan


async def test_a_task_of_a_new_database_is_found_by_its_key(two: tuple[Database, Database]) -> None:
    """Until the table is analyzed, PostgreSQL takes the index that was created last of those with both columns."""

    def explain(tx: Tx) -> str:
        return "\n".join(
            str(line) for (line,) in tx.rows(Sql("explain select 1 from tasks where tenant = 't' and task_id = 'i'"))
        )

    plan = await two[0].read(explain)
    assert "using tasks_pkey on tasks" in plan, plan
