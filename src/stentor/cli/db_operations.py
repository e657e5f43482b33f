"""What `stentor db upgrade`, `status` and `backup` do.

What `stentor db copy` does: it copies, compares, and verifies the run log where it arrived.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stentor import bootstrap
from stentor.cli import output, provenance_view
from stentor.cli import run_log as files
from stentor.cli.local_service import require_database
from stentor.cli.output import EXIT_REFUSED, EXIT_USAGE, CommandFailed, console, error_console, print_notice
from stentor.core import migrations, settings
from stentor.core.clock import SystemClock, format_iso
from stentor.core.db import backup as backups
from stentor.core.db import database_url
from stentor.core.db.database_url import DatabaseUrl, parse_database_url
from stentor.core.db.transfer import CopiedTable, DatabaseCopy, Side, open_side
from stentor.core.db.transfer.database_copy import Progress as Told
from stentor.core.errors import StartRefused, StentorError
from stentor.core.filesystem import DataFolderLock
from stentor.core.migrations import UpgradeResult
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.signed_note import NoteVerifier

SchemaState = Literal["current", "behind", "empty", "newer", "unfinished copy"]


class SchemaStatus(msgspec.Struct, frozen=True):
    """`place` is the file or the address without a password; `revision` None when there is no schema."""

    database: str
    place: str
    revision: str | None
    head: str
    pending: list[str]
    state: SchemaState
    explanation: str | None
    backups: list[str]


def load_db_settings(data_dir: Path | None) -> Settings:
    chosen = settings.load(os.environ, {"SERVICE_DATA_DIR": data_dir})
    redactor = Redactor()
    for secret in (chosen.storage.database_url, *database_url.url_secrets(chosen.storage.database_url)):
        redactor.add_secret(secret)
    redaction.configure_logging("warning", redactor)
    return chosen


def database_file(chosen: Settings) -> Path:
    return chosen.storage.data_dir / "stentor.db"


def upgrade_schema(chosen: Settings, *, keep_copy: bool) -> UpgradeResult:
    """On SQLite as the folder's owner. Raises StartRefused and StoreUnavailable."""
    driver = bootstrap.open_driver(chosen)
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


def upgrade_document(done: UpgradeResult) -> dict[str, Any]:
    return {
        "before": done.previous,
        "revision": migrations.HEAD,
        "applied": done.applied,
        "backup": str(done.backup) if done.backup else None,
    }


def show_upgrade(done: UpgradeResult) -> None:
    titles = migrations.revisions()
    for number in done.applied:
        output.print_line(f"  {number}  {titles[number]}")
    if done.applied:
        output.print_line(f"The schema is {migrations.HEAD} now; it was {done.previous or 'none'}.")
    else:
        output.print_line(f"The schema is {migrations.HEAD}, the newest: there was nothing to do.")


def read_schema_status(chosen: Settings) -> SchemaStatus:
    """Reads alone. Raises StoreUnavailable."""
    current = migrations.current_version(bootstrap.open_driver(chosen))
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
        return "unfinished copy" if str(current).startswith(migrations.COPYING_PREFIX) else "newer"
    if current is None:
        return "empty"
    return "current" if current == migrations.HEAD else "behind"


def status_document(found: SchemaStatus) -> dict[str, Any]:
    titles = migrations.revisions()
    rows = [{"revision": number, "title": titles[number]} for number in found.pending]
    return {**msgspec.to_builtins(found), "pending": rows}


def show_status(found: SchemaStatus) -> None:
    titles = migrations.revisions()
    pending = ", ".join(f"{number} ({titles[number]})" for number in found.pending)
    record = {
        "database": found.place,
        "schema": found.revision or "none",
        "newest": found.head,
        "state": found.state,
        "pending": pending or None,
        "backups": ", ".join(found.backups) or None,
    }
    console.print(output.render_record({name: value for name, value in record.items() if value is not None}))
    if found.explanation:
        print_notice(found.explanation, "red")
    elif found.state != "current":
        print_notice(f"{migrations.UPGRADE_COMMAND} brings it up to date.", "yellow")


def backup_database(chosen: Settings, file: Path, progress: backups.Progress) -> int:
    """Answers the size in bytes. Raises CommandFailed and StartRefused."""
    if chosen.storage.database_url:
        raise CommandFailed(
            "The state is in PostgreSQL, whose own tool copies it while it is served: "
            f'pg_dump --format=custom --file={file} "$SERVICE_DATABASE_URL"',
            EXIT_USAGE,
        )
    require_database(chosen)
    if file.exists() or file.is_symlink():
        raise CommandFailed(f"{file} is there already, and nothing is overwritten: name another file.", EXIT_USAGE)
    return backups.copy_database(database_file(chosen), file, progress)


INTERRUPTED_MESSAGE = (
    "The copy did not end. {} refuses to start until it does: run the same command again, which begins anew. "
    "Nothing in {} was changed."
)


