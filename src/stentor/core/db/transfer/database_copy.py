"""The steps of a copy: mark the target as incomplete, load it in one transaction, read it back and compare, unmark it.

Until the last step the target has a schema version that no service accepts. So if the copy is interrupted, no service
starts on partial data, and the next copy empties the target and restarts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from stentor.core import migrations
from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.sql import Row
from stentor.core.db.transfer.model import CopiedTable, CopyPlan, RowValidator, Side, Table, plan_copy
from stentor.core.db.transfer.sqlite import SqliteSide
from stentor.core.errors import StartRefused
from stentor.core.lazy_import import install_command

ROWS_PER_PROGRESS = 1_000
"""Rows between two progress reports."""
Progress = Callable[[str, int, int], None]
"""Receives the table, the rows done and the total rows."""


class DatabaseCopy:
    """A copy from the source to the target database; within `open`, call `begin`, `copy`, `verify` and `finish`."""

    def __init__(self, source: Side, target: Side) -> None:
        self._source = source
        self._target = target
        self.plan: CopyPlan
        self._is_restart: bool

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open both databases exclusively.

        Raises StartRefused if one is in use or has another schema, or if the target contains rows.
        """
        with ExitStack() as stack:
            stack.enter_context(self._source.open())
            stack.enter_context(self._target.open())
            self.plan = plan_copy(self._source.tables(), self._target.tables())
            # Rows of an interrupted copy are ours to delete; rows of anything else are not.
            self._is_restart = migrations.current_version(self._target.driver) != migrations.HEAD
            if not self._is_restart:
                self._require_empty()
            yield

    def _require_empty(self) -> None:
        for table in self.plan.tables:
            if count := self._target.count_rows(table):
                raise StartRefused(
                    f"{self._target.display} is not empty ({count} rows in {table.name}). A copy overwrites no data: "
                    "name a new, empty database."
                )

    def begin(self) -> None:
        """Mark the target as incomplete, so that no service starts on it."""
        # Before the transaction with the rows and not in it: the mark must survive if that is rolled back.
        self._target.set_schema_version(migrations.COPYING_PREFIX + migrations.HEAD)

    def copy(self, progress: Progress) -> list[CopiedTable]:
        """Copy all rows in one transaction. Raises StartRefused for a row that the target cannot store."""
        # For the progress only; the source cannot change, because it is open in one snapshot.
        counts = {table.name: self._source.count_rows(table) for table in self.plan.tables}
        with self._target.load_transaction():
            if self._is_restart:
                self._target.clear(self.plan.tables)
            copied = [self._copy_table(table, counts[table.name], progress) for table in self.plan.tables]
        self._target.finish_load(self.plan.tables)
        return copied

    def _copy_table(self, table: Table, total: int, progress: Progress) -> CopiedTable:
        validator = RowValidator(table)
        with closing(self._source.read_rows(table)) as rows:
            self._target.load_rows(table, _validated(rows, validator, total, progress))
        return validator.result

    def verify(self, copied: list[CopiedTable], progress: Progress) -> None:
        """Read all rows back and compare their digests. Raises StartRefused if a table differs from what was copied."""
        for table, expected in zip(self.plan.tables, copied, strict=True):
            validator = RowValidator(table)
            with closing(self._target.read_rows(table)) as rows:
                for _ in _validated(rows, validator, expected.rows, progress):
                    pass
            if validator.result != expected:
                raise StartRefused(
                    f"The table {table.name} differs after the copy: {expected.rows} rows with the digest "
                    f"{expected.digest[:16]} were copied, but {validator.count} with "
                    f"{validator.result.digest[:16]} were read back."
                )

    def finish(self) -> None:
        """Mark the target as complete, so that a service may start on it."""
        self._target.set_schema_version(migrations.HEAD)


def _validated(rows: Iterator[Row], validator: RowValidator, total: int, progress: Progress) -> Iterator[Row]:
    for row in rows:
        yield validator.validate(row)
        if validator.count % ROWS_PER_PROGRESS == 0:
            progress(validator.table, validator.count, total)
    progress(validator.table, validator.count, max(total, validator.count))


def open_side(address: DatabaseUrl, *, write: bool) -> Side:
    """Return the database for the URL, not opened yet. Raises StartRefused if PostgreSQL's client is not installed."""
    if address.path is not None:
        return SqliteSide(address.path, write=write)
    try:
        module = importlib.import_module("stentor.core.db.transfer.postgres")
    except ImportError:
        raise StartRefused(f"PostgreSQL needs the extra: {install_command('postgres')}.") from None
    side: Side = module.PostgresSide(address, write=write)
    return side
