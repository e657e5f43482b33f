"""Checks of what is stored: data folder, key files, receipt issuers, database and run log. They write nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from stentor.auth.api_keys import admin_key_file
from stentor.auth.authority.issuers import load_trusted_issuers
from stentor.bootstrap.storage import external_state, open_driver
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.cli.output import CommandFailed
from stentor.cli.provenance import run_log
from stentor.core import filesystem, migrations
from stentor.core.db.driver import ReadOnlyDriver
from stentor.core.errors import StartRefused, StentorError, StoreUnavailable
from stentor.core.security.redaction import Redactor

LOW_SPACE_BYTES, MIN_SPACE_BYTES = 1_000_000_000, 50_000_000
"""Free bytes below which a check reports a warning, and a problem."""
PUBLIC_KEY_SUFFIX = ".pub"
"""The public half of a key, which others may read."""


def check_data_folder(context: CheckContext) -> Iterator[CheckFinding]:
    folder = context.settings.storage.data_dir
    if not folder.exists():
        yield _missing(folder)
        return
    if not folder.is_dir():
        yield CheckFinding("problem", "data folder", f"{folder} is not a folder: set another one in SERVICE_DATA_DIR.")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        reason = (
            "is on a file system that is mounted read-only: mount it writable."
            if os.statvfs(folder).f_flag & os.ST_RDONLY
            else "is not writable by this user: change its owner or mode."
        )
        yield CheckFinding("problem", "data folder", f"{folder} {reason}")
        return
    for path, mode in filesystem.find_open_paths(folder):
        message = f"Other users have access to {path}: `chmod {mode:o} {path}`, or start the service, which does so."
        yield CheckFinding("warning", "data folder", message)
    yield _space(folder)


def _missing(folder: Path) -> CheckFinding:
    parent = next(p for p in folder.absolute().parents if p.exists())
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return CheckFinding("ok", "data folder", f"{folder} does not exist yet; it is created at the first start.")
    return CheckFinding("problem", "data folder", f"{folder} does not exist and cannot be created in {parent}.")


def _space(folder: Path) -> CheckFinding:
    free = shutil.disk_usage(folder).free
    status = f"{folder} is writable, {free / 1e9:.1f} GB free."
    if free < MIN_SPACE_BYTES:
        return CheckFinding("problem", "data folder", f"{status} Writes will soon fail: free some space.")
    if free < LOW_SPACE_BYTES:
        return CheckFinding("warning", "data folder", f"{status} Free some space.")
    return CheckFinding("ok", "data folder", status)


def check_key_files(context: CheckContext) -> Iterator[CheckFinding]:
    keys = admin_key_file(context.settings.storage.data_dir).parent
    files = sorted(p for p in keys.iterdir() if p.is_file() and p.suffix != PUBLIC_KEY_SUFFIX) if keys.is_dir() else []
    for path in files:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield CheckFinding(
                "problem", "key files", f"{path} has mode {mode:04o}, so other users can read it: `chmod 600 {path}`."
            )
        else:
            yield CheckFinding("ok", "key files", f"{path} is readable only by its owner.")
    if not files:
        yield CheckFinding("ok", "key files", "No key files yet.")


def check_receipt_issuers(context: CheckContext) -> Iterator[CheckFinding]:
    try:
        names = load_trusted_issuers(context.settings).names
    except StartRefused as error:
        yield CheckFinding("problem", "receipts", error.message)
        return
    if names:
        yield CheckFinding("ok", "receipts", f"Receipts from {', '.join(names)} are accepted.")
    else:
        yield CheckFinding("ok", "receipts", "None issued yet; the first one generates the service's own key.")


def check_sqlite_database(context: CheckContext) -> Iterator[CheckFinding]:
    if context.settings.storage.database_url:
        return
    path = context.settings.storage.data_dir / "stentor.db"
    if not path.exists():
        yield CheckFinding("ok", "database", "It does not exist yet; it is created at the first start.")
        return
    try:
        damage = _find_damage(path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            # For example on a full disk, where SQLite cannot create the second file that it needs for reading.
            message = f"{path} cannot be checked ({error}). See whether the disk is full and who owns the file."
            yield CheckFinding("problem", "database", message)
            return
        damage = str(error)
    if damage:
        yield CheckFinding("problem", "database", f"{path} is damaged ({damage}): restore a backup.")
        return
    yield CheckFinding("ok", "database", f"{path} passes the integrity check.")
    # Read-only, so that the check cannot create or upgrade anything.
    driver = open_driver(context.settings)
    yield _schema("database", migrations.current_version(ReadOnlyDriver(driver)))


def _find_damage(path: Path) -> str | None:
    """Return the first problem that the integrity check finds, or None."""
    # quick_check does not compare indexes with their tables, which would take much longer.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        (result,) = connection.execute("pragma quick_check(1)").fetchone()
    finally:
        connection.close()
    return None if result == "ok" else " ".join(str(result).split())


def _schema(check: str, version: str | None) -> CheckFinding:
    head = migrations.HEAD
    if version == head:
        return CheckFinding("ok", check, f"The schema is {head}, the latest.")
    if version is None:
        return CheckFinding("warning", check, "It has no schema yet; it is created at the next start.")
    try:
        migrations.require_supported(version)
    except StartRefused as error:
        return CheckFinding("problem", check, error.message)
    return CheckFinding(
        "warning",
        check,
        f"The schema is {version}; the next start, or {migrations.UPGRADE_COMMAND}, upgrades it to {head}.",
    )


def check_postgresql(context: CheckContext) -> Iterator[CheckFinding]:
    url = context.settings.storage.database_url
    if not url:
        return
    redactor = Redactor()
    redactor.add_secret(url)
    try:
        driver = ReadOnlyDriver(open_driver(context.settings))
        lacking = migrations.tables_without_rights(driver)
        version = migrations.current_version(driver)
    except (StoreUnavailable, StartRefused) as error:
        reason = redactor.redact(" ".join(str(error).split()))
        yield CheckFinding("problem", "PostgreSQL", reason)
        return
    yield CheckFinding("ok", "PostgreSQL", "Connected to the server in SERVICE_DATABASE_URL.")
    if lacking:
        text = f"The service's role has not all rights on {len(lacking)} tables: {', '.join(lacking[:5])}."
        yield CheckFinding("problem", "PostgreSQL", f"{text} It must own them, or be granted all on them.")
    yield _schema("PostgreSQL", version)


def check_run_log(context: CheckContext) -> Iterator[CheckFinding]:
    settings = context.settings
    try:
        objection, size, _ = run_log.find_objection(settings)
    except (CommandFailed, StoreUnavailable):
        return  # the checks of the database report this
    except StentorError as error:
        yield CheckFinding("problem", "run log", error.message)
        return
    if objection is None:
        yield CheckFinding("ok", "run log", f"Its {size} numbered events extend the last signed checkpoint.")
    elif external_state(settings).acceptance_path.exists():
        yield CheckFinding(
            "warning",
            "run log",
            "An acceptance is pending; the running service or the next start applies it.",
        )
    else:
        yield CheckFinding("problem", "run log", objection)
