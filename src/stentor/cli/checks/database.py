"""The database: schema version, integrity, and whether PostgreSQL answers. Read-only throughout."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from stentor import bootstrap
from stentor.cli.checks.finding import Finding, Situation
from stentor.cli.local import ReadOnly
from stentor.core import migrations
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.security.redaction import Redactor


def sqlite(situation: Situation) -> Iterator[Finding]:
    if situation.settings.database_url:
        return
    path = situation.settings.data_dir / "stentor.db"
    if not path.exists():
        yield Finding("ok", "database", "There is none yet; the first start makes it.")
        return
    try:
        damage = _damage(path)
    except sqlite3.Error as error:
        damage = str(error)
    if damage:
        yield Finding("problem", "database", f"{path} is damaged or unreadable ({damage}): restore a backup.")
        return
    yield Finding("ok", "database", f"{path} is sound.")
    driver = bootstrap.open_driver(situation.settings)
    yield _schema("database", migrations.current_version(ReadOnly(driver)))


def _damage(path: Path) -> str | None:
    """The first thing that is wrong; None when nothing is."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        (answer,) = connection.execute("pragma quick_check(1)").fetchone()
    finally:
        connection.close()
    return None if answer == "ok" else " ".join(str(answer).split())


def _schema(check: str, version: str | None) -> Finding:
    head = migrations.HEAD
    if version == head:
        return Finding("ok", check, f"Its schema is {head}, the newest.")
    if version is None:
        return Finding("warning", check, "It has no schema yet; the next start makes it.")
    try:
        migrations.require_supported(version)
    except StartRefused as error:
        return Finding("problem", check, error.message)
    return Finding(
        "warning", check, f"Its schema is {version}; the next start, or {migrations.UPGRADE_COMMAND}, makes it {head}."
    )


def postgresql(situation: Situation) -> Iterator[Finding]:
    url = situation.settings.database_url
    if not url:
        return
    redactor = Redactor()
    redactor.add_secret(url)
    try:
        version = migrations.current_version(ReadOnly(bootstrap.open_driver(situation.settings)))
    except (StoreUnavailable, StartRefused) as error:
        reason = redactor.redact(" ".join(error.message.split()))
        yield Finding("problem", "PostgreSQL", f"SERVICE_DATABASE_URL: {reason}")
        return
    yield Finding("ok", "PostgreSQL", "The server of SERVICE_DATABASE_URL answers.")
    yield _schema("PostgreSQL", version)
