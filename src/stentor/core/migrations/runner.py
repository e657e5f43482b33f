"""Runs the Alembic scripts over either database: all of them in one transaction, or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from stentor.core.db import locks
from stentor.core.db.driver import Driver
from stentor.core.errors import StartRefused
from stentor.core.migrations import pending_revisions, revisions, scripts_folder

LOCK_SECONDS = 60
"""How long a step waits for a table that others use, before it gives up and leaves everything as it was."""


def run(
    driver: Driver, current: str | None, copy: Path | None, say: Callable[[str], None], target: str = "head"
) -> list[str]:
    """Upgrade to `target`; answers the versions that were gone through. Raises StartRefused: then nothing changed."""
    applied: list[str] = []
    engine = _engine(driver)
    try:
        with engine.begin() as connection:
            if driver.name == "postgresql":
                _alone(connection, say)
            command.upgrade(_config(connection, applied), target)
    except StartRefused:
        raise
    except Exception as error:
        raise _failed(error, [current, *applied][-1], copy) from error
    finally:
        engine.dispose()
    return applied


def _config(connection: Connection, applied: list[str]) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["applied"] = lambda step, **_: applied.append(step.up_revision_id)
    return config


def _engine(driver: Driver) -> Engine:
    if driver.name == "sqlite":
        engine = create_engine("sqlite://", creator=lambda: _file(driver.path), poolclass=NullPool)  # type: ignore[attr-defined]
        # The library's own transactions end before a change of the schema, which would make a failure half a change.
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("begin immediate"))
        return engine
    return create_engine("postgresql+psycopg://", creator=lambda: _server(driver.url), poolclass=NullPool)  # type: ignore[attr-defined]


def _file(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=5)


def _server(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, connect_timeout=10)


def _alone(connection: Connection, say: Callable[[str], None]) -> None:
    """Whoever comes second waits here, and then finds nothing left to do."""
    key = {"key": locks.SCHEMA_LOCK_ID}
    connection.execute(text("set transaction isolation level read committed"))
    if not connection.execute(text("select pg_try_advisory_xact_lock(:key)"), key).scalar():
        say("Another process is upgrading the schema; this one waits for it.")
        connection.execute(text("select pg_advisory_xact_lock(:key)"), key)
    connection.execute(text(f"set local lock_timeout = '{LOCK_SECONDS}s'"))


def _failed(error: Exception, reached: str | None, copy: Path | None) -> StartRefused:
    before = "" if copy is None else f" The copy that was made before it lies in {copy}."
    return StartRefused(
        f"The upgrade of the schema failed{_where(reached)}: {_reason(error)}. Nothing was changed: the database is as "
        f"it was before.{before} Remove the cause and run `stentor db upgrade`, or go on with the version of Stentor "
        "that you had."
    )


def _where(reached: str | None) -> str:
    """At the version after the last one that went well."""
    left = pending_revisions(reached)
    return f" at version {left[0]} ({revisions()[left[0]]})" if left else " when it was written"


def _reason(error: Exception) -> str:
    """Of the database's own words the first line: the rest may repeat rows."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    first, *_ = str(origin).strip().splitlines() or [""]
    return f"{type(origin).__name__}: {first.rstrip('.')}" if first else type(origin).__name__
