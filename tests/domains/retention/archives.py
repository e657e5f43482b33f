"""What the tests of archives share: tasks whose events are signed, runs of the archiver, and what is where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from stentor.core.db import Sql
from stentor.core.db.driver import ReadOnlyDriver
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.retention.model import ArchiveResult
from stentor.domains.retention.parquet_files import write_archive
from stentor.domains.retention.service import TaskArchiver, WriteFiles
from stentor.domains.retention.verification import ArchiveReport, verify_archives
from tests.conftest import World

OF_TASKS = ("tasks", "events", "task_steps", "task_signals", "task_grades", "llm_calls")


def archiver(world: World, most: int = 200, write_files: WriteFiles = write_archive) -> TaskArchiver:
    """The world's own, with archives of at most so many tasks."""
    infra = world.kernel.infra
    return TaskArchiver(infra.db, infra.runlog, world.clock, world.kernel.archiver.folder, 0, most, write_files, 0.0)


async def sign(world: World) -> None:
    """Number and sign all events, as the service does by itself."""
    await world.kernel.provenance.service.publish()


async def archive(world: World, most: int = 200) -> ArchiveResult:
    """Sign, and archive what has ended."""
    await sign(world)
    return await archiver(world, most).archive(world.clock.now() + 1)


def select(world: World, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the files of all archives, as DuckDB reads them; `{x}` in the query is the table x."""
    folder = world.kernel.archiver.folder
    tables = {path.stem: f"'{folder}/*/{path.name}'" for path in folder.glob("*/*.parquet")}
    with duckdb.connect() as connection:
        return list(connection.execute(sql.format_map(tables)).fetchall())


async def count(world: World, table: str) -> int:
    rows = await world.kernel.infra.db.read(lambda tx: tx.rows(Sql(f"select count(*) from {table}")))
    return int(rows[0][0])


def audit(world: World) -> AuditReport:
    """Verify the run log in the database alone."""
    signer = world.kernel.provenance.signer
    return verify_run_log(ReadOnlyDriver(world.kernel.infra.db.driver), [signer.verifier])


def audit_archives(world: World, folder: Path | None = None) -> ArchiveReport:
    return verify_archives(world.kernel.infra.db.driver, folder or world.kernel.archiver.folder)
