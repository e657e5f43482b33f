"""`stentor db ...`: the schema, backups, and the move from SQLite to PostgreSQL or back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stentor.cli.options import AsJson, DataDir
from stentor.cli.output import FAILED, notice, print_json, reporting

app = typer.Typer(help="The schema of the database, backups, and moving to another database.", no_args_is_help=True)

PLACE = "sqlite:///PATH or postgresql://USER@HOST/NAME"
Source = Annotated[str, typer.Argument(metavar="SOURCE", help=f"Where the rows are: {PLACE}.")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help=f"An empty database: {PLACE}.")]


@app.command()
def upgrade(
    backup: Annotated[bool, typer.Option(help="Copy a SQLite database before; it lies beside it.")] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring the schema up to date: all of it, or nothing; once, however many ask at the same time.

    PostgreSQL: other instances may run meanwhile. SQLite: the service must be stopped.
    """
    with reporting(as_json=as_json):
        # The databases and the migrations: not for `stentor --help`.
        from stentor.cli import db_schema as schema

        done = schema.upgrade(schema.settings_of(data_dir), keep_copy=backup)
        if as_json:
            print_json(schema.document(done))
        else:
            schema.show(done)


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say which schema the database has and what is pending; ends with 1 unless it is this program's."""
    with reporting(as_json=as_json):
        from stentor.cli import db_schema as schema

        found = schema.status(schema.settings_of(data_dir))
        if as_json:
            print_json(schema.status_document(found))
        else:
            schema.show_status(found)
        if found.state != "current":
            raise typer.Exit(FAILED)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; nothing may be there yet.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Copy a SQLite database into one file, consistent also while the service runs, and check it."""
    with reporting(as_json=as_json):
        from stentor.cli import db_schema as schema
        from stentor.cli.provenance_view import bar

        chosen = schema.settings_of(data_dir)
        with bar("Copying pages") as progress:
            size = schema.backup(chosen, file, progress)
        if as_json:
            print_json({"file": str(file), "bytes": size})
        else:
            notice(f"The database is copied to {file} ({size:,} bytes), and the copy is sound.")
            notice(f"Not in it: {chosen.data_dir / 'keys'}, and the notes of the vault. Copy them too.")


@app.command()
def copy(
    source: Source,
    target: Target,
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
    with reporting(as_json=as_json):
        from stentor.cli import db_copy

        moved = db_copy.run(source, target, verifier or [], data_dir)
        if as_json:
            print_json(db_copy.document(moved))
        else:
            db_copy.show(moved)
        if not moved.report.is_intact:
            raise typer.Exit(FAILED)
