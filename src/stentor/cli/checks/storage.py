"""The data folder and the key files in it.

Whose receipts the service would take.

The database: schema version, integrity, and whether PostgreSQL answers. Read-only throughout.

Whether the run log is what was signed before, so that it may be signed further.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from stentor import bootstrap
from stentor.auth.api_keys import admin_key_file
from stentor.auth.authority.issuers import load_trusted_issuers
from stentor.bootstrap.parts.provenance import external_state
from stentor.cli import run_log
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.cli.local_service import ReaderOnlyDriver
from stentor.cli.output import CommandFailed
from stentor.core import filesystem, migrations
from stentor.core.errors import StartRefused, StentorError, StoreUnavailable
from stentor.core.security.redaction import Redactor

LOW_SPACE_BYTES, MIN_SPACE_BYTES = 1_000_000_000, 50_000_000
"""Bytes free below which there is a warning, and a problem."""


def check_data_folder(situation: CheckContext) -> Iterator[CheckFinding]:
    folder = situation.settings.storage.data_dir
    if not folder.exists():
        yield _missing(folder)
        return
    if not folder.is_dir():
        yield CheckFinding("problem", "data folder", f"{folder} is no folder: choose another with SERVICE_DATA_DIR.")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield CheckFinding(
            "problem", "data folder", f"{folder} is not writable for this user: change its owner or mode."
        )
        return
    for path, mode in filesystem.find_open_paths(folder):
        message = f"Other users may look into {path}: `chmod {mode:o} {path}`, or start the service, which does it."
        yield CheckFinding("warning", "data folder", message)
    yield _space(folder)


def _missing(folder: Path) -> CheckFinding:
    parent = next(p for p in folder.absolute().parents if p.exists())
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return CheckFinding("ok", "data folder", f"{folder} does not exist yet; the first start makes it.")
    return CheckFinding("problem", "data folder", f"{folder} does not exist and cannot be made in {parent}.")


def _space(folder: Path) -> CheckFinding:
    free = shutil.disk_usage(folder).free
    said = f"{folder} is writable, {free / 1e9:.1f} GB are free."
    if free < MIN_SPACE_BYTES:
        return CheckFinding("problem", "data folder", f"{said} The store will soon refuse writes: make room.")
    if free < LOW_SPACE_BYTES:
        return CheckFinding("warning", "data folder", f"{said} Make room.")
    return CheckFinding("ok", "data folder", said)


PUBLIC_KEY_SUFFIX = ".pub"
"""The half of a key that is for others to read."""


def check_key_files(situation: CheckContext) -> Iterator[CheckFinding]:
    keys = admin_key_file(situation.settings.storage.data_dir).parent
    files = sorted(p for p in keys.iterdir() if p.is_file() and p.suffix != PUBLIC_KEY_SUFFIX) if keys.is_dir() else []
    for path in files:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield CheckFinding(
                "problem", "key files", f"{path} has mode {mode:04o}, others may read it: `chmod 600 {path}`."
            )
        else:
            yield CheckFinding("ok", "key files", f"{path} is readable for its owner alone.")
    if not files:
        yield CheckFinding("ok", "key files", "There are none.")


def check_receipt_issuers(situation: CheckContext) -> Iterator[CheckFinding]:
    try:
        names = load_trusted_issuers(situation.settings).names
    except StartRefused as error:
        yield CheckFinding("problem", "receipts", error.message)
        return
    if names:
        yield CheckFinding("ok", "receipts", f"Receipts of {', '.join(names)} are taken.")
    else:
        yield CheckFinding("ok", "receipts", "None was issued yet; the first one makes the service's own key.")


def check_sqlite_database(situation: CheckContext) -> Iterator[CheckFinding]:
    if situation.settings.storage.database_url:
        return
    path = situation.settings.storage.data_dir / "stentor.db"
    if not path.exists():
        yield CheckFinding("ok", "database", "There is none yet; the first start makes it.")
        return
    try:
        damage = _damage(path)
    except sqlite3.Error as error:
        damage = str(error)
    if damage:
        yield CheckFinding("problem", "database", f"{path} is damaged or unreadable ({damage}): restore a backup.")
        return
    yield CheckFinding("ok", "database", f"{path} is sound.")
    driver = bootstrap.open_driver(situation.settings)
    yield _schema("database", migrations.current_version(ReaderOnlyDriver(driver)))


def _damage(path: Path) -> str | None:
    """The first thing that is wrong; None when nothing is."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        (answer,) = connection.execute("pragma quick_check(1)").fetchone()
    finally:
        connection.close()
    return None if answer == "ok" else " ".join(str(answer).split())


def _schema(check: str, version: str | None) -> CheckFinding:
    head = migrations.HEAD
    if version == head:
        return CheckFinding("ok", check, f"Its schema is {head}, the newest.")
    if version is None:
        return CheckFinding("warning", check, "It has no schema yet; the next start makes it.")
    try:
        migrations.require_supported(version)
    except StartRefused as error:
        return CheckFinding("problem", check, error.message)
    return CheckFinding(
        "warning", check, f"Its schema is {version}; the next start, or {migrations.UPGRADE_COMMAND}, makes it {head}."
    )


def check_postgresql(situation: CheckContext) -> Iterator[CheckFinding]:
    url = situation.settings.storage.database_url
    if not url:
        return
    redactor = Redactor()
    redactor.add_secret(url)
    try:
        version = migrations.current_version(ReaderOnlyDriver(bootstrap.open_driver(situation.settings)))
    except (StoreUnavailable, StartRefused) as error:
        reason = redactor.redact(" ".join(error.message.split()))
        yield CheckFinding("problem", "PostgreSQL", f"SERVICE_DATABASE_URL: {reason}")
        return
    yield CheckFinding("ok", "PostgreSQL", "The server of SERVICE_DATABASE_URL answers.")
    yield _schema("PostgreSQL", version)


def check_run_log(situation: CheckContext) -> Iterator[CheckFinding]:
    settings = situation.settings
    try:
        found, size, _ = run_log.find_objection(settings)
    except (CommandFailed, StoreUnavailable):
        return  # the checks of the database say that there is none, or what is wrong with it
    except StentorError as error:
        yield CheckFinding("problem", "run log", error.message)
        return
    if found is None:
        yield CheckFinding("ok", "run log", f"Its {size} numbered events extend what was signed before.")
    elif external_state(settings).acceptance_path.exists():
        yield CheckFinding("warning", "run log", "An acceptance of its history waits for the service to carry it out.")
    else:
        yield CheckFinding("problem", "run log", found)
