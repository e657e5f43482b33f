"""What every database must be able to do: transactions, savepoints, group commit. On both."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stentor.core.db import Database, Sql, Tx, group_commit
from stentor.core.db.driver import DbConnection, Driver, Locks
from stentor.core.db.locks.session import LockSession
from stentor.core.db.postgres import server_waits
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.rows_sql import Insert, RowUpdate
from stentor.core.db.sql import Params, Read, Row
from stentor.core.db.sqlite import rebuildable
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.testing import FixedClock
from tests.requirements import requirement

PUT = Sql("insert into rate_buckets (agent_id, tool, tokens, updated_at) values (:agent_id, 't', :tokens, :now)")
GET = Sql("select agent_id, tokens from rate_buckets order by agent_id")
BROKEN = Sql("insert into rate_buckets (agent_id) values (null)")


def test_a_search_index_that_cannot_be_made_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(*_: object) -> None:
        raise StoreUnavailable("The database cannot be used: database or disk is full.")

    monkeypatch.setattr(rebuildable, "_create", fill_the_disk)
    with pytest.raises(StartRefused, match=r"database or disk is full\. Check the folder"):
        rebuildable.open_rebuildable(tmp_path / "index.db", "", 1)


def test_a_damaged_search_index_is_rebuilt_and_the_log_asks_for_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(rebuildable.log, "warning", lambda text, *values: lines.append(text % values))
    path = tmp_path / "index.db"
    path.write_bytes(b"no database of SQLite" * 200)
    rebuildable.open_rebuildable(path, "create table vectors (id integer)", 1, kept="vectors").close()
    assert lines == [
        "index: rebuilding file=index.db reason=file is not a database",
        "index: recomputing table=vectors file=index.db reason=file is not a database",
    ]


@pytest.mark.parametrize("durable", [True, False])
def test_what_to_do_about_a_file_that_was_damaged_while_it_is_used(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file.db"
    driver = SqliteDriver(path, durable=durable)
    writer = driver.writer()
    writer.control("create table texts (text text)")
    writer.many(Sql("insert into texts (text) values (:text)"), [{"text": "x" * 1000}] * 100)
    writer.control("pragma wal_checkpoint(truncate)")
    page_bytes = 4096
    with path.open("r+b") as file:
        for position in range(page_bytes, path.stat().st_size, page_bytes):
            file.seek(position)
            file.write(b"damaged!" * (page_bytes // 8))
    reader = driver.reader()
    with pytest.raises(StoreUnavailable) as caught:
        reader.rows(Sql("select text from texts"), {})
    reader.close()
    writer.close()
    # A backup has no search index.
    remedy = "Restore a backup." if durable else "Stop the service, delete this file, and start the service"
    assert f"{path} is damaged: database disk image is malformed. {remedy}" in str(caught.value)


def put(agent_id: str, tokens: float = 1.0) -> Any:
    return lambda tx: tx.run(PUT, agent_id=agent_id, tokens=tokens, now=tx.now)


async def names(db: Database) -> list[str]:
    return [row[0] for row in await db.read(lambda tx: tx.rows(GET))]


async def held(db: Database) -> tuple[asyncio.Task[None], threading.Event]:
    """Keep the writer busy, so that what comes next shares one commit; set the event to let it go."""
    started, go_on = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        started.set()
        go_on.wait(60)

    holding = asyncio.create_task(db.write(hold))
    await asyncio.to_thread(started.wait, 60)
    return holding, go_on


async def test_a_write_is_there_for_the_next_read_and_answers_its_value(db: Database) -> None:
    assert await db.write(put("a", 0.1 + 0.2)) == 1
    assert await db.read(lambda tx: tx.rows(GET)) == [("a", 0.1 + 0.2)]
    assert await db.read(lambda tx: tx.row(Sql("select 1 from rate_buckets where agent_id = 'no'"))) is None


async def test_time_comes_from_the_store_and_stands_within_a_transaction(db: Database, clock: FixedClock) -> None:
    def work(tx: Tx) -> tuple[int, int]:
        before = tx.now
        clock.advance(seconds=5)
        return before, tx.now

    start = clock.now()
    assert await db.write(work) == (start, start)
    assert await db.read(lambda tx: tx.now) == start + 5_000_000


async def test_an_error_undoes_the_whole_function_and_goes_to_its_caller(db: Database) -> None:
    def work(tx: Tx) -> None:
        put("a")(tx)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await db.write(work)
    assert await names(db) == []


async def test_a_reader_cannot_write(db: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)read.?only"):
        await db.read(put("a"))
    assert await names(db) == []


async def test_a_broken_constraint_is_no_outage(db: Database) -> None:
    await db.write(put("a"))
    for statement in (put("a"), lambda tx: tx.run(BROKEN)):
        with pytest.raises(Exception, match=r"(?i)unique|null|constraint") as error:
            await db.write(statement)
        assert not isinstance(error.value, StoreUnavailable)
    await db.write(put("b"))
    assert await names(db) == ["a", "b"]


async def test_units_that_share_a_commit_fail_one_by_one(db: Database) -> None:
    holding, go_on = await held(db)
    units = [db.write(put(name)) for name in "abc"] + [
        db.write(put("a")),
        db.write(lambda tx: 1 / 0),
        db.write(put("d")),
    ]
    waiting = [asyncio.create_task(unit) for unit in units]
    await asyncio.sleep(0)
    go_on.set()
    await holding
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(result, Exception) for result in results] == [False, False, False, True, True, False]
    assert isinstance(results[4], ZeroDivisionError)
    assert await names(db) == ["a", "b", "c", "d"]


async def test_many_writers_at_once_lose_nothing(db: Database) -> None:
    await asyncio.gather(*(db.write(put(f"{i:04}")) for i in range(500)))
    assert await names(db) == [f"{i:04}" for i in range(500)]


async def test_what_is_written_in_one_iteration_of_the_event_loop_shares_a_commit(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, run_group = [], group_commit.run_group

    def counted(connection: DbConnection, units: list[group_commit.WriteUnit]) -> None:
        groups.append(len(units))
        run_group(connection, units)

    async def write() -> None:
        time.sleep(0.01)  # the thread of the writer may run meanwhile, but the event loop may not
        await db.write(lambda _: None)

    monkeypatch.setattr(group_commit, "run_group", counted)
    await asyncio.gather(*(write() for _ in range(5)))
    assert groups == [5]


async def test_a_part_that_fails_is_undone_alone(db: Database) -> None:
    called: list[str] = []

    def part(tx: Tx) -> None:
        with tx.savepoint():
            put("inside")(tx)
            tx.after_commit(lambda: called.append("inside"))
            put("before")(tx)

    def work(tx: Tx) -> None:
        put("before")(tx)
        tx.after_commit(lambda: called.append("before"))
        with pytest.raises(Exception, match=r"(?i)unique"):
            part(tx)
        with tx.savepoint():
            put("after")(tx)
            tx.after_commit(lambda: called.append("after"))

    await db.write(work)
    assert await names(db) == ["after", "before"]
    assert called == ["before", "after"]


async def test_hooks_run_after_the_commit_only_and_a_failing_hook_harms_nobody(db: Database) -> None:
    called: list[int] = []

    def work(tx: Tx) -> None:
        put("a")(tx)
        tx.after_commit(lambda: called.append(1))
        tx.after_commit(lambda: called.append(1 // 0))
        tx.after_commit(lambda: called.append(2))

    def failing(tx: Tx) -> None:
        tx.after_commit(lambda: called.append(3))
        raise ValueError

    await db.write(work)
    with pytest.raises(ValueError):
        await db.write(failing)
    assert called == [1, 2]


async def test_work_is_done_and_announced_although_its_caller_has_left(db: Database) -> None:
    called: list[int] = []

    def work(tx: Tx) -> None:
        put("a")(tx)
        tx.after_commit(lambda: called.append(1))

    holding, go_on = await held(db)
    leaving = asyncio.create_task(db.write(work))
    await asyncio.sleep(0)
    leaving.cancel()
    go_on.set()
    await holding
    await db.write(put("b"))
    assert (await names(db), called) == (["a", "b"], [1])


async def test_a_read_sees_one_consistent_state(db: Database) -> None:
    await db.write(put("a"))
    loop = asyncio.get_running_loop()

    def work(tx: Tx) -> tuple[int, int]:
        before = len(tx.rows(GET))
        asyncio.run_coroutine_threadsafe(db.write(put("b")), loop).result(200)
        return before, len(tx.rows(GET))

    assert await db.read(work) == (1, 1)
    assert await names(db) == ["a", "b"]


async def test_parameters_are_never_text_of_the_statement(db: Database) -> None:
    nasty = "'; drop table rate_buckets; -- :now %s %(now)s \\"
    await db.write(put(nasty))
    assert await names(db) == [nasty]


async def test_many_rows_are_written_at_once(db: Database) -> None:
    rows = [{"agent_id": f"{i}", "tokens": 1.0, "now": 1} for i in range(9)]
    await db.write(lambda tx: tx.many(PUT, rows))
    assert len(await names(db)) == 9


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists the open files of Linux")
def test_a_statement_of_many_rows_writes_no_temporary_file(tmp_path: Path) -> None:
    connection = SqliteDriver(tmp_path / "many.db").writer()
    connection.control("create table numbers (n integer primary key, text text not null check (text <> ''))")
    connection.many(Sql("insert into numbers values (:n, :text)"), [{"n": n, "text": "x" * 1_000} for n in range(400)])
    connection.begin()
    try:
        # Each of its 100 pages must be kept until the statement ends: a later row may break the constraint.
        assert connection.run(Sql("update numbers set text = 'y' || text"), {}) == 400
        files = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        assert [name for name in files if "etilqs" in name] == []
    finally:
        connection.rollback()
        connection.close()


async def test_a_closed_database_refuses_and_finishes_what_was_handed_in(driver: Driver) -> None:
    database = Database(driver)
    writes = [asyncio.create_task(database.write(put(f"{i}"))) for i in range(50)]
    await asyncio.sleep(0)
    await asyncio.to_thread(database.close)
    assert await asyncio.gather(*writes) == [1] * 50
    for call in (database.write, database.read):
        with pytest.raises(StoreUnavailable):
            await call(lambda tx: 1)


class Flaky:
    """A connection whose next commit fails with an error of its choice."""

    def __init__(self, inner: DbConnection, errors: list[Exception]) -> None:
        self._inner = inner
        self._errors = errors

    def commit(self) -> None:
        if self._errors:
            raise self._errors.pop()
        self._inner.commit()

    def begin(self, locks: Locks = ()) -> int:
        return self._inner.begin(locks)

    def begin_reading(self, locks: Locks, reads: Sequence[Read]) -> tuple[int, list[list[Row]]]:
        return self._inner.begin_reading(locks, reads)

    def lock(self, name: str) -> bool:
        return self._inner.lock(name)

    def rollback(self) -> None:
        self._inner.rollback()

    def in_transaction(self) -> bool:
        return self._inner.in_transaction()

    def control(self, text: str) -> None:
        self._inner.control(text)

    def run(self, sql: Sql, params: Params) -> int:
        return self._inner.run(sql, params)

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        self._inner.many(sql, rows)

    def add(self, inserts: list[Insert]) -> None:
        self._inner.add(inserts)

    def add_at_commit(self, inserts: list[Insert]) -> None:
        self._inner.add_at_commit(inserts)

    def update_at_commit(self, update: RowUpdate, rows: list[Params]) -> None:
        self._inner.update_at_commit(update, rows)

    def run_at_commit(self, sql: Sql, params: Params) -> None:
        self._inner.run_at_commit(sql, params)

    def rows(self, sql: Sql, params: Params) -> list[Row]:
        return self._inner.rows(sql, params)

    def close(self) -> None:
        self._inner.close()


class FlakyDriver:
    """A driver whose writers fail to commit while there are errors, and to open while `closed`."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.name, self.shared = inner.name, inner.shared
        self.errors: list[Exception] = []
        self.closed = False

    def writer(self) -> DbConnection:
        if self.closed:
            raise StoreUnavailable("no connection")
        return Flaky(self._inner.writer(), self.errors)

    def reader(self, *, may_idle: bool = False) -> DbConnection:
        return self._inner.reader(may_idle=may_idle)

    def lock_session(self) -> LockSession:
        return self._inner.lock_session()

    def shorten_timeouts(self) -> None:
        self._inner.shorten_timeouts()


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), RuntimeError("a bug")], ids=["outage", "bug"])
async def test_a_commit_that_fails_fails_every_unit_of_it_and_no_later_one(driver: Driver, error: Exception) -> None:
    flaky = FlakyDriver(driver)
    database = Database(flaky)
    holding, go_on = await held(database)
    called: list[int] = []
    flaky.errors[:] = [error]

    def work(tx: Tx) -> None:
        put("b")(tx)
        tx.after_commit(lambda: called.append(1))

    waiting = [asyncio.create_task(database.write(fn)) for fn in (put("a"), work)]
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(StoreUnavailable):
        await holding
    await asyncio.gather(*waiting)
    assert (await names(database), called) == (["a", "b"], [1])
    flaky.errors[:] = [error]
    with pytest.raises(StoreUnavailable):
        await database.write(put("x"))
    assert (await names(database), called) == (["a", "b"], [1])
    await database.write(put("c"))
    assert await names(database) == ["a", "b", "c"]
    await asyncio.to_thread(database.close)


