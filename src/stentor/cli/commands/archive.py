"""`stentor archive ...`: move tasks that ended long ago out of the database, list and verify the archives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stentor.cli import archiving
from stentor.cli.command import AsJson, DataDir
from stentor.cli.offline import load_offline_settings
from stentor.cli.output import EXIT_FAILED, print_json, report_errors
from stentor.cli.provenance.view import progress_bar

app = typer.Typer(help="Archive tasks that ended long ago, list and verify the archives.", no_args_is_help=True)


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
        days = archiving.parse_age(chosen, older_than)
        if dry_run:
            counted = archiving.count_tasks(chosen, days)
            print_json(msgspec.to_builtins(counted)) if as_json else archiving.show_dry_run(counted)
            return
        result = archiving.archive_tasks(chosen, days)
        print_json(msgspec.to_builtins(result)) if as_json else archiving.show_result(result)


@app.command("list")
def list_archives(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the archives, oldest first."""
    with report_errors(as_json=as_json):
        archives = archiving.list_archives(load_offline_settings(data_dir))
        if as_json:
            print_json([archiving.describe_archive(archive) for archive in archives])
        else:
            archiving.show_archives(archives)


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
            report = archiving.verify_archives(load_offline_settings(data_dir), folder, progress)
        print_json(archiving.report_document(report)) if as_json else archiving.show_report(report)
        if not report.is_intact:
            raise typer.Exit(EXIT_FAILED)
