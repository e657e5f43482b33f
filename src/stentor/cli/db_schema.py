"""What `stentor db upgrade`, `status` and `backup` do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from stentor import bootstrap
from stentor.cli import display
from stentor.cli.local import require_database
from stentor.cli.output import USAGE, CommandFailed, notice, out
from stentor.core import migrations, settings
from stentor.core.clock import SystemClock, format_iso
from stentor.core.db import backup as backups
from stentor.core.db import database_url
from stentor.core.errors import StartRefused
from stentor.core.filesystem import DataFolderLock
from stentor.core.migrations import UpgradeResult
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings

State = Literal["current", "behind", "empty", "newer", "unfinished copy"]


class Status(msgspec.Struct, frozen=True):
    """`place` is the file or the address without a password; `revision` None when there is no schema."""

    database: str
    place: str
    revision: str | None
    head: str
    pending: list[str]
    state: State
    explanation: str | None
    backups: list[str]


def settings_of(data_dir: Path | None) -> Settings:
    chosen = settings.load(os.environ, {"data_dir": data_dir})
    redactor = Redactor()
    for secret in (chosen.database_url, *database_url.url_secrets(chosen.database_url)):
        redactor.add_secret(secret)
    redaction.configure_logging("warning", redactor)
    return chosen


def file_of(chosen: Settings) -> Path:
    return chosen.data_dir / "stentor.db"


def upgrade(chosen: Settings, *, keep_copy: bool) -> UpgradeResult:
    """On SQLite as the folder's owner. Raises StartRefused and StoreUnavailable."""
    driver = bootstrap.open_driver(chosen)
    if migrations.current_version(driver) == migrations.HEAD or chosen.database_url:
        return migrations.upgrade(driver, notify=notice)
    try:
        chosen.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DataFolderLock(chosen.data_dir, format_iso(SystemClock().now()))
    except OSError as error:
        raise StartRefused(f"The data folder {chosen.data_dir} cannot be used: {error.strerror}.") from None
    try:
        return migrations.upgrade(driver, make_backup=keep_copy, notify=notice)
    finally:
        lock.release()


def document(done: UpgradeResult) -> dict[str, Any]:
    return {
        "before": done.previous,
        "revision": migrations.HEAD,
        "applied": done.applied,
        "backup": str(done.backup) if done.backup else None,
    }


def show(done: UpgradeResult) -> None:
    titles = migrations.revisions()
    for number in done.applied:
        display.say(f"  {number}  {titles[number]}")
    if done.applied:
        display.say(f"The schema is {migrations.HEAD} now; it was {done.previous or 'none'}.")
    else:
        display.say(f"The schema is {migrations.HEAD}, the newest: there was nothing to do.")


def status(chosen: Settings) -> Status:
    """Reads alone. Raises StoreUnavailable."""
    current = migrations.current_version(bootstrap.open_driver(chosen))
    explanation = None
    try:
        migrations.require_supported(current)
    except StartRefused as error:
        explanation = error.message
    on_server, file = bool(chosen.database_url), file_of(chosen)
    return Status(
        database="postgresql" if on_server else "sqlite",
        place=database_url.parse_postgres_url(chosen.database_url).display if on_server else str(file),
        revision=current,
        head=migrations.HEAD,
        pending=[] if explanation else migrations.pending_revisions(current),
        state=_state(current, explanation),
        explanation=explanation,
        backups=[] if on_server else [str(path) for path in backups.list_upgrade_backups(file)],
    )


def _state(current: str | None, explanation: str | None) -> State:
    if explanation is not None:
        return "unfinished copy" if str(current).startswith(migrations.COPYING_PREFIX) else "newer"
    if current is None:
        return "empty"
    return "current" if current == migrations.HEAD else "behind"


def status_document(found: Status) -> dict[str, Any]:
    titles = migrations.revisions()
    rows = [{"revision": number, "title": titles[number]} for number in found.pending]
    return {**msgspec.to_builtins(found), "pending": rows}


def show_status(found: Status) -> None:
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
    out.print(display.fields({name: value for name, value in record.items() if value is not None}))
    if found.explanation:
        notice(found.explanation, "red")
    elif found.state != "current":
        notice(f"{migrations.UPGRADE_COMMAND} brings it up to date.", "yellow")


def backup(chosen: Settings, file: Path, progress: backups.Progress) -> int:
    """Answers the size in bytes. Raises CommandFailed and StartRefused."""
    if chosen.database_url:
        raise CommandFailed(
            "The state is in PostgreSQL, whose own tool copies it while it is served: "
            f'pg_dump --format=custom --file={file} "$SERVICE_DATABASE_URL"',
            USAGE,
        )
    require_database(chosen)
    if file.exists() or file.is_symlink():
        raise CommandFailed(f"{file} is there already, and nothing is overwritten: name another file.", USAGE)
    return backups.copy_database(file_of(chosen), file, progress)
