"""A database whose commits fail as planned: before they are done, or after, when their outcome is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stentor.core.db.driver import DbConnection, Driver
from stentor.core.db.locks.session import LockSession
from stentor.core.db.rows_sql import Insert, RowUpdate
from stentor.core.db.sql import Params, Sql
from stentor.core.errors import StoreUnavailable


@dataclass(frozen=True)
class Fault:
    """What happens at a commit.

    `is_done` is whether the commit is done all the same, `kills_service` whether the service ends there, and
    `kills_worker` whether the worker does that waits for the response. With `is_lie` the commit is lost, and no error
    says so: no database does that, and the checks must find it.
    """

    is_done: bool
    kills_service: bool = False
    kills_worker: bool = False
    is_lie: bool = False


FAULTS = tuple(
    Fault(is_done, service, worker)
    for is_done in (False, True)
    for service in (False, True)
    for worker in (False, True)
)


@dataclass
class Plan:
    """The faults to come, by the number of the commit, from 1; with `table` only commits count that change it."""

    faults: dict[int, Fault] = field(default_factory=dict)
    table: str | None = None
    commits: int = 0
    is_service_dead: bool = False
    is_worker_dead: bool = False
    place: str = ""
    """The request that is under way."""
    injected: Counter[str] = field(default_factory=Counter)
    """How many faults there were, by the request in which they came."""

    def begin(self, faults: dict[int, Fault], table: str | None = None) -> None:
        self.faults, self.table, self.commits = faults, table, 0

    def take(self, changed: set[str]) -> Fault | None:
        """Count a commit that changes these tables; return its fault, if one is planned."""
        if self.table is not None and self.table not in changed:
            return None
        self.commits += 1
        fault = self.faults.pop(self.commits, None)
        self.injected[self.place] += fault is not None
        return fault


class FailingDriver:
    """Opens connections of another driver that keep to a plan."""

    def __init__(self, driver: Driver, plan: Plan) -> None:
        self.name, self.shared, self._driver, self._plan = driver.name, driver.shared, driver, plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def writer(self) -> Any:
        return FailingConnection(self._driver.writer(), self._plan)

    def reader(self, *, may_idle: bool = False) -> Any:
        return FailingConnection(self._driver.reader(may_idle=may_idle), self._plan)

    def lock_session(self) -> LockSession:
        return self._driver.lock_session()

    def shorten_timeouts(self) -> None:
        self._driver.shorten_timeouts()


class FailingConnection:
    """A connection of a service, which does nothing more once the service is dead."""

    def __init__(self, connection: DbConnection, plan: Plan) -> None:
        self._connection, self._plan = connection, plan
        self._changed: set[str] = set()
        """What the open transaction has changed with statements of its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def begin(self, *locks: Any) -> int:
        self._require_alive()
        self._changed.clear()
        return self._connection.begin(*locks)

    def begin_reading(self, *reads: Any) -> Any:
        self._require_alive()
        self._changed.clear()
        return self._connection.begin_reading(*reads)

    def run(self, sql: Sql, params: Params) -> int:
        self._changed |= sql.tables
        return self._connection.run(sql, params)

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        self._changed |= sql.tables
        self._connection.many(sql, rows)

    def add(self, inserts: list[Insert]) -> None:
        self._changed |= {table.table for table, _ in inserts}
        self._connection.add(inserts)

    def add_at_commit(self, inserts: list[Insert]) -> None:
        self._changed |= {table.table for table, _ in inserts}
        self._connection.add_at_commit(inserts)

    def update_at_commit(self, update: RowUpdate, rows: list[Params]) -> None:
        self._changed |= update.one.tables
        self._connection.update_at_commit(update, rows)

    def run_at_commit(self, sql: Sql, params: Params) -> None:
        self._changed |= sql.tables
        self._connection.run_at_commit(sql, params)

    def commit(self) -> None:
        self._require_alive()
        fault = self._plan.take(self._changed)
        if fault is None:
            self._connection.commit()
            return
        if fault.is_lie or not fault.is_done:
            self._connection.rollback()
        else:
            self._connection.commit()
        self._plan.is_service_dead = fault.kills_service
        self._plan.is_worker_dead = fault.kills_worker
        if not fault.is_lie:
            raise StoreUnavailable("The connection was lost during the commit (injected).")

    def _require_alive(self) -> None:
        if self._plan.is_service_dead:
            raise StoreUnavailable("The service is dead (injected).")
