"""What `stentor db copy` does: it copies, compares, and verifies the run log where it arrived."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stentor.cli import db_schema, display, provenance_view
from stentor.cli import provenance_files as files
from stentor.cli.output import REFUSED, USAGE, CommandFailed, err, notice, out
from stentor.core.db.database_url import DatabaseUrl, parse_database_url
from stentor.core.db.transfer import CopiedTable, DatabaseCopy, Side, open_side
from stentor.core.db.transfer.database_copy import Progress as Told
from stentor.core.errors import StentorError
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.signed_note import NoteVerifier

AGAIN = (
    "The copy did not end. {} refuses to start until it does: run the same command again, which begins anew. "
    "Nothing in {} was changed."
)


@dataclass(frozen=True)
class Moved:
    """`report` is of the run log in the target, `to_move` what does not lie in a database."""

    source: str
    target: str
    copied: list[CopiedTable]
    left_out: tuple[str, ...]
    report: AuditReport
    to_move: list[tuple[str, str]]


def run(source: str, target: str, verifiers: list[str], data_dir: Path | None) -> Moved:
    """Raises CommandFailed."""
    chosen = db_schema.settings_of(data_dir)
    ends = _address("SOURCE", source), _address("TARGET", target)
    if (ends[0].path is None) == (ends[1].path is None):
        raise CommandFailed(
            "SOURCE and TARGET are databases of the same kind. Copy SQLite with `stentor db backup`, and PostgreSQL "
            "with pg_dump and pg_restore.",
            USAGE,
        )
    redactor = Redactor()
    for secret in (secret for end in ends for secret in end.secrets):
        redactor.add_secret(secret)
    try:
        sides = open_side(ends[0], write=False), open_side(ends[1], write=True)
        return _moved(chosen, ends, sides, _keys(chosen, ends, verifiers))
    except StentorError as error:
        raise CommandFailed(redactor.redact(error.message), REFUSED) from None


def _address(name: str, text: str) -> DatabaseUrl:
    try:
        return parse_database_url(text)
    except ValueError as error:
        raise CommandFailed(f"{name} {error}.", USAGE) from None


def _keys(chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl], given: list[str]) -> list[NoteVerifier]:
    """Those that were given; else the one beside the SQLite file, or in the data folder."""
    paths = [end.path for end in ends if end.path is not None]
    return files.verifiers(chosen, given, paths[0]) or files.verifiers(chosen, [], None)


def _moved(
    chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl], sides: tuple[Side, Side], keys: list[NoteVerifier]
) -> Moved:
    source, target = sides
    move = DatabaseCopy(source, target)
    with move.open():
        move.begin()
        try:
            with _bar("Copying") as tell:
                copied = move.copy(tell)
            with _bar("Comparing") as tell:
                move.verify(copied, tell)
            with provenance_view.bar("Verifying the run log") as told:
                report = verification.verify_run_log(target.driver, keys, [], told)
            move.finish()
        except BaseException:
            notice(AGAIN.format(target.display, source.display), "yellow")
            raise
    return Moved(source.display, target.display, copied, move.plan.skipped_tables, report, _to_move(chosen, ends))


@contextmanager
def _bar(word: str) -> Iterator[Told]:
    columns = TextColumn(word), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda table, done, total: progress.update(task, description=table, completed=done, total=total)


def _to_move(chosen: Settings, ends: tuple[DatabaseUrl, DatabaseUrl]) -> list[tuple[str, str]]:
    """Path and what it is, for what a service needs besides its database."""
    folder = ends[0].path.parent if ends[0].path is not None else chosen.data_dir
    vault = chosen.vault_dir or folder / "vault"
    found = [
        (folder / "keys", "signs checkpoints and receipts, opens sealed secrets: in the data folder of every instance"),
        (vault, "the notes: where every instance reaches them (SERVICE_VAULT_DIR)"),
    ]
    return [(str(path), words) for path, words in found if path.exists()]


def document(moved: Moved) -> dict[str, Any]:
    return {
        "source": moved.source,
        "target": moved.target,
        "rows": sum(one.rows for one in moved.copied),
        "tables": msgspec.to_builtins(moved.copied),
        "left_out": list(moved.left_out),
        "run_log": provenance_view.document(moved.report),
        "to_move": [{"path": path, "what": words} for path, words in moved.to_move],
    }


def show(moved: Moved) -> None:
    rows = [(one.table, f"{one.rows:,}", one.digest[:16]) for one in moved.copied if one.rows]
    out.print(display.table(("table", "rows", "digest, the same on both sides"), rows))
    display.say(f"{sum(one.rows for one in moved.copied):,} rows of {len(moved.copied)} tables are in {moved.target}.")
    if moved.left_out:
        display.say(f"Left out, because only one of the databases has them: {', '.join(moved.left_out)}.")
    provenance_view.show(moved.report)
    if not moved.report.is_intact:
        notice("The rows are the same on both sides, so this was so in SOURCE already.", "yellow")
    if moved.to_move:
        display.say("Not in the database, and still to be moved:")
    for path, words in moved.to_move:
        display.say(f"  {path}: {words}")
    if moved.source.startswith("postgresql"):
        display.say("Start the service without SERVICE_DATABASE_URL on the folder of the new file.")
    else:
        display.say("Start the service with SERVICE_DATABASE_URL set to the new address.")