async def test_a_store_that_cannot_be_opened_is_opened_once_it_can(driver: Driver) -> None:
    flaky = FlakyDriver(driver)
    flaky.closed = True
    database = Database(flaky)
    with pytest.raises(StoreUnavailable):
        await database.write(put("a"))
    flaky.closed = False
    await database.write(put("a"))
    assert await names(database) == ["a"]
    await asyncio.to_thread(database.close)


@pytest.mark.only("sqlite", reason="PostgreSQL opens its files itself")
@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "deleted"])
async def test_nothing_is_written_after_the_file_of_the_database_was_replaced(
    driver: SqliteDriver, tmp_path: Path, *, is_replaced: bool
) -> None:
    db = Database(driver)
    await db.write(put("before"))
    copy = tmp_path / "copy.db"
    copy.write_bytes(driver.path.read_bytes())
    kept = driver.path.rename(tmp_path / "kept.db")
    if is_replaced:
        copy.rename(driver.path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"was replaced or deleted .* Stop the service"):
            await db.write(put("after"))
    with pytest.raises(StoreUnavailable):
        driver.reader()
    driver.path.unlink(missing_ok=True)
    kept.rename(driver.path)
    await db.write(put("again"))
    assert await names(db) == ["again", "before"]
    db.close()


HIDDEN = "The database is not available. The service's log has the reason."


