"""The copy itself: marked as begun, filled in one transaction, read back and compared, marked as whole.

Until the last step the target has a version that no program takes for its own, so whatever interrupts the copy, nothing
starts on half of the data; the next copy empties it and begins anew.

What a database must be able to do to be copied from or into.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Protocol

from stentor.core import migrations
from stentor.core.db.database_url import DatabaseUrl
from stentor.core.db.driver import Driver, Row
from stentor.core.db.transfer.model import CopiedTable, CopyPlan, RowValidator, Table, plan_copy
from stentor.core.errors import StartRefused

ROWS_PER_PROGRESS = 1_000
"""Rows between two looks at the progress."""
Progress = Callable[[str, int, int], None]
"""Is told the table, rows done and rows in all."""


class DatabaseCopy:
    """Both databases, from their opening to their closing in nobody else's hands."""

    def __init__(self, source: Side, target: Side) -> None:
        self._source = source
        self._target = target
        self.plan: CopyPlan
        self._again: bool

    @contextmanager
    def open(self) -> Iterator[None]:
        """Raises StartRefused when one is in use, has another schema, or the target holds rows already."""
        with ExitStack() as stack:
            stack.enter_context(self._source.open())
            stack.enter_context(self._target.open())
            self.plan = plan_copy(self._source.tables(), self._target.tables())
            self._again = migrations.current_version(self._target.driver) != migrations.HEAD
            if not self._again:
                self._require_empty()
            yield

    def _require_empty(self) -> None:
        for table in self.plan.tables:
            if count := self._target.count_rows(table):
                raise StartRefused(
                    f"{self._target.display} is not empty ({count} rows in {table.name}), and nothing is overwritten: "
                    "name a new, empty database."
                )

    def begin(self) -> None:
        """From now on the target refuses to be served."""
        self._target.set_schema_version(migrations.COPYING_PREFIX + migrations.HEAD)

    def copy(self, progress: Progress) -> list[CopiedTable]:
        """All rows, in one transaction. Raises StartRefused for a row that the target cannot hold."""
        counts = {table.name: self._source.count_rows(table) for table in self.plan.tables}
        with self._target.load_transaction():
            if self._again:
                self._target.clear(self.plan.tables)  # all that it holds is of the try before
            copied = [self._fill(table, counts[table.name], progress) for table in self.plan.tables]
        self._target.finish_load(self.plan.tables)
        return copied

    def _fill(self, table: Table, total: int, progress: Progress) -> CopiedTable:
        rows = RowValidator(table)
        with closing(self._source.read_rows(table)) as found:
            self._target.load_rows(table, _watched(found, rows, total, progress))
        return rows.result

    def verify(self, copied: list[CopiedTable], progress: Progress) -> None:
        """Read everything back. Raises StartRefused when a table is not what was copied."""
        for table, expected in zip(self.plan.tables, copied, strict=True):
            rows = RowValidator(table)
            with closing(self._target.read_rows(table)) as found:
                for _ in _watched(found, rows, expected.rows, progress):
                    pass
            if rows.result != expected:
                raise StartRefused(
                    f"The table {table.name} is not the same on both sides: {expected.rows} rows with the digest "
                    f"{expected.digest[:16]} were copied, {rows.count} with {rows.result.digest[:16]} were read back."
                )

    def finish(self) -> None:
        """From now on the target may be served."""
        self._target.set_schema_version(migrations.HEAD)


def _watched(found: Iterator[Row], rows: RowValidator, total: int, progress: Progress) -> Iterator[Row]:
    for row in found:
        yield rows.validate(row)
        if rows.count % ROWS_PER_PROGRESS == 0:
            progress(rows.table, rows.count, total)
    progress(rows.table, rows.count, max(total, rows.count))


class Side(Protocol):
    """One of the two databases; from its opening to its closing nobody else writes to it.

    Failures of the store raise StoreUnavailable.
    """

    display: str

    @property
    def driver(self) -> Driver: ...

    def open(self) -> AbstractContextManager[None]:
        """Have it alone, in one view of its data. Raises StartRefused, naming who uses it."""
        ...

    def tables(self) -> dict[str, Table]: ...

    def count_rows(self, table: Table) -> int: ...

    def read_rows(self, table: Table) -> Generator[Row]:
        """All rows, in any order, one at a time."""
        ...

    def set_schema_version(self, version: str) -> None:
        """Write the version of the schema, durably."""
        ...

    def load_transaction(self) -> AbstractContextManager[None]:
        """What is done in here is done whole, or not at all."""
        ...

    def clear(self, tables: Iterable[Table]) -> None: ...

    def load_rows(self, table: Table, rows: Iterable[Row]) -> None: ...

    def finish_load(self, tables: Iterable[Table]) -> None:
        """Set what follows from the rows: sequences, statistics."""
        ...


def open_side(address: DatabaseUrl, *, write: bool) -> Side:
    """Raises StartRefused without PostgreSQL's client."""
    if address.path is not None:
        from stentor.core.db.transfer.sqlite import SqliteSide

        return SqliteSide(address.path, write=write)
    try:
        module = importlib.import_module("stentor.core.db.transfer.postgres")
    except ImportError:
        raise StartRefused("PostgreSQL needs the extra: pip install 'stentor[postgres]'.") from None
    side: Side = module.PostgresSide(address, write=write)
    return side


def require_current_schema(driver: Driver, shown: str, *, write: bool) -> None:
    """Raises StartRefused for another schema than this program's; one to be written may be made, or half filled."""
    current = migrations.current_version(driver)
    if write and current == migrations.COPYING_PREFIX + migrations.HEAD:
        return
    migrations.require_supported(current)
    if write and current is None:
        migrations.upgrade(driver)
    elif current != migrations.HEAD:
        raise StartRefused(
            f"{shown} has schema {current or 'none'}, and only {migrations.HEAD} is copied: bring it up to date with "
            f"{migrations.UPGRADE_COMMAND} first."
        )
