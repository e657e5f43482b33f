"""The work and output of `stentor db`: upgrade, status, backup, and copy between SQLite and PostgreSQL.

Only the command line calls this. The migrations are in `core.migrations`, the copying in `core.db.transfer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from stentor.bootstrap.storage import open_driver
from stentor.cli import output
from stentor.cli.output import EXIT_REFUSED, EXIT_USAGE, CommandFailed, console, print_notice
from stentor.cli.progress import progress_bar, table_progress_bar
from stentor.cli.provenance import view as provenance_view
from stentor.cli.provenance.checkpoint_sources import load_verifiers
from stentor.cli.service.offline import load_offline_settings, require_database
from stentor.core import migrations
from stentor.core.clock import SystemClock, format_iso
from stentor.core.db import database_url
from stentor.core.db.database_url import DatabaseUrl, parse_database_url
from stentor.core.db.sqlite import backup as backups
from stentor.core.db.transfer import CopiedTable, DatabaseCopy, Side, open_side
from stentor.core.errors import StartRefused, StentorError
from stentor.core.filesystem import DataFolderLock
from stentor.core.jsontext import JsonObject
from stentor.core.migrations import UpgradeResult
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.signing.signed_note import NoteVerifier

SchemaState = Literal["current", "behind", "empty", "newer", "unfinished copy"]
INTERRUPTED_MESSAGE = (
    "The copy did not complete. No service starts on {} until it does: run the same command again to start over. "
    "{} is unchanged."
)


class SchemaStatus(msgspec.Struct, frozen=True):
    """The schema of a database. `place` is its file or URL without the password, `revision` None without a schema."""

    database: str
    place: str
    revision: str | None
    head: str
    pending: list[str]
    state: SchemaState
    explanation: str | None
    backups: list[str]


def database_file(chosen: Settings) -> Path:
    return chosen.storage.data_dir / "stentor.db"


def upgrade_schema(chosen: Settings, *, keep_copy: bool) -> UpgradeResult:
    """Upgrade the schema; on SQLite with the data folder lock held. Raises StartRefused and StoreUnavailable."""
    driver = open_driver(chosen)
    # PostgreSQL serializes upgrades itself; on SQLite the lock keeps a running service from using the old schema.
    if migrations.current_version(driver) == migrations.HEAD or chosen.storage.database_url:
        return migrations.upgrade(driver, notify=print_notice)
    try:
        chosen.storage.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DataFolderLock(chosen.storage.data_dir, format_iso(SystemClock().now()))
    except OSError as error:
        raise StartRefused(f"The data folder {chosen.storage.data_dir} cannot be used: {error.strerror}.") from None
    try:
        return migrations.upgrade(driver, make_backup=keep_copy, notify=print_notice)
    finally:
        lock.release()


def upgrade_document(result: UpgradeResult) -> JsonObject:
    """Return the result as plain values."""
    return {
        "before": result.previous,
        "revision": migrations.HEAD,
        "applied": result.applied,
        "backup": str(result.backup) if result.backup else None,
    }


def show_upgrade(result: UpgradeResult) -> None:
    """Print the applied revisions."""
    titles = migrations.revisions()
    for number in result.applied:
        output.print_line(f"  {number}  {titles[number]}")
    if result.applied:
        output.print_line(f"Upgraded the schema from {result.previous or 'none'} to {migrations.HEAD}.")
    else:
        output.print_line(f"The schema is already {migrations.HEAD}, the latest.")


def read_schema_status(chosen: Settings) -> SchemaStatus:
    """Read the state of the schema without changing it. Raises StoreUnavailable."""
    current = migrations.current_version(open_driver(chosen))
    explanation = None
    try:
        migrations.require_supported(current)
    except StartRefused as error:
        explanation = error.message
    on_server, file = bool(chosen.storage.database_url), database_file(chosen)
    return SchemaStatus(
        database="postgresql" if on_server else "sqlite",
        place=database_url.parse_postgres_url(chosen.storage.database_url).display if on_server else str(file),
        revision=current,
        head=migrations.HEAD,
        pending=[] if explanation else migrations.pending_revisions(current),
        state=_state(current, explanation),
        explanation=explanation,
        backups=[] if on_server else [str(path) for path in backups.list_upgrade_backups(file)],
    )


def _state(current: str | None, explanation: str | None) -> SchemaState:
    if explanation is not None:
        marks = migrations.COPYING_PREFIX, migrations.SPLITTING_PREFIX
        return "unfinished copy" if str(current).startswith(marks) else "newer"
    if current is None:
        return "empty"
    return "current" if current == migrations.HEAD else "behind"


def status_document(status: SchemaStatus) -> JsonObject:
    """Return the status as plain values."""
    titles = migrations.revisions()
    rows = [{"revision": number, "title": titles[number]} for number in status.pending]
    return {**msgspec.to_builtins(status), "pending": rows}


def show_status(status: SchemaStatus) -> None:
    """Print the status and, if needed, how to upgrade."""
    titles = migrations.revisions()
    pending = ", ".join(f"{number} ({titles[number]})" for number in status.pending)
    record = {
        "database": status.place,
        "schema": status.revision or "none",
        "latest": status.head,
        "state": status.state,
        "pending": pending or None,
        "backups": ", ".join(status.backups) or None,
    }
    console.print(output.render_record({name: value for name, value in record.items() if value is not None}))
    if status.explanation:
        print_notice(status.explanation, "red")
    elif status.state != "current":
        print_notice(f"Upgrade it with {migrations.UPGRADE_COMMAND}.", "yellow")


def backup_database(chosen: Settings, file: Path, progress: backups.Progress) -> int:
    """Copy a SQLite database into a new file; return its size in bytes. Raises CommandFailed and StartRefused."""
    if chosen.storage.database_url:
        raise CommandFailed(
            "The database is PostgreSQL. Use its own tool, which works while the service runs: "
            f'pg_dump --format=custom --file={file} "$SERVICE_DATABASE_URL"',
            EXIT_USAGE,
        )
    require_database(chosen)
    if file.exists() or file.is_symlink():
        raise CommandFailed(f"{file} already exists and is not overwritten: choose another file.", EXIT_USAGE)
    return backups.copy_database(database_file(chosen), file, progress)


@dataclass(frozen=True)
class CopyResult:
    """The result of a copy: `report` is about the run log in the target, `to_move` lists files outside the database."""

    source: str
    target: str
    copied: list[CopiedTable]
    left_out: tuple[str, ...]
    report: AuditReport
    to_move: list[tuple[str, str]]


def copy_database(source: str, target: str, verifiers: list[str], data_dir: Path | None) -> CopyResult:
    """Copy all rows into an empty database, compare both sides and verify the run log. Raises CommandFailed."""
    chosen = load_offline_settings(data_dir)
    ends = parse_url("SOURCE", source), parse_url("TARGET", target)
    if (ends[0].path is None) == (ends[1].path is None):
        raise CommandFailed(
            "SOURCE and TARGET are databases of the same kind. Copy SQLite with `stentor db backup`, PostgreSQL with "
            "pg_dump and pg_restore.",
            EXIT_USAGE,
        )
    # Errors of the drivers may repeat the URL with its password.
    redactor = Redactor()
    for secret in (secret for end in ends for secret in end.secrets):
        redactor.add_secret(secret)
    try:
        sides = open_side(ends[0], write=False), open_side(ends[1], write=True)
        # Without given keys, use the one next to the SQLite file, or else the one in the data folder.
        keys = load_verifiers(chosen, verifiers, ends[0].path or ends[1].path) or load_verifiers(chosen, [], None)
        return _copy_and_verify(chosen, ends, sides, keys)
    except StentorError as error:
        raise CommandFailed(redactor.redact(str(error)), EXIT_REFUSED) from None


def parse_url(name: str, text: str) -> DatabaseUrl:
    """Return the parsed URL; `name` says in messages where it is from. Raises CommandFailed."""
    try:
        return parse_database_url(text)
    except ValueError as error:
        raise CommandFailed(f"{name} {error}.", EXIT_USAGE) from None


def _copy_and_verify(
    chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl], sides: tuple[Side, Side], keys: list[NoteVerifier]
) -> CopyResult:
    source, target = sides
    copy = DatabaseCopy(source, target)
    with copy.open():
        copy.begin()
        try:
            with table_progress_bar("Copying") as progress:
                copied = copy.copy(progress)
            with table_progress_bar("Comparing") as progress:
                copy.verify(copied, progress)
            with progress_bar("Verifying the run log") as run_log_progress:
                report = verification.verify_run_log(target.driver, keys, [], run_log_progress)
            copy.finish()
        except BaseException:  # Ctrl-C too: the target stays marked as unfinished
            print_notice(INTERRUPTED_MESSAGE.format(target.display, source.display), "yellow")
            raise
    return CopyResult(
        source.display, target.display, copied, copy.plan.skipped_tables, report, _list_files_to_move(chosen, ends)
    )


def _list_files_to_move(chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl]) -> list[tuple[str, str]]:
    """Return path and description of what a service needs besides its database."""
    folder = ends[0].path.parent if ends[0].path is not None else chosen.storage.data_dir
    vault = chosen.memory.vault_dir or folder / "vault"
    candidates = [
        (folder / "keys", "keys for signatures and sealed secrets; copy to the data folder of every instance"),
        (vault, "the notes; move to where every instance can access them (SERVICE_VAULT_DIR)"),
        (
            chosen.storage.archive or folder / "archive",
            "the archived tasks; move to where every instance can access them (SERVICE_ARCHIVE_DIR)",
        ),
    ]
    return [(str(path), description) for path, description in candidates if path.exists()]


def copy_document(result: CopyResult) -> JsonObject:
    """Return the result as plain values."""
    return {
        "source": result.source,
        "target": result.target,
        "rows": sum(table.rows for table in result.copied),
        "tables": msgspec.to_builtins(result.copied),
        "left_out": list(result.left_out),
        "run_log": provenance_view.report_document(result.report),
        "to_move": [{"path": path, "what": description} for path, description in result.to_move],
    }


def show_copy(result: CopyResult) -> None:
    """Print the copied tables, the verification of the run log and the remaining steps."""
    rows = [(table.table, f"{table.rows:,}", table.digest[:16]) for table in result.copied if table.rows]
    console.print(output.render_table(("table", "rows", "digest (identical on both sides)"), rows))
    total = sum(table.rows for table in result.copied)
    output.print_line(f"Copied {total:,} rows in {len(result.copied)} tables to {result.target}.")
    if result.left_out:
        output.print_line(f"Skipped, because only one of the databases has them: {', '.join(result.left_out)}.")
    provenance_view.show_report(result.report)
    if not result.report.is_intact:
        print_notice("The rows are identical on both sides, so SOURCE has the same findings.", "yellow")
    if result.to_move:
        output.print_line("Not in the database; move these yourself:")
    for path, description in result.to_move:
        output.print_line(f"  {path}: {description}")
    if result.source.startswith("postgresql"):
        output.print_line("Then start the service without SERVICE_DATABASE_URL, in the folder of the new file.")
    else:
        output.print_line("Then start the service with SERVICE_DATABASE_URL set to the new URL.")
