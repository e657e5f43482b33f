"""`stentor db ...`: the schema, backups, and the move from SQLite to PostgreSQL or back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stentor.cli.command import AsJson, DataDir
from stentor.cli.output import EXIT_FAILED, print_json, print_notice, report_errors

app = typer.Typer(help="The schema of the database, backups, and moving to another database.", no_args_is_help=True)

URL_FORMAT = "sqlite:///PATH or postgresql://USER@HOST/NAME"
SourceUrl = Annotated[str, typer.Argument(metavar="SOURCE", help=f"Where the rows are: {URL_FORMAT}.")]
TargetUrl = Annotated[str, typer.Argument(metavar="TARGET", help=f"An empty database: {URL_FORMAT}.")]


@app.command()
def upgrade(
    backup: Annotated[bool, typer.Option(help="Copy a SQLite database before; it lies beside it.")] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring the schema up to date: all of it, or nothing; once, however many ask at the same time.

    PostgreSQL: other instances may run meanwhile. SQLite: the service must be stopped.
    """
    with report_errors(as_json=as_json):
        # The databases and the migrations: not for `stentor --help`.
        from stentor.cli import db_operations as schema

        done = schema.upgrade_schema(schema.load_db_settings(data_dir), keep_copy=backup)
        if as_json:
            print_json(schema.upgrade_document(done))
        else:
            schema.show_upgrade(done)


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say which schema the database has and what is pending; ends with 1 unless it is this program's."""
    with report_errors(as_json=as_json):
        from stentor.cli import db_operations as schema

        found = schema.read_schema_status(schema.load_db_settings(data_dir))
        if as_json:
            print_json(schema.status_document(found))
        else:
            schema.show_status(found)
        if found.state != "current":
            raise typer.Exit(EXIT_FAILED)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; nothing may be there yet.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Copy a SQLite database into one file, consistent also while the service runs, and check it."""
    with report_errors(as_json=as_json):
        from stentor.cli import db_operations as schema
        from stentor.cli.provenance_view import progress_bar

        chosen = schema.load_db_settings(data_dir)
        with progress_bar("Copying pages") as progress:
            size = schema.backup_database(chosen, file, progress)
        if as_json:
            print_json({"file": str(file), "bytes": size})
        else:
            print_notice(f"The database is copied to {file} ({size:,} bytes), and the copy is sound.")
            print_notice(f"Not in it: {chosen.storage.data_dir / 'keys'}, and the notes of the vault. Copy them too.")


@app.command()
def copy(
    source: SourceUrl,
    target: TargetUrl,
    verifier: Annotated[
        list[str] | None,
        typer.Option(help="Verifier key (or its file) of checkpoints; repeatable. Else the one beside the database."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Move everything into an empty database: from SQLite to PostgreSQL, or back. Nothing may serve either meanwhile.

    Rows are compared and the run log is verified at the end. Until then the target refuses to start; after an
    interruption run the same command again. A password is better given in PGPASSWORD or a .pgpass file than in an
    address, which others can read in the process list.
    """
    with report_errors(as_json=as_json):
        from stentor.cli import db_operations

        moved = db_operations.copy_database(source, target, verifier or [], data_dir)
        if as_json:
            print_json(db_operations.copy_document(moved))
        else:
            db_operations.show_copy(moved)
        if not moved.report.is_intact:
            raise typer.Exit(EXIT_FAILED)