@requirement("http.no-driver-text")
@pytest.mark.only("sqlite", reason="both drivers are made here, and neither has a database")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_database_that_cannot_be_opened_shows_nothing_of_the_drivers_words(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_waits, "LONG_CONNECT_SECONDS", math.inf)  # no pause after a slow failure
    missing = tmp_path / "missing" / "stentor.db"
    away = SqliteDriver(missing) if kind == "sqlite" else PostgresDriver("postgresql://role@127.0.0.1:1/hidden")
    database = Database(away)
    for call in (database.write, database.read):
        with pytest.raises(StoreUnavailable) as error:
            await call(lambda tx: tx.rows(GET))
        assert error.value.message == HIDDEN
        assert ("unable to open" if kind == "sqlite" else "port 1") in str(error.value)
        assert str(error.value) in caplog.text
    await asyncio.to_thread(database.close)


@requirement("http.no-driver-text")
async def test_a_commit_or_a_statement_that_fails_shows_nothing_of_the_drivers_words(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = FlakyDriver(driver)
    database = Database(flaky)
    flaky.errors[:] = [StoreUnavailable.of_driver("lost host nowhere")]
    with pytest.raises(StoreUnavailable) as lost:
        await database.write(put("a"))
    errors, no_table = [lost.value], Sql("select 1 from nowhere")
    for call in (database.write, database.read):
        caplog.clear()
        with pytest.raises(StoreUnavailable) as missing:
            await call(lambda tx: tx.rows(no_table))
        assert str(missing.value) in caplog.text
        errors.append(missing.value)
    assert [error.message for error in errors] == [HIDDEN] * 3
    assert all("nowhere" in str(error) for error in errors)
    await asyncio.to_thread(database.close)
