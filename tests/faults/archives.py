"""A program that archives tasks and is killed at each of its steps, one after the other, until a run survives.

A step is what another process or a power cut could see: a call that changes the folder, and each side of a commit.
`python -m tests.faults.archives URL FOLDER` writes what was wrong after each kill, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stentor.core.clock import SystemClock
from stentor.core.db import Database, Sql, Tx
from stentor.core.db.driver import DbConnection, Driver
from stentor.core.db.locks.session import LockSession
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.fanout.live import Hub
from stentor.core.runlog import RunLog
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.retention import parquet_files, store
from stentor.domains.retention.service import TaskArchiver
from stentor.domains.retention.verification import verify_archives

MOST = 3
"""Tasks in an archive, so that a run writes several."""
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


class Deadline:
    """Kills this process at its n-th step."""

    def __init__(self, step: int) -> None:
        self._left = step

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # the signal may come to another thread first

    def watch(self, folder: Path) -> None:
        """Count what is changed below a folder."""

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            is_opened_to_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
            if (event in CHANGES or is_opened_to_write) and str(arguments[0]).startswith(str(folder)):
                self.step()

        sys.addaudithook(hook)


class MortalDriver:
    """A driver whose writer counts a step before and one after each commit."""

    def __init__(self, driver: Driver, deadline: Deadline) -> None:
        self.name, self.shared = driver.name, driver.shared
        self._driver, self._deadline = driver, deadline

    def lock_session(self) -> LockSession:
        return self._driver.lock_session()

    def shorten_timeouts(self) -> None:
        self._driver.shorten_timeouts()

    def reader(self, *, may_idle: bool = False) -> DbConnection:
        return self._driver.reader(may_idle=may_idle)

    def writer(self) -> DbConnection:
        writer: Any = self._driver.writer()
        commit = writer.commit

        def mortal_commit() -> None:
            self._deadline.step()
            commit()
            self._deadline.step()

        writer.commit = mortal_commit
        return writer  # type: ignore[no-any-return]


def open_driver(url: str) -> Driver:
    return PostgresDriver(url) if url.startswith("postgresql") else SqliteDriver(Path(url))


async def archive(driver: Driver, folder: Path) -> int:
    db = Database(driver)
    try:
        archiver = TaskArchiver(db, RunLog(Hub()), SystemClock(), folder, 0, MOST, pause_factor=0.0)
        return (await archiver.archive(SystemClock().now())).tasks
    finally:
        db.close()


def die_at(step: int, url: str, folder: Path) -> bool:
    """Archive in a fork that is killed at a step; False if it ended before."""
    pid = os.fork()
    if pid == 0:
        deadline = Deadline(step)
        deadline.watch(folder)
        asyncio.run(archive(MortalDriver(open_driver(url), deadline), folder))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the archiver failed at step {step}")
    return os.WIFSIGNALED(status)


def faults(url: str, folder: Path, expected: set[str]) -> list[str]:
    """What is wrong with the database and the archives that it knows."""
    driver = open_driver(url)
    connection = driver.reader()
    try:
        tx = Tx(connection, connection.begin())
        present = [row[0] for row in tx.rows(Sql("select task_id from tasks"))]
        archived = [row[0] for row in tx.rows(Sql("select task_id from archived_tasks"))]
        finished = [archive.name for archive in store.list_archives(tx) if archive.ended_at is not None]
    finally:
        connection.close()
    found = [f"{task} is in {times} places" for task, times in Counter(present + archived).items() if times != 1]
    found += [f"{task} is lost" for task in expected - {*present, *archived}]
    if sorted(archived) != sorted(task for name in finished for task in tasks_of(folder / name)):
        found.append("the files have other tasks than the database says")
    found += [finding.text for finding in verify_run_log(driver, []).findings]
    return found + [finding.text for finding in verify_archives(driver, folder).findings]


def tasks_of(folder: Path) -> list[str]:
    from pyarrow import parquet

    names: list[str] = parquet.read_table(folder / "tasks.parquet").column("task_id").to_pylist()
    return names


def main(url: str, folder: Path) -> None:
    driver = open_driver(url)
    connection = driver.reader()
    expected = {row[0] for row in Tx(connection, connection.begin()).rows(Sql("select task_id from tasks"))}
    connection.close()
    kills, problems = 0, list[str]()
    # Each run takes up where the killed one left the work, so the steps move through all archives.
    while die_at(kills % 40 + 1, url, folder):
        kills += 1
        problems += [f"kill {kills}: {text}" for text in faults(url, folder, expected)]
    asyncio.run(archive(driver, folder))
    problems += [f"at the end: {text}" for text in faults(url, folder, expected)]
    connection = driver.reader()
    known = {archive.name for archive in store.list_archives(Tx(connection, connection.begin()))}
    connection.close()
    problems += [f"{path.name} was left behind" for path in folder.iterdir() if path.name not in known]
    json.dump({"kills": kills, "archives": len(parquet_files.list_folders(folder)), "problems": problems}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
