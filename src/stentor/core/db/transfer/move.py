"""The copy itself: marked as begun, filled in one transaction, read back and compared, marked as whole.

Until the last step the target has a version that no program takes for its own, so whatever interrupts the copy, nothing
starts on half of the data; the next copy empties it and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from stentor.core import migrations
from stentor.core.db.driver import Row
from stentor.core.db.transfer.model import Copied, Plan, Rows, Table, plan
from stentor.core.db.transfer.sides import Side
from stentor.core.errors import StartRefused

EVERY = 1_000
"""Rows between two looks at the progress."""
Progress = Callable[[str, int, int], None]
"""Is told the table, rows done and rows in all."""


class Move:
    """Both databases, from their opening to their closing in nobody else's hands."""

    def __init__(self, source: Side, target: Side) -> None:
        self._source = source
        self._target = target
        self.plan: Plan
        self._again: bool

    @contextmanager
    def open(self) -> Iterator[None]:
        """Raises StartRefused when one is in use, has another schema, or the target holds rows already."""
        with ExitStack() as stack:
            stack.enter_context(self._source.open())
            stack.enter_context(self._target.open())
            self.plan = plan(self._source.tables(), self._target.tables())
            self._again = migrations.current_version(self._target.driver) != migrations.HEAD
            if not self._again:
                self._require_empty()
            yield

    def _require_empty(self) -> None:
        for table in self.plan.tables:
            if count := self._target.count(table):
                raise StartRefused(
                    f"{self._target.shown} is not empty ({count} rows in {table.name}), and nothing is overwritten: "
                    "name a new, empty database."
                )

    def begin(self) -> None:
        """From now on the target refuses to be served."""
        self._target.mark(migrations.COPYING + migrations.HEAD)

    def copy(self, progress: Progress) -> list[Copied]:
        """All rows, in one transaction. Raises StartRefused for a row that the target cannot hold."""
        counts = {table.name: self._source.count(table) for table in self.plan.tables}
        with self._target.loading():
            if self._again:
                self._target.clear(self.plan.tables)  # all that it holds is of the try before
            copied = [self._fill(table, counts[table.name], progress) for table in self.plan.tables]
        self._target.settle(self.plan.tables)
        return copied

    def _fill(self, table: Table, total: int, progress: Progress) -> Copied:
        rows = Rows(table)
        with closing(self._source.rows(table)) as found:
            self._target.load(table, _watched(found, rows, total, progress))
        return rows.copied

    def compare(self, copied: list[Copied], progress: Progress) -> None:
        """Read everything back. Raises StartRefused when a table is not what was copied."""
        for table, expected in zip(self.plan.tables, copied, strict=True):
            rows = Rows(table)
            with closing(self._target.rows(table)) as found:
                for _ in _watched(found, rows, expected.rows, progress):
                    pass
            if rows.copied != expected:
                raise StartRefused(
                    f"The table {table.name} is not the same on both sides: {expected.rows} rows with the digest "
                    f"{expected.digest[:16]} were copied, {rows.count} with {rows.copied.digest[:16]} were read back."
                )

    def finish(self) -> None:
        """From now on the target may be served."""
        self._target.mark(migrations.HEAD)


def _watched(found: Iterator[Row], rows: Rows, total: int, progress: Progress) -> Iterator[Row]:
    for row in found:
        yield rows.take(row)
        if rows.count % EVERY == 0:
            progress(rows.table, rows.count, total)
    progress(rows.table, rows.count, max(total, rows.count))
