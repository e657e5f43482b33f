"""What a database must be able to do to be copied from or into."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from stentor.core import migrations
from stentor.core.db.address import Address
from stentor.core.db.driver import Driver, Row
from stentor.core.db.transfer.model import Table
from stentor.core.errors import StartRefused


class Side(Protocol):
    """One of the two databases; from its opening to its closing nobody else writes to it.

    Failures of the store raise StoreUnavailable.
    """

    shown: str

    @property
    def driver(self) -> Driver: ...

    def open(self) -> AbstractContextManager[None]:
        """Have it alone, in one view of its data. Raises StartRefused, naming who uses it."""
        ...

    def tables(self) -> dict[str, Table]: ...

    def count(self, table: Table) -> int: ...

    def rows(self, table: Table) -> Generator[Row]:
        """All rows, in any order, one at a time."""
        ...

    def mark(self, version: str) -> None:
        """Write the version of the schema, durably."""
        ...

    def loading(self) -> AbstractContextManager[None]:
        """What is done in here is done whole, or not at all."""
        ...

    def clear(self, tables: Iterable[Table]) -> None: ...

    def load(self, table: Table, rows: Iterable[Row]) -> None: ...

    def settle(self, tables: Iterable[Table]) -> None:
        """Set what follows from the rows: sequences, statistics."""
        ...


def open_side(address: Address, *, write: bool) -> Side:
    """Raises StartRefused without PostgreSQL's client."""
    if address.path is not None:
        from stentor.core.db.transfer.sqliteside import SqliteSide

        return SqliteSide(address.path, write=write)
    try:
        module = importlib.import_module("stentor.core.db.transfer.postgresside")
    except ImportError:
        raise StartRefused("PostgreSQL needs the extra: pip install 'stentor[postgres]'.") from None
    side: Side = module.PostgresSide(address, write=write)
    return side


def require_ready(driver: Driver, shown: str, *, write: bool) -> None:
    """Raises StartRefused for another schema than this program's; one to be written may be made, or half filled."""
    current = migrations.current_version(driver)
    if write and current == migrations.COPYING + migrations.HEAD:
        return
    migrations.require_known(current)
    if write and current is None:
        migrations.upgrade(driver)
    elif current != migrations.HEAD:
        raise StartRefused(
            f"{shown} has schema {current or 'none'}, and only {migrations.HEAD} is copied: bring it up to date with "
            f"{migrations.UPGRADE} first."
        )
