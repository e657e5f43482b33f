"""The steps of a split: copy the rows of tenants into an empty database, read them back, delete them in the source.

Until the copy is verified the source is unchanged and the target has the mark of an incomplete copy, then one of its
own until the source's transaction has deleted them: at each moment a service can start on at most one database with
them. After an interruption the same call starts over, or only removes the mark if the source has deleted them already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from psycopg import sql

from stentor.core import migrations
from stentor.core.db.driver import Driver, Sql
from stentor.core.db.transfer.database_copy import DatabaseCopy, Progress
from stentor.core.db.transfer.model import CopiedTable, Table
from stentor.core.db.transfer.postgres import PostgresSide, table_name, translated_errors
from stentor.core.db.transfer.tenant_rows import SHARED_TABLES, STAYING_TABLES, TenantRows, require_known
from stentor.core.errors import StartRefused

SPLITTING_VERSION = migrations.SPLITTING_PREFIX + migrations.HEAD
_NEWEST = [
    (Sql(f"select max({key}) from {table}"), Sql(f"select 1 from {table} where {key} = :id"))  # noqa: S608 - named here
    for table, key in (("agents", "agent_id"), ("tasks", "provenance_id"))
]
"""The newest id of a table, and whether a row has it: ids that no later row gets again."""
_LAST_LEAF = Sql("select number, hash from provenance_leaves order by number desc limit 1")
_SAME_LEAF = Sql("select hash from provenance_leaves where number = :number")


class SplitTarget(PostgresSide):
    """The target, which may have the mark of a split that was interrupted."""

    _resumable: ClassVar[str | None] = SPLITTING_VERSION

    def list_tenants(self, tables: Sequence[Table]) -> set[str]:
        """Return the tenants that rows name, without those of the run log."""
        found: set[str] = set()
        for table in tables:
            if "tenant" in table.names and table.name not in SHARED_TABLES | STAYING_TABLES:
                statement = sql.SQL("select distinct tenant from {}").format(table_name(table))
                with translated_errors():
                    found.update(tenant for (tenant,) in self._raw.execute(statement))
        return found


class TenantSplit:
    """A move of `tenants`; within `open`, call `copy`, `verify` and `release`, and last `finish`.

    If `is_released` is set, the source has deleted them before an interruption, and only `finish` is left.
    """

    def __init__(self, source: TenantRows, target: SplitTarget, tenants: Sequence[str]) -> None:
        self._source, self._target, self._tenants = source, target, tenants
        self._copy = DatabaseCopy(source, target)
        self.is_released = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open both databases exclusively.

        Raises StartRefused if one is in use, the target has rows, or a tenant has none or cannot move.
        """
        with self._copy.open():
            tables = self._copy.plan.tables
            require_known(tables)
            missing = [tenant for tenant in self._tenants if not self._source.count_tenant(tenant, tables)]
            is_copied = migrations.current_version(self._target.driver) == SPLITTING_VERSION
            self.is_released = is_copied and len(missing) == len(self._tenants)
            if is_copied:
                self._require_same_log()
            if missing and not self.is_released:
                raise StartRefused(
                    f"{self._source.display} has no rows of the tenant {missing[0]!r}: nothing was moved."
                )
            if is_copied and not self.is_released:
                self._require_kept()
            yield

    def _require_kept(self) -> None:
        # The copy overwrites the rows of the target, so the source must still have all of them.
        source, target = self._source, self._target
        if others := target.list_tenants(self._copy.plan.tables).difference(self._tenants):
            raise StartRefused(
                f"A split of the tenant {min(others)!r} into {target.display} was interrupted: run it again with the "
                "same tenants first."
            )
        for newest, is_there in _NEWEST:
            ((last,),) = _rows(target.driver, newest, {})
            if last is not None and not _rows(source.driver, is_there, {"id": last}):
                raise StartRefused(
                    f"{source.display} has deleted what is in {target.display}, and has new rows of the same tenants. "
                    "Move those to another, empty database, then run this again."
                )

    def _require_same_log(self) -> None:
        # Both run logs have the same beginning; another database that lacks the tenants is not their source.
        last = _rows(self._target.driver, _LAST_LEAF, {})
        for number, leaf in last:
            if _rows(self._source.driver, _SAME_LEAF, {"number": number}) != [(leaf,)]:
                raise StartRefused(
                    f"The tenants in {self._target.display} come from another database than {self._source.display}."
                )

    def count_notes(self) -> int:
        """Return the number of rows about the notes of the vault, which stay with the source."""
        tables = [table for table in self._copy.plan.tables if table.name == "memory_records"]
        return sum(PostgresSide.count_rows(self._source, table) for table in tables)

    def copy(self, progress: Progress) -> list[CopiedTable]:
        """Copy the rows of the tenants and the run log, and read them back. Raises StartRefused if they differ."""
        self._copy.begin()
        copied = self._copy.copy(progress)
        self._copy.verify(copied, progress)
        return copied

    def release(self, copied: Sequence[CopiedTable]) -> None:
        """Delete the tenants' rows in the source in one transaction.

        Raises StartRefused if they are not as many as were copied.
        """
        self._target.set_schema_version(SPLITTING_VERSION)
        deleted = self._source.delete_rows(self._copy.plan.tables)
        for table in copied:
            if deleted.get(table.table, table.rows) != table.rows:
                raise StartRefused(
                    f"{table.rows} rows of {table.table} were copied, but {deleted[table.table]} would be deleted: "
                    "something else writes to the database. Nothing was deleted."
                )
        self._source.commit()

    def finish(self) -> None:
        """Let a service start on the target."""
        self._copy.finish()


def _rows(driver: Driver, query: Sql, values: dict[str, object]) -> list[tuple[object, ...]]:
    connection = driver.reader()
    try:
        return [tuple(row) for row in connection.rows(query, values)]
    finally:
        connection.close()
