"""What a database must be able to do; the conformance suite runs against every implementation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from stentor.core.db.journal import Journal
from stentor.core.db.sql import Sql

Params = Mapping[str, Any]
Locks = Collection[str] | None
"""What a transaction must not share with those of other processes: names, or None for everything."""
Row = tuple[Any, ...]


class Connection(Protocol):
    """One connection, used by one thread at a time. Failures of the store raise StoreUnavailable."""

    def begin(self, locks: Locks = ()) -> int:
        """Open a transaction once the locks are held; answers the time of the store in microseconds, taken then."""
        ...

    def lock(self, name: str) -> bool:
        """Hold one more lock until the end of the transaction; False when another process has it."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """End the open transaction, if any. Never raises."""
        ...

    def in_transaction(self) -> bool: ...

    def control(self, text: str) -> None:
        """Run a statement of transaction control: SAVEPOINT, RELEASE, ROLLBACK TO."""
        ...

    def run(self, sql: Sql, params: Params) -> int:
        """Execute; answers the number of rows touched."""
        ...

    def many(self, sql: Sql, rows: Iterable[Params]) -> None: ...

    def add(self, journal: Journal, rows: list[Row]) -> None:
        """Insert the rows into the journal's table."""
        ...

    def rows(self, sql: Sql, params: Params) -> list[Row]: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """Opens connections to one database."""

    name: str
    shared: bool
    """Whether other processes may write to the same database."""

    def writer(self) -> Connection: ...

    def reader(self) -> Connection: ...
