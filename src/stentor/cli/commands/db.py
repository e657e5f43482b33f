"""`stentor db ...`: schema upgrades, backups, and copying between SQLite and PostgreSQL; see `db_operations`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import db_operations, tenant_split
from stentor.cli.command import AsJson, DataDir
from stentor.cli.offline import load_offline_settings
from stentor.cli.output import EXIT_FAILED, print_json, print_notice, report_errors
from stentor.cli.provenance.view import progress_bar

app = typer.Typer(help="Upgrade the database schema, back up, copy to another database.", no_args_is_help=True)

URL_FORMAT = "sqlite:///PATH or postgresql://USER@HOST/NAME"
SourceUrl = Annotated[str, typer.Argument(metavar="SOURCE", help=f"Database to copy from: {URL_FORMAT}.")]
TargetUrl = Annotated[str, typer.Argument(metavar="TARGET", help=f"Empty database to copy to: {URL_FORMAT}.")]


@app.command()
def upgrade(
    backup: Annotated[bool, typer.Option(help="Back up a SQLite database first, in the same folder.")] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Upgrade the schema in one transaction; concurrent upgrades are safe.

    PostgreSQL: other instances may keep running. SQLite: the service must be stopped.
    """
    with report_errors(as_json=as_json):
        result = db_operations.upgrade_schema(load_offline_settings(data_dir), keep_copy=backup)
        if as_json:
            print_json(db_operations.upgrade_document(result))
        else:
            db_operations.show_upgrade(result)


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the schema version and pending upgrades; the exit code is 1 unless the schema is current."""
    with report_errors(as_json=as_json):
        schema_status = db_operations.read_schema_status(load_offline_settings(data_dir))
        if as_json:
            print_json(db_operations.status_document(schema_status))
        else:
            db_operations.show_status(schema_status)
        if schema_status.state != "current":
            raise typer.Exit(EXIT_FAILED)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup file; must not exist yet.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Back up a SQLite database to one file and check it; the service may be running."""
    with report_errors(as_json=as_json):
        chosen = load_offline_settings(data_dir)
        with progress_bar("Copying pages") as progress:
            size = db_operations.backup_database(chosen, file, progress)
        if as_json:
            print_json({"file": str(file), "bytes": size})
        else:
            print_notice(f"Backed up the database to {file} ({size:,} bytes); the backup passes the integrity check.")
            print_notice(
                f"Not included: {chosen.storage.data_dir / 'keys'} and the notes of the vault. Back them up as well."
            )


@app.command()
def copy(
    source: SourceUrl,
    target: TargetUrl,
    verifier: Annotated[
        list[str] | None,
        typer.Option(help="Verifier key (or file) for checkpoints; repeatable. Default: the one next to the database."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Copy everything to an empty database, from SQLite to PostgreSQL or back. Stop all services on both first.

    At the end all rows are compared and the run log is verified. No service starts on the target before that; after an
    interruption, run the same command again. Pass passwords in PGPASSWORD or a .pgpass file: a URL is visible in the
    process list.
    """
    with report_errors(as_json=as_json):
        result = db_operations.copy_database(source, target, verifier or [], data_dir)
        if as_json:
            print_json(db_operations.copy_document(result))
        else:
            db_operations.show_copy(result)
        if not result.report.is_intact:
            raise typer.Exit(EXIT_FAILED)


@app.command()
def split(
    tenant: Annotated[list[str], typer.Option(help="A tenant that moves; repeatable.")],
    to: Annotated[str, typer.Option(metavar="URL", help="Empty database to move to: postgresql://USER@HOST/NAME.")],
    verifier: Annotated[
        list[str] | None,
        typer.Option(help="Verifier key (or file) for checkpoints; repeatable. Default: the one of the data folder."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Move tenants from SERVICE_DATABASE_URL to an empty PostgreSQL database. Stop all services on both first.

    What was copied is read back and compared before it is deleted. The run log goes along as a whole and stays as a
    whole. After an interruption, run the same command again.
    """
    with report_errors(as_json=as_json):
        result = tenant_split.split_tenants(tenant, to, verifier or [], data_dir)
        if as_json:
            print_json(tenant_split.split_document(result))
        else:
            tenant_split.show_split(result)
        if not result.report.is_intact:
            raise typer.Exit(EXIT_FAILED)
