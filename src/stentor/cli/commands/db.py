"""`stentor db ...`: schema upgrades, backups, copying between SQLite and PostgreSQL, splitting off tenants.

See `db_operations`; the steps of a split are in `core.db.transfer.tenant_split`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from stentor.cli import db_operations, output
from stentor.cli.command import AsJson, DataDir
from stentor.cli.output import (
    EXIT_REFUSED,
    EXIT_USAGE,
    CommandFailed,
    console,
    print_json,
    print_notice,
    print_result,
    report_errors,
)
from stentor.cli.progress import progress_bar, table_progress_bar
from stentor.cli.provenance import view as provenance_view
from stentor.cli.provenance.checkpoint_sources import load_verifiers
from stentor.cli.service.offline import load_offline_settings
from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.transfer import CopiedTable
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import install_command
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.signing.signed_note import NoteVerifier

app = typer.Typer(help="Upgrade the database schema, back up, copy to another database.", no_args_is_help=True)

URL_FORMAT = "sqlite:///PATH or postgresql://USER@HOST/NAME"
SourceUrl = Annotated[str, typer.Argument(metavar="SOURCE", help=f"Database to copy from: {URL_FORMAT}.")]
TargetUrl = Annotated[str, typer.Argument(metavar="TARGET", help=f"Empty database to copy to: {URL_FORMAT}.")]
INTERRUPTED_MESSAGE = (
    "The split did not complete. Run the same command again before a service starts on {}; until the tenants are "
    "deleted in {}, a service may start there."
)
ONLY_POSTGRESQL = (
    "A split is from one PostgreSQL database to another one. `stentor db copy` copies a SQLite database to PostgreSQL."
)


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
        print_result(result, db_operations.upgrade_document, db_operations.show_upgrade, as_json=as_json)


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the schema version and pending upgrades; the exit code is 1 unless the schema is current."""
    with report_errors(as_json=as_json):
        found = db_operations.read_schema_status(load_offline_settings(data_dir))
        is_current = found.state == "current"
        to_document, show = db_operations.status_document, db_operations.show_status
        print_result(found, to_document, show, as_json=as_json, is_success=is_current)


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
        is_intact = result.report.is_intact
        to_document, show = db_operations.copy_document, db_operations.show_copy
        print_result(result, to_document, show, as_json=as_json, is_success=is_intact)


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

    What was copied is read back and compared before it is deleted. The complete run log is copied, and also stays in
    the source. After an interruption, run the same command again.
    """
    with report_errors(as_json=as_json):
        result = split_tenants(tenant, to, verifier or [], data_dir)
        is_intact = result.report.is_intact
        print_result(result, split_document, show_split, as_json=as_json, is_success=is_intact)


@dataclass(frozen=True)
class SplitResult:
    """The result of a split: `copied` is empty if an earlier run had done all but the last step."""

    source: str
    target: str
    tenants: list[str]
    copied: list[CopiedTable]
    report: AuditReport

    @property
    def acceptance(self) -> str:
        """The reason with which the target's log continues under its own key."""
        names = ", ".join(self.tenants)
        return f"split off at {self.report.size} events, root {self.report.root}; tenants: {names}"


def split_tenants(tenants: list[str], target: str, verifiers: list[str], data_dir: Path | None) -> SplitResult:
    """Move tenants to another database. Raises CommandFailed."""
    chosen = load_offline_settings(data_dir)
    pooled, direct = chosen.storage.database_url, chosen.storage.session_url
    if not (direct or pooled):
        raise CommandFailed(ONLY_POSTGRESQL, EXIT_USAGE)
    # Not through a pooler: the source is locked and read in one session.
    source = ("SERVICE_DATABASE_SESSION_URL", direct) if direct else ("SERVICE_DATABASE_URL", pooled)
    ends = db_operations.parse_url(*source), db_operations.parse_url("--to", target)
    if ends[0].path is not None or ends[1].path is not None:
        raise CommandFailed(ONLY_POSTGRESQL, EXIT_USAGE)
    if target in (pooled, direct):
        raise CommandFailed("--to is the database of SERVICE_DATABASE_URL itself.", EXIT_USAGE)
    redactor = Redactor()
    for secret in (secret for end in ends for secret in end.secrets):
        redactor.add_secret(secret)
    try:
        return _split(chosen, ends, sorted(set(tenants)), load_verifiers(chosen, verifiers, None))
    except StentorError as error:
        raise CommandFailed(redactor.redact(str(error)), EXIT_REFUSED) from None


def _split(
    chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl], tenants: list[str], keys: list[NoteVerifier]
) -> SplitResult:
    transfer = _load_transfer()
    source, target = transfer.TenantRows(ends[0], tenants), transfer.SplitTarget(ends[1], write=True)
    split = transfer.TenantSplit(source, target, tenants)
    copied: list[CopiedTable] = []
    with split.open():
        if chosen.memory.tenant in tenants and split.count_notes():
            raise CommandFailed(
                f"The tenant {chosen.memory.tenant!r} owns the vault (SERVICE_VAULT_TENANT), whose notes are "
                "files and cannot be split: let it stay, and move the other tenants.",
                EXIT_REFUSED,
            )
        try:
            if not split.is_released:
                with table_progress_bar("Copying") as progress:
                    copied = split.copy(progress)
            with progress_bar("Verifying the run log") as run_log_progress:
                report = verification.verify_run_log(target.driver, keys, [], run_log_progress)
            if not split.is_released:
                split.release(copied)
            split.finish()
        except BaseException:  # Ctrl-C too
            print_notice(INTERRUPTED_MESSAGE.format(target.display, source.display), "yellow")
            raise
    return SplitResult(source.display, target.display, tenants, copied, report)


def _load_transfer() -> Any:
    try:
        return importlib.import_module("stentor.core.db.transfer.tenant_split")
    except ImportError:
        raise CommandFailed(f"PostgreSQL needs the extra: {install_command('postgres')}.", EXIT_REFUSED) from None


def split_document(result: SplitResult) -> JsonObject:
    """Return the result as plain values."""
    return {
        "source": result.source,
        "target": result.target,
        "tenants": result.tenants,
        "tables": msgspec.to_builtins(result.copied),
        "run_log": provenance_view.report_document(result.report),
        "acceptance": result.acceptance,
    }


def show_split(result: SplitResult) -> None:
    """Print the moved tables, the verification of the run log, and what is left to do."""
    rows = [(table.table, f"{table.rows:,}", table.digest[:16]) for table in result.copied if table.rows]
    if rows:
        console.print(output.render_table(("table", "rows", "digest (identical on both sides)"), rows))
    output.print_line(f"Moved {', '.join(result.tenants)} from {result.source} to {result.target}.")
    provenance_view.show_report(result.report)
    if not result.report.is_intact:
        print_notice("The run log is identical on both sides, so the source has the same findings.", "yellow")
    output.print_line("Then, in a data folder of its own with a copy of `keys` but without provenance.* in it:")
    output.print_line(f'  stentor provenance accept --new-key --reason "{result.acceptance}"')
