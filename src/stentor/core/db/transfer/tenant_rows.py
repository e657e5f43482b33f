"""Which rows belong to tenants, and a PostgreSQL database out of which they move."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import ClassVar, LiteralString

from psycopg import sql

from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.driver import Row
from stentor.core.db.transfer.model import NOT_COPIED, Table
from stentor.core.db.transfer.postgres import PostgresSide, column_list, table_name, translated_errors
from stentor.core.errors import StartRefused

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


def require_known(tables: Iterable[Table]) -> None:
    """Raise StartRefused for a table of which it is not known whose its rows are."""
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
