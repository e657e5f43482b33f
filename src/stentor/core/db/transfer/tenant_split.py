"""The steps of a split: copy the rows of tenants into an empty database, read them back, delete them in the source.

Until the copy is verified the source is unchanged and the target has the mark of an incomplete copy, then one of its
own until the source's transaction has deleted them: at any moment a service can start on at most one database with
these rows. After an interruption the same call starts over, or only removes the mark if the source has deleted them
already.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, LiteralString

from psycopg import sql

from stentor.core import migrations
from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.driver import Driver
from stentor.core.db.sql import Row, Sql
from stentor.core.db.transfer.database_copy import DatabaseCopy, Progress
from stentor.core.db.transfer.model import NOT_COPIED, CopiedTable, Table
from stentor.core.db.transfer.postgres import PostgresSide, column_list, table_name, translated_errors
from stentor.core.errors import StartRefused

SPLITTING_VERSION = migrations.SPLITTING_PREFIX + migrations.HEAD
_NEWEST = [
    (Sql(f"select max({key}) from {table}"), Sql(f"select 1 from {table} where {key} = :id"))  # noqa: S608 - named here
    for table, key in (("agents", "agent_id"), ("tasks", "provenance_id"))
]
"""The newest id of a table, and whether a row has it: ids that no later row gets again."""
_LAST_LEAF = Sql("select number, hash from provenance_leaves order by number desc limit 1")
_SAME_LEAF = Sql("select hash from provenance_leaves where number = :number")
SHARED_TABLES = frozenset(
    "archived_events archives authority_uses clock_jumps events events_waiting provenance_checkpoints "
    "provenance_leaves provenance_tiles".split()
)
"""Copied as a whole and kept: the run log is one tree over the events of all tenants, with those in archives, and
used receipts stay used.
"""
STAYING_TABLES = frozenset(
    "alert_mails memory_intents memory_invalidations memory_records memory_versions task_note_cursors".split()
)
"""Not copied: mails that wait, and what belongs to the notes of the vault, which stays where it is."""
OWNERS = {
    "hebbian_weights": ("agents", "agent_id"),
    "rate_buckets": ("agents", "agent_id"),
    "sentinel_alerts": ("agents", "agent_id"),
    "violations": ("agents", "agent_id"),
    "webhook_attempts": ("webhook_deliveries", "delivery_id"),
}
"""Tables without a tenant, each with the table that has it, and the column that both have."""


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


def require_known(tables: Iterable[Table]) -> None:
    """Raise StartRefused for a table if it is unknown which tenants own its rows."""
    for table in tables:
        known = "tenant" in table.names or table.name in SHARED_TABLES | STAYING_TABLES | OWNERS.keys()
        if not known:
            raise StartRefused(f"The rows of the table {table.name} have no tenant, so they cannot be split.")


class TenantRows(PostgresSide):
    """The source of a split: yields the rows of `tenants` and the shared ones, and deletes the former at the end.

    Everything happens in one snapshot and one transaction, so what is deleted is what was read.
    """

    _begin: ClassVar[LiteralString] = "begin isolation level repeatable read"

    def __init__(self, address: DatabaseUrl, tenants: Sequence[str]) -> None:
        super().__init__(address, write=False)
        self._tenants = sorted(tenants)

    def count_rows(self, table: Table) -> int:
        return self._count(table, self._condition(table))

    def read_rows(self, table: Table) -> Generator[Row]:
        statement = sql.SQL("copy (select {} from {} where {}) to stdout")
        return self._read(table, statement.format(column_list(table), table_name(table), self._condition(table)))

    def count_tenant(self, tenant: str, tables: Iterable[Table]) -> int:
        """Return the number of rows that name a tenant, without those of the run log."""
        condition = sql.SQL("tenant = {}").format(sql.Literal(tenant))
        named = [table for table in tables if "tenant" in table.names and table.name not in SHARED_TABLES]
        return sum(self._count(table, condition) for table in named)

    def delete_rows(self, tables: Sequence[Table]) -> dict[str, int]:
        """Delete the tenants' rows of tables in the order of a load, and of indexes; return their numbers by table."""
        indexes = [table for name, table in self.tables().items() if name in NOT_COPIED and "tenant" in table.names]
        # First those whose tenant is only in the row of another table.
        order = sorted([*indexes, *reversed(tables)], key=lambda table: table.name not in OWNERS)
        deleted = {}
        with translated_errors():
            for table in order:
                if table.name not in SHARED_TABLES | STAYING_TABLES:
                    statement = sql.SQL("delete from {} where {}").format(table_name(table), self._condition(table))
                    deleted[table.name] = self._raw.execute(statement).rowcount
        return deleted

    def commit(self) -> None:
        with translated_errors():
            self._raw.execute("commit")

    def _count(self, table: Table, condition: sql.Composable) -> int:
        statement = sql.SQL("select count(*) from {} where {}").format(table_name(table), condition)
        with translated_errors():
            row = self._raw.execute(statement).fetchone()
        assert row is not None
        return int(row[0])

    def _condition(self, table: Table) -> sql.Composable:
        if table.name in SHARED_TABLES:
            return sql.SQL("true")
        if table.name in STAYING_TABLES:
            return sql.SQL("false")
        mine = sql.SQL("tenant = any({})").format(sql.Literal(self._tenants))
        if table.name not in OWNERS:
            return mine
        owner, column = (sql.Identifier(name) for name in OWNERS[table.name])
        return sql.SQL("{} in (select {} from {} where {})").format(column, column, owner, mine)
