"""Group commit: many units, one transaction, and no unit takes down another.

At first the units run side by side without savepoints, which are a third of all statements. When one
of them fails after it wrote something, the transaction is rolled back and all run again, each in a
savepoint of its own; when the transaction itself loses against another process's, all run again too.
So a unit may run several times, and only what it does through its `Tx` is undone.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stentor.core.db.driver import DbConnection, Locks, PendingRows
from stentor.core.db.transaction import CounterIncrement, CounterTable, LockContended, RetryWithSavepoints, Tx
from stentor.core.errors import StentorError, StoreConflict, StoreUnavailable

MAX_TRIES, RETRY_PAUSE_SECONDS = 6, 0.01
"""Of a transaction that loses against others; the pause doubles each time, to 0.3 s."""
log = logging.getLogger(__name__)


RunAll = Callable[[DbConnection, list["WriteUnit"], int], None]


@dataclass(slots=True)
class WriteUnit:
    """A function that waits for its transaction, and then what came of it."""

    fn: Callable[[Tx], Any]
    locks: Locks
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    hooks: list[Callable[[], None]] = field(default_factory=list)
    added: list[CounterIncrement] = field(default_factory=list)
    queued_at: float = field(default_factory=time.perf_counter)


def run_group(connection: DbConnection, group: list[WriteUnit]) -> None:
    """One transaction for all units. Raises StoreUnavailable when nothing was committed."""
    locks, run_all = _locks(group), _run_bare
    tries = 0
    while True:
        tries += 1
        try:
            return _attempt(connection, group, locks, run_all)
        except LockContended as error:
            connection.rollback()
            locks = {*(locks or ()), error.name}
            continue
        except RetryWithSavepoints:
            connection.rollback()
        except StoreConflict:
            connection.rollback()
            if tries == MAX_TRIES:
                raise
            time.sleep(RETRY_PAUSE_SECONDS * 2 ** (tries - 1) * random.uniform(0.5, 1))  # noqa: S311 - a jitter is no secret
        except BaseException:
            connection.rollback()
            raise
        run_all = _run_guarded


def _attempt(connection: DbConnection, group: list[WriteUnit], locks: Locks, run_all: RunAll) -> None:
    now = connection.begin(locks)
    for unit in group:
        unit.result, unit.error, unit.hooks, unit.added = None, None, [], []
    run_all(connection, group, now)
    _write_tallies(connection, group)
    connection.commit()


def _locks(group: list[WriteUnit]) -> Locks:
    """What all of them ask for together."""
    names: set[str] = set()
    for unit in group:
        if unit.locks is None:
            return None
        names.update(unit.locks)
    return names


def _run_bare(connection: DbConnection, group: list[WriteUnit], now: int) -> None:
    pending = PendingRows()
    for unit in group:
        _run_one_bare(unit, Tx(connection, now, pending))
    try:
        Tx(connection, now, pending).flush()
    except Exception:  # noqa: BLE001 - whichever row it was, its unit is found by running again
        raise RetryWithSavepoints from None


def _run_one_bare(unit: WriteUnit, tx: Tx) -> None:
    try:
        _keep(unit, tx)
    except StentorError as error:
        if tx.wrote or isinstance(error, StoreUnavailable):
            raise RetryWithSavepoints from None
        unit.error = error
    except LockContended:
        raise
    except BaseException:  # noqa: BLE001 - whatever a unit raises is its caller's
        raise RetryWithSavepoints from None


def _run_guarded(connection: DbConnection, group: list[WriteUnit], now: int) -> None:
    for unit in group:
        _run_one_guarded(connection, unit, Tx(connection, now))


def _run_one_guarded(connection: DbConnection, unit: WriteUnit, tx: Tx) -> None:
    connection.control("savepoint unit")
    try:
        _keep(unit, tx)
        tx.flush()
    except BaseException as error:
        if isinstance(error, StoreConflict | LockContended) or (
            isinstance(error, StoreUnavailable) and not connection.in_transaction()
        ):
            raise  # the store gave up the whole transaction
        unit.error, unit.hooks, unit.added = error, [], []
        connection.control("rollback to savepoint unit")
    connection.control("release savepoint unit")


def _keep(unit: WriteUnit, tx: Tx) -> None:
    unit.result = unit.fn(tx)
    unit.hooks, unit.added = tx.hooks, tx.added


def _write_tallies(connection: DbConnection, group: list[WriteUnit]) -> None:
    """In the order of statements and keys, so that two processes never wait for each other's rows."""
    sums: dict[CounterTable, dict[tuple[Any, ...], tuple[int, ...]]] = defaultdict(dict)
    for unit in group:
        for tally, key, amounts in unit.added:
            known = sums[tally].get(key)
            sums[tally][key] = amounts if known is None else tuple(map(operator.add, known, amounts))
    for tally, of_key in sorted(sums.items(), key=lambda item: item[0].sql.text):
        if rows := [tally.params(key, amounts) for key, amounts in sorted(of_key.items()) if any(amounts)]:
            connection.many(tally.sql, rows)


def fail_group(group: list[WriteUnit], error: StoreUnavailable) -> None:
    """Nothing was committed: every unit that has no error of its own gets this one."""
    for unit in group:
        unit.error = unit.error or StoreUnavailable(error.message)
        unit.hooks = []


def resolve_group(group: list[WriteUnit]) -> None:
    """Give each caller what came of its unit, on its own event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteUnit]] = {}
    for unit in group:
        by_loop.setdefault(unit.loop, []).append(unit)
    for loop, units in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, units)
        except RuntimeError:
            log.warning("%d answers of the database had no loop to go to", len(units))


def _resolve(units: list[WriteUnit]) -> None:
    for unit in units:
        for hook in unit.hooks:
            try:
                hook()
            except Exception:
                # The commit stands whatever a hook does; the reconciler repairs what it missed.
                log.exception("a hook after the commit failed")
        if unit.future.cancelled():
            continue
        if unit.error is None:
            unit.future.set_result(unit.result)
        else:
            unit.future.set_exception(unit.error)
