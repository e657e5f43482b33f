"""`stentor archive ...`: move tasks that ended long ago out of the database, list and verify the archives.

Works on the database itself: on SQLite a run needs a stopped service, which archives by its settings while it runs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stentor.bootstrap.storage import open_driver
from stentor.cli import output
from stentor.cli.command import AsJson, DataDir
from stentor.cli.output import (
    EXIT_USAGE,
    CommandFailed,
    console,
    print_line,
    print_notice,
    print_result,
    report_errors,
)
from stentor.cli.progress import counter, progress_bar
from stentor.cli.provenance.view import format_finding, report_document
from stentor.cli.service.offline import load_offline_settings, require_current_schema, require_database
from stentor.core.clock import DAY, SystemClock, format_iso, format_iso_or_none
from stentor.core.db import Database, Tx
from stentor.core.db.driver import ReadOnlyDriver
from stentor.core.fanout.live import Hub
from stentor.core.filesystem import DataFolderLock
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLog
from stentor.core.settings import Settings
from stentor.domains.retention import parquet_files, store, verification
from stentor.domains.retention.model import ArchiveResult, TaskArchive
from stentor.domains.retention.service import TaskArchiver
from stentor.domains.retention.verification import ArchiveReport

app = typer.Typer(help="Archive tasks that ended long ago, list and verify the archives.", no_args_is_help=True)
MAX_FINDINGS_SHOWN = 50
_AGE = re.compile(r"(\d{1,5})d?")


@app.command()
def run(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", help="Days since the end of a task, such as 90d; default: SERVICE_RETENTION_DAYS."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the tasks that would be archived.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Archive tasks that ended at least --older-than ago. It can be interrupted and run again.

    PostgreSQL: the service may be running. SQLite: it must be stopped; a running one archives by its settings.
    """
    with report_errors(as_json=as_json):
        chosen = load_offline_settings(data_dir)
        days = parse_age(chosen, older_than)
        if dry_run:
            print_result(count_tasks(chosen, days), msgspec.to_builtins, show_dry_run, as_json=as_json)
        else:
            print_result(archive_tasks(chosen, days), msgspec.to_builtins, show_result, as_json=as_json)


