"""One process at a time has the lead; it goes to another when its holder is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from stentor.core.db.locks.leader import VAULT_LOCK_ID, LeaderElection
from stentor.core.db.postgres.connection import PostgresConnection
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from tests.patience import soon

EVERY = 0.02
HOLDERS = """
select pid from pg_locks join pg_database on pg_database.oid = database
where locktype = 'advisory' and objid = %s and granted and datname = current_database()
"""


def leader(url: str) -> LeaderElection:
    return LeaderElection(PostgresDriver(url), VAULT_LOCK_ID, "the job", poll_seconds=EVERY)


async def begun(works: list[Work], times: int) -> None:
    await soon(lambda: sum(work.begun for work in works) == times)


class Work:
    """Says whether it is under way, and how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.runs = False

    async def __call__(self) -> None:
        self.begun += 1
        self.runs = True
        try:
            await asyncio.Event().wait()
        finally:
            self.runs = False


async def test_a_process_that_leaves_while_it_asks_keeps_no_lead(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on, answered = threading.Event(), threading.Event(), threading.Event()
    connect, query = PostgresDriver._open_session, LeaderElection._query

    def slow_connect(driver: PostgresDriver) -> PostgresConnection:
        asked.set()
        goes_on.wait()
        return connect(driver)

    def told_query(election: LeaderElection) -> bool:
        is_held = query(election)
        answered.set()
        return is_held

    monkeypatch.setattr(PostgresDriver, "_open_session", slow_connect)
    monkeypatch.setattr(LeaderElection, "_query", told_query)
    first, second = leader(postgres_url), leader(postgres_url)
    asking = asyncio.create_task(first.is_leader())
    await asyncio.to_thread(asked.wait)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await first.close()
    goes_on.set()  # the thread of the cancelled question takes the lock only now
    await asyncio.to_thread(answered.wait)
    await soon(second.is_leader)
    assert not await first.is_leader()
    await second.close()


async def test_one_of_two_leads_and_the_other_takes_over_when_it_closes(postgres_url: str) -> None:
    first, second = leader(postgres_url), leader(postgres_url)
    assert await first.is_leader()
    assert await first.is_leader()
    assert not await second.is_leader()
    await first.close()
    await soon(second.is_leader)  # the server takes a moment to see that a connection was closed
    assert not await first.is_leader()
    for one in (first, second):
        await one.close()


async def test_different_jobs_have_leads_of_their_own(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url)
    jobs = [LeaderElection(driver, number, "a job") for number in (1, 2)]
    assert [await job.is_leader() for job in jobs] == [True, True]
    for job in jobs:
        await job.close()


async def test_two_in_one_process_do_not_lead_the_same_job(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url)
    first, second = (LeaderElection(driver, VAULT_LOCK_ID, "the job", poll_seconds=EVERY) for _ in range(2))
    assert await first.is_leader()
    assert not await second.is_leader()
    await second.close()
    elsewhere = leader(postgres_url)
    assert not await elsewhere.is_leader()
    await first.close()
    await soon(elsewhere.is_leader)
    await elsewhere.close()


async def test_a_database_of_ones_own_needs_no_lead(tmp_path: Path) -> None:
    alone = LeaderElection(SqliteDriver(tmp_path / "x.db"), VAULT_LOCK_ID, "the job")
    assert await alone.is_leader()
    work = Work()
    task = asyncio.create_task(alone.run_while_leader(work))
    await soon(lambda: work.runs)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (work.begun, work.runs) == (1, False)
    await alone.close()


async def test_work_runs_where_the_lead_is_and_stops_where_it_is_lost(postgres_url: str) -> None:
    leaders, works = [leader(postgres_url) for _ in range(2)], [Work(), Work()]
    tasks = [asyncio.create_task(one.run_while_leader(work)) for one, work in zip(leaders, works, strict=True)]
    await soon(lambda: works[0].runs or works[1].runs)
    for _ in range(2):
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            (row,) = admin.execute(HOLDERS, (VAULT_LOCK_ID,)).fetchall()
            before = sum(work.begun for work in works)
            admin.execute("select pg_terminate_backend(%s)", row)
        await begun(works, before + 1)
        await soon(lambda: works[0].runs != works[1].runs)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [work.runs for work in works] == [False, False]
    for one in leaders:
        await one.close()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_work_that_fails_is_begun_anew(
    is_shared: bool, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    begun = 0

    async def fails_once() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise ValueError("broken")
        await asyncio.Event().wait()

    url = request.getfixturevalue("postgres_url") if is_shared else None
    one = leader(url) if url else LeaderElection(SqliteDriver(tmp_path / "x.db"), VAULT_LOCK_ID, "the job", EVERY)
    task = asyncio.create_task(one.run_while_leader(fails_once))
    await soon(lambda: begun == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await one.close()
    assert "leader: job failed, restarting job=the job" in caplog.text


async def test_an_outage_is_no_lead_and_ends_by_itself(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url)
    one = LeaderElection(driver, VAULT_LOCK_ID, "the job", poll_seconds=EVERY)
    driver.url = "postgresql://nobody@127.0.0.1:1/none"
    assert not await one.is_leader()
    driver.url = postgres_url
    assert await one.is_leader()
    await one.close()


HOLDER = """
import asyncio, sys
from stentor.core.db.locks.leader import VAULT_LOCK_ID, LeaderElection
from stentor.core.db.postgres.driver import PostgresDriver
from tests.patience import soon

async def main():
    leader = LeaderElection(PostgresDriver(sys.argv[1]), VAULT_LOCK_ID, "x")
    print(await leader.is_leader(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.fault
async def test_the_lead_of_a_process_that_was_killed_goes_to_another(postgres_url: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, postgres_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "True\n"
        one, work = leader(postgres_url), Work()
        assert not await one.is_leader()
        task = asyncio.create_task(one.run_while_leader(work))
        process.kill()
        await soon(lambda: work.runs)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await one.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
