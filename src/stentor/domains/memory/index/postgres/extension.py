"""Whether the database has pgvector, and what to do when it has not."""

from __future__ import annotations

import msgspec
import psycopg

from stentor.core.db import Sql
from stentor.core.db.leader import INDEX_LOCK_ID
from stentor.core.db.postgres import PostgresConnection, PostgresDriver

OLDEST = (0, 8)
"""The first version whose index scans go on until enough rows pass the filters."""
_FIND = Sql(
    """select e.extversion, n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector'"""
)
_MAKE = Sql("create extension if not exists vector schema public")


class Extension(msgspec.Struct, frozen=True):
    """`schema` is where its types are; `problem` says why it is not used and how it could be."""

    schema: str = "public"
    problem: str | None = None

    @property
    def usable(self) -> bool:
        return self.problem is None


def find(driver: PostgresDriver) -> Extension:
    """Looks for it, and makes it where that is allowed. Raises StoreUnavailable."""
    connection = driver.writer()
    try:
        known = connection.rows(_FIND, {})
        if not known:
            _try_to_make(connection)
            known = connection.rows(_FIND, {})
    except psycopg.Error as error:
        reason = str(error).strip().partition("\n")[0]
        return Extension(problem=f"pgvector cannot be made ({reason}); a superuser can: CREATE EXTENSION vector")
    finally:
        connection.close()
    ((version, schema),) = known
    if _numbers(version) < OLDEST:
        old = f"pgvector is {version}, and 0.8 is the first that serves; a superuser can: ALTER EXTENSION vector UPDATE"
        return Extension(schema, old)
    return Extension(schema)


def _try_to_make(connection: PostgresConnection) -> None:
    """Two processes at once would get into each other's way."""
    connection.begin()
    try:
        connection.rows(Sql("select pg_advisory_xact_lock(:lock)"), {"lock": INDEX_LOCK_ID})
        connection.run(_MAKE, {})
        connection.commit()
    finally:
        connection.rollback()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
