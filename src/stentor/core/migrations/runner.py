"""Run the Alembic scripts on SQLite or PostgreSQL, all in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from stentor.core.db.driver import Driver
from stentor.core.db.locks import locks
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused
from stentor.core.migrations import pending_revisions, revisions, scripts_folder

LOCK_SECONDS = 60
"""How long a script waits for a table lock before the upgrade fails and is rolled back."""
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
# PostgreSQL before 17 has no `transaction_timeout`.
_WITHOUT_TIMEOUTS = text("select set_config(name, '0', true) from pg_settings where name = any(:names)").bindparams(
    names=list(_TIMEOUTS)
)


def run(
    driver: Driver, current: str | None, copy: Path | None, notify: Callable[[str], None], target: str = "head"
) -> list[str]:
    """Upgrade to `target` and return the applied versions. Raises StartRefused if it fails; then nothing changed.

    `copy` is the backup that the error names, `notify` gets messages for the operator.
    """
    applied: list[str] = []
    engine = _engine(driver)
    try:
        with engine.begin() as connection:
            if driver.name == "postgresql":
                _lock_schema(connection, notify)
            command.upgrade(_config(connection, applied), target)
    except StartRefused:
        raise
    except Exception as error:
        raise _upgrade_error(error, [current, *applied][-1], copy) from error
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
    if isinstance(driver, SqliteDriver):
        engine = create_engine("sqlite://", creator=lambda: _connect_sqlite(driver.path), poolclass=NullPool)
        # The driver's implicit transactions commit before a schema change, so a failure would leave half an upgrade.
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("begin immediate"))
        return engine
    # Only PostgresDriver is left, whose module needs an extra.
    connect = driver.connect  # pyrefly: ignore[missing-attribute]
    return create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)


def _connect_sqlite(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=5)


def _lock_schema(connection: Connection, notify: Callable[[str], None]) -> None:
    """Hold the schema lock until the end of the transaction; a second process waits, then has nothing left to do."""
    key = {"key": locks.SCHEMA_LOCK_ID}
    # A snapshot from before the wait would not show the upgrade of the other process.
    connection.execute(text("set transaction isolation level read committed"))
    # Timeouts set for the role or the database are meant for short transactions.
    connection.execute(_WITHOUT_TIMEOUTS)
    if not connection.execute(text("select pg_try_advisory_xact_lock(:key)"), key).scalar():
        notify("Another process is upgrading the schema; waiting for it.")
        connection.execute(text("select pg_advisory_xact_lock(:key)"), key)
    connection.execute(text(f"set local lock_timeout = '{LOCK_SECONDS}s'"))


def _upgrade_error(error: Exception, reached: str | None, copy: Path | None) -> StartRefused:
    backup = "" if copy is None else f" A backup from before the upgrade is in {copy}."
    advice = (
        "Remove the cause and run `stentor db upgrade`, or continue with the previous version of Stentor."
        if reached
        else "A new installation needs an empty database that belongs to the role of the service."
    )
    return StartRefused(
        f"The upgrade of the schema failed{_where(reached)}: {_reason(error)}. Nothing was changed.{backup} {advice}"
    )


def _where(reached: str | None) -> str:
    # The version that failed is the first one after the last applied one.
    pending = pending_revisions(reached)
    return f" at version {pending[0]} ({revisions()[pending[0]]})" if pending else " at the commit"


def _reason(error: Exception) -> str:
    # Only the first line of the database's message: the others may contain row data.
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    first, *_ = str(origin).strip().splitlines() or [""]
    return f"{type(origin).__name__}: {first.rstrip('.')}" if first else type(origin).__name__