@dataclass(frozen=True)
class CopyResult:
    """`report` is of the run log in the target, `to_move` what does not lie in a database."""

    source: str
    target: str
    copied: list[CopiedTable]
    left_out: tuple[str, ...]
    report: AuditReport
    to_move: list[tuple[str, str]]


def copy_database(source: str, target: str, verifiers: list[str], data_dir: Path | None) -> CopyResult:
    """Raises CommandFailed."""
    chosen = load_db_settings(data_dir)
    ends = _address("SOURCE", source), _address("TARGET", target)
    if (ends[0].path is None) == (ends[1].path is None):
        raise CommandFailed(
            "SOURCE and TARGET are databases of the same kind. Copy SQLite with `stentor db backup`, and PostgreSQL "
            "with pg_dump and pg_restore.",
            EXIT_USAGE,
        )
    redactor = Redactor()
    for secret in (secret for end in ends for secret in end.secrets):
        redactor.add_secret(secret)
    try:
        sides = open_side(ends[0], write=False), open_side(ends[1], write=True)
        return _copy_and_verify(chosen, ends, sides, _keys(chosen, ends, verifiers))
    except StentorError as error:
        raise CommandFailed(redactor.redact(error.message), EXIT_REFUSED) from None


def _address(name: str, text: str) -> DatabaseUrl:
    try:
        return parse_database_url(text)
    except ValueError as error:
        raise CommandFailed(f"{name} {error}.", EXIT_USAGE) from None


def _keys(chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl], given: list[str]) -> list[NoteVerifier]:
    """Those that were given; else the one beside the SQLite file, or in the data folder."""
    paths = [end.path for end in ends if end.path is not None]
    return files.load_verifiers(chosen, given, paths[0]) or files.load_verifiers(chosen, [], None)


def _copy_and_verify(
    chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl], sides: tuple[Side, Side], keys: list[NoteVerifier]
) -> CopyResult:
    source, target = sides
    move = DatabaseCopy(source, target)
    with move.open():
        move.begin()
        try:
            with _table_progress_bar("Copying") as tell:
                copied = move.copy(tell)
            with _table_progress_bar("Comparing") as tell:
                move.verify(copied, tell)
            with provenance_view.progress_bar("Verifying the run log") as told:
                report = verification.verify_run_log(target.driver, keys, [], told)
            move.finish()
        except BaseException:
            print_notice(INTERRUPTED_MESSAGE.format(target.display, source.display), "yellow")
            raise
    return CopyResult(source.display, target.display, copied, move.plan.skipped_tables, report, _to_move(chosen, ends))


@contextmanager
def _table_progress_bar(word: str) -> Iterator[Told]:
    columns = TextColumn(word), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=error_console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda table, done, total: progress.update(task, description=table, completed=done, total=total)


def _to_move(chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl]) -> list[tuple[str, str]]:
    """Path and what it is, for what a service needs besides its database."""
    folder = ends[0].path.parent if ends[0].path is not None else chosen.storage.data_dir
    vault = chosen.memory.vault_dir or folder / "vault"
    found = [
        (folder / "keys", "signs checkpoints and receipts, opens sealed secrets: in the data folder of every instance"),
        (vault, "the notes: where every instance reaches them (SERVICE_VAULT_DIR)"),
    ]
    return [(str(path), words) for path, words in found if path.exists()]


def copy_document(moved: CopyResult) -> dict[str, Any]:
    return {
        "source": moved.source,
        "target": moved.target,
        "rows": sum(one.rows for one in moved.copied),
        "tables": msgspec.to_builtins(moved.copied),
        "left_out": list(moved.left_out),
        "run_log": provenance_view.report_document(moved.report),
        "to_move": [{"path": path, "what": words} for path, words in moved.to_move],
    }


def show_copy(moved: CopyResult) -> None:
    rows = [(one.table, f"{one.rows:,}", one.digest[:16]) for one in moved.copied if one.rows]
    console.print(output.render_table(("table", "rows", "digest, the same on both sides"), rows))
    output.print_line(
        f"{sum(one.rows for one in moved.copied):,} rows of {len(moved.copied)} tables are in {moved.target}."
    )
    if moved.left_out:
        output.print_line(f"Left out, because only one of the databases has them: {', '.join(moved.left_out)}.")
    provenance_view.show_report(moved.report)
    if not moved.report.is_intact:
        print_notice("The rows are the same on both sides, so this was so in SOURCE already.", "yellow")
    if moved.to_move:
        output.print_line("Not in the database, and still to be moved:")
    for path, words in moved.to_move:
        output.print_line(f"  {path}: {words}")
    if moved.source.startswith("postgresql"):
        output.print_line("Start the service without SERVICE_DATABASE_URL on the folder of the new file.")
    else:
        output.print_line("Start the service with SERVICE_DATABASE_URL set to the new address.")
