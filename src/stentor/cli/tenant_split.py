"""The work and output of `stentor db split`; the steps of the move are in `core.db.transfer.tenant_split`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stentor.cli import db_operations, output
from stentor.cli.offline import load_offline_settings
from stentor.cli.output import EXIT_REFUSED, EXIT_USAGE, CommandFailed, console, print_notice
from stentor.cli.provenance import view as provenance_view
from stentor.cli.provenance.checkpoint_sources import load_verifiers
from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.transfer import CopiedTable
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import install_command
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.signed_note import NoteVerifier

INTERRUPTED_MESSAGE = (
    "The split did not complete. Run the same command again before a service starts on {}; until the tenants are "
    "deleted in {}, a service may start there."
)
ONLY_POSTGRESQL = (
    "A split is from one PostgreSQL database to another one. `stentor db copy` copies a SQLite database to PostgreSQL."
)


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
        """The reason with which the target's log continues under a key of its own."""
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
                with db_operations.table_progress_bar("Copying") as progress:
                    copied = split.copy(progress)
            with provenance_view.progress_bar("Verifying the run log") as run_log_progress:
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