@app.command("list")
def list_archives(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the archives, oldest first."""
    with report_errors(as_json=as_json):
        archives = read_archives(load_offline_settings(data_dir))
        print_result(archives, describe_archives, show_archives, as_json=as_json)


@app.command()
def verify(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder of the archives; default: SERVICE_ARCHIVE_DIR.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare every archived event with its hash in the run log; the exit code is 1 if one differs or is missing.

    Whether these hashes are what was signed is verified by `stentor provenance verify`.
    """
    with report_errors(as_json=as_json):
        with progress_bar("Verifying") as progress:
            report = verify_archives(load_offline_settings(data_dir), folder, progress)
        print_result(report, report_document, show_report, as_json=as_json, is_success=report.is_intact)


class DryRun(msgspec.Struct, frozen=True):
    """How many tasks of each tenant a run would archive."""

    tasks: int
    tenants: dict[str, int]


def parse_age(chosen: Settings, text: str | None) -> int:
    """Return an age in days, from the settings without a text. Raises CommandFailed."""
    if text is None:
        if not chosen.storage.retention_days:
            raise CommandFailed(
                "Name the age with --older-than, such as 90d, or set SERVICE_RETENTION_DAYS.", EXIT_USAGE
            )
        return chosen.storage.retention_days
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise CommandFailed(f"--older-than {text!r} must be a number of days, such as 90d.", EXIT_USAGE)
    return int(match[1])


def archive_tasks(chosen: Settings, days: int) -> ArchiveResult:
    """Archive the tasks that ended at least this many days ago. Raises CommandFailed, StentorError."""
    parquet_files.require_library()

    async def work() -> ArchiveResult:
        async with _open_archiver(chosen, write=True) as archiver:
            with counter("Archiving") as update:
                return await archiver.archive(
                    SystemClock().now() - days * DAY,
                    lambda result: update(f"{result.tasks:,} tasks in {result.archives:,} archives"),
                )

    try:
        return asyncio.run(work())
    except OSError as error:
        raise CommandFailed(
            f"The archive {chosen.storage.archive_dir} cannot be written: {error.strerror or error}. Tasks that were "
            "not archived are still in the database."
        ) from None


def count_tasks(chosen: Settings, days: int) -> DryRun:
    """Return what a run would archive."""

    async def work() -> DryRun:
        async with _open_archiver(chosen, write=False) as archiver:
            with counter("Counting") as update:
                counts = await archiver.count_archivable(
                    SystemClock().now() - days * DAY, lambda count: update(f"{count:,} tasks")
                )
        return DryRun(sum(counts.values()), counts)

    return asyncio.run(work())


def read_archives(chosen: Settings) -> list[TaskArchive]:
    """Return the archives that the database knows."""
    require_database(chosen)
    driver = open_driver(chosen)
    require_current_schema(driver)
    connection = driver.reader()
    try:
        return store.list_archives(Tx(connection, connection.begin()))
    finally:
        connection.close()


def verify_archives(chosen: Settings, folder: Path | None, progress: verification.Progress) -> ArchiveReport:
    """Compare the archives with the run log. Raises CommandFailed and StartRefused."""
    require_database(chosen)
    driver = open_driver(chosen)
    require_current_schema(driver)
    return verification.verify_archives(driver, folder or chosen.storage.archive_dir, progress)


@asynccontextmanager
async def _open_archiver(chosen: Settings, *, write: bool) -> AsyncIterator[TaskArchiver]:
    """Open the database; to write on SQLite, with the lock of the data folder. Raises CommandFailed, StartRefused."""
    require_database(chosen)
    driver = open_driver(chosen)
    require_current_schema(driver)
    clock = SystemClock()
    lock = None
    if write and not chosen.storage.database_url:
        lock = DataFolderLock(chosen.storage.data_dir, format_iso(clock.now()))
    try:
        db = Database(driver if write else ReadOnlyDriver(driver))
        try:
            # On SQLite no service is running that this could slow down.
            pause_factor = 1.0 if chosen.storage.database_url else 0.0
            yield TaskArchiver(db, RunLog(Hub()), clock, chosen.storage.archive_dir, 0, pause_factor=pause_factor)
        finally:
            await asyncio.to_thread(db.close)
    finally:
        if lock is not None:
            lock.release()


def describe_archives(archives: list[TaskArchive]) -> list[JsonObject]:
    """Return archives as plain values, with their times in ISO 8601."""
    times = ("first_at", "last_at", "started_at", "ended_at")
    values: list[JsonObject] = msgspec.to_builtins(archives)
    return [each | {name: format_iso_or_none(each[name]) for name in times} for each in values]


def show_result(result: ArchiveResult) -> None:
    """Print what was archived."""
    if not result.tasks:
        print_line("No task may be archived.")
    else:
        print_line(
            f"Archived {result.tasks:,} tasks with {result.events:,} events in {result.archives:,} archives "
            f"({result.size_bytes:,} bytes)."
        )
    if result.skipped:
        print_notice(
            f"{result.skipped:,} tasks stay, because their events are not in a signed checkpoint yet or differ from "
            "the run log (see `stentor provenance verify`), or because a step is damaged (see the log).",
            "yellow",
        )


def show_dry_run(result: DryRun) -> None:
    """Print what a run would archive."""
    print_line(f"{result.tasks:,} tasks would be archived, then those whose subtasks are all archived.")
    for tenant, count in result.tenants.items():
        print_line(f"  {tenant}: {count:,}")


def show_archives(archives: list[TaskArchive]) -> None:
    """Print a table of the archives."""
    if not archives:
        print_line("There are no archives.")
        return
    rows = [
        (
            archive.name,
            archive.tenant,
            f"{archive.tasks:,}",
            f"{archive.events:,}",
            f"{archive.size_bytes:,}",
            (format_iso_or_none(archive.first_at) or "")[:10],
            (format_iso_or_none(archive.last_at) or "")[:10],
            "done" if archive.ended_at else "being written",
        )
        for archive in archives
    ]
    columns = ("archive", "tenant", "tasks", "events", "bytes", "first task", "last task", "state")
    console.print(output.render_table(columns, rows))


def show_report(report: ArchiveReport) -> None:
    """Print the findings and the verdict."""
    for finding in report.findings[:MAX_FINDINGS_SHOWN]:
        print_notice(format_finding(finding), "red")
    if len(report.findings) > MAX_FINDINGS_SHOWN:
        print_line(f"and {len(report.findings) - MAX_FINDINGS_SHOWN} more findings (--json prints all)")
    if report.unknown:
        print_notice(
            f"The database does not know {len(report.unknown)} folders, such as {report.unknown[0]}: it may have been "
            "restored from a backup, and then has their tasks.",
            "yellow",
        )
    verdict = "match the run log" if report.is_intact else "do not match the run log"
    print_line(f"{report.archives:,} archives {verdict}; {report.events:,} events were verified.")
