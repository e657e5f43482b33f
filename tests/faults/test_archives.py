"""Archiving under faults: killed at each step, on a full disk, beside another archiver and changes of its tasks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sql import Row
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import Conflict
from stentor.domains.retention import parquet_files
from stentor.domains.retention.parquet_files import WrittenFiles
from tests.conftest import World
from tests.domains.retention.archives import archiver, audit, audit_archives, count, sign
from tests.faults.test_full_disk import fill, small_disk
from tests.requirements import requirement

pytestmark = pytest.mark.fault
__all__ = ["small_disk"]  # a fixture
TASKS = 30


async def ended_tasks(world: World, many: int) -> list[str]:
    agent = await world.register()
    tasks = [await world.do(agent, ok=bool(n % 3)) for n in range(many)]
    await sign(world)
    return tasks


def address(world: World) -> str:
    driver = world.kernel.infra.db.driver
    assert isinstance(driver, PostgresDriver | SqliteDriver)
    return driver.url if isinstance(driver, PostgresDriver) else str(driver.path)


@requirement("retention.crashes")
async def test_a_kill_at_any_step_loses_and_doubles_nothing(world: World, tmp_path: Path) -> None:
    await ended_tasks(world, TASKS)
    await world.kernel.stop()
    folder = tmp_path / "archive"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.faults.archives", address(world), str(folder)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["kills"] > 20, report
    assert report["archives"] == TASKS / 3


@requirement("retention.crashes")
@pytest.mark.parametrize("change", ["retry", "grade"])
async def test_a_task_that_changes_while_it_is_written_stays(world: World, change: str) -> None:
    task = (await ended_tasks(world, 2))[change == "grade"]
    loop = asyncio.get_running_loop()
    answers = []

    def write_slowly(folder: Path, name: str, rows: Mapping[str, Sequence[Row]]) -> WrittenFiles:
        files = parquet_files.write_archive(folder, name, rows)
        body = {"grade": 1} if change == "grade" else {}
        if not answers:
            request = world.admin.post(f"/api/v1/tasks/{task}/{change}", json=body)
            answers.append(asyncio.run_coroutine_threadsafe(request, loop).result(60).status_code)
        return files

    result = await archiver(world, write_files=write_slowly).archive(world.clock.now() + 1)
    assert (answers[0] // 100, result.tasks) == (2, 0)
    assert (await count(world, "archives"), await count(world, "tasks")) == (0, 2)
    assert parquet_files.list_folders(world.kernel.archiver.folder) == []
    await sign(world)
    result = await archiver(world).archive(world.clock.now() + 1)
    assert (result.tasks, audit(world).findings) == (1 if change == "retry" else 2, [])


@requirement("retention.crashes")
async def test_two_at_once_archive_each_task_once(world: World) -> None:
    await ended_tasks(world, 12)
    before = world.clock.now() + 1
    results = await asyncio.gather(*(archiver(world, 2).archive(before) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, Conflict) or not isinstance(result, BaseException) for result in results), results
    await archiver(world, 2).archive(before)
    assert await count(world, "archived_tasks") == 12
    assert await count(world, "tasks") == 0
    assert audit(world).is_intact
    report = audit_archives(world)
    assert (report.findings, report.unknown) == ([], [])


@requirement("retention.setting")
@pytest.mark.only("sqlite", reason="the disk is that of the archive")
async def test_a_full_disk_stops_archiving_and_loses_nothing(world: World, small_disk: Path) -> None:
    await ended_tasks(world, 6)
    archive = archiver(world)
    archive.folder = small_disk / "archive"
    archive.folder.mkdir()
    fill(small_disk / "ballast")
    with pytest.raises(OSError, match="No space"):
        await archive.archive(world.clock.now() + 1)
    assert (await count(world, "tasks"), await count(world, "archives")) == (6, 0)
    assert list(archive.folder.iterdir()) == []
    (small_disk / "ballast").unlink()
    assert (await archive.archive(world.clock.now() + 1)).tasks == 6
    assert audit_archives(world, archive.folder).is_intact
