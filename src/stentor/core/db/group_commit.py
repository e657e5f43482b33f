"""Group commit: many write units share one transaction, and a failing unit does not fail the others.

At first the units run one after the other without savepoints, which would be a third of all statements. If a unit fails
after it wrote something, the transaction is rolled back and all units run again, each in a savepoint of its own. If the
transaction conflicts with another process's, all units run again too. So a unit may run several times, and only what
it does through its `Tx` is undone. `database` has the thread that forms the groups.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from stentor.core.db.counters import CounterIncrement, write_increments
from stentor.core.db.driver import DbConnection, Locks, StatementFailed
from stentor.core.db.prefetch import Prefetch, PrefetchedReads
from stentor.core.db.rows_sql import PendingRows
from stentor.core.db.transaction import LockContended, RetryWithSavepoints, Tx
from stentor.core.errors import StentorError, StoreConflict, StoreUnavailable

MAX_TRIES, RETRY_PAUSE_SECONDS = 6, 0.01
"""Tries of a transaction that conflicts with others; the pause doubles each time, up to 0.3 s."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class WriteUnit:
    """A function waiting for its transaction, and then its result or error."""

    fn: Callable[[Tx], Any]
    locks: Locks
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    hooks: list[Callable[[], None]] = field(default_factory=list)
    added: list[CounterIncrement] = field(default_factory=list)
    queued_at: float = field(default_factory=time.perf_counter)
    prefetch: Sequence[Prefetch] = ()
    on_end: Callable[[], None] | None = None


def run_group(connection: DbConnection, group: list[WriteUnit]) -> None:
    """Run all units in one transaction. Raises StoreUnavailable if the commit failed or its outcome is unknown."""
    locks, with_savepoints = _combined_locks(group), False
    conflicts = 0
    while True:
        try:
            return _attempt(connection, group, locks, with_savepoints=with_savepoints)
        except LockContended as error:
            # No pause: `begin` now waits for this lock, together with the others in their order.
            connection.rollback()
            locks = {*(locks or ()), error.name}
            continue
        except (RetryWithSavepoints, StatementFailed):
            connection.rollback()
        except StoreConflict:
            connection.rollback()
            # Only conflicts count: the other reasons to run the group again cannot repeat without end.
            conflicts += 1
            if conflicts == MAX_TRIES:
                raise
            # Only the writer thread sleeps: new writes gather in its queue in the meantime and share the next commit.
            # Jittered, because two processes that conflicted would otherwise meet again after the same pause.
            pause = RETRY_PAUSE_SECONDS * 2 ** (conflicts - 1)
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter needs no secure randomness
        except BaseException:
            connection.rollback()
            raise
        # After any failure use savepoints, so that the unit at fault shows itself.
        with_savepoints = True


def _attempt(connection: DbConnection, group: list[WriteUnit], locks: Locks, *, with_savepoints: bool) -> None:
    prefetched = PrefetchedReads(() if with_savepoints else chain.from_iterable([unit.prefetch for unit in group]))
    now, results = (
        connection.begin_reading(locks, reads) if (reads := prefetched.reads) else (connection.begin(locks), [])
    )
    prefetched.fill(results)
    for unit in group:
        # An earlier attempt may have left a result, and hooks for changes that were rolled back.
        unit.result, unit.error, unit.hooks, unit.added = None, None, [], []
    if with_savepoints:
        _run_with_savepoints(connection, group, now)
    else:
        _run_without_savepoints(connection, group, now, prefetched)
    # Last: the rows of counters are the same for many transactions, so their locks are held only for the commit.
    execute = connection.run if with_savepoints else connection.run_at_commit
    write_increments(execute, chain.from_iterable([unit.added for unit in group]))
    connection.commit()


def _combined_locks(group: list[WriteUnit]) -> Locks:
    """Return the locks of all units; None (everything) if one unit needs everything."""
    names: set[str] = set()
    for unit in group:
        if unit.locks is None:
            return None
        names.update(unit.locks)
    return names


def _run_without_savepoints(
    connection: DbConnection, group: list[WriteUnit], now: int, prefetched: PrefetchedReads
) -> None:
    pending = PendingRows()
    try:
        for unit in group:
            _run_unit(unit, Tx(connection, now, pending, prefetched))
        Tx(connection, now, pending).flush(at_commit=True)
    except Exception:  # noqa: BLE001 - the second run finds the unit whose read or row failed
        raise RetryWithSavepoints from None


def _run_unit(unit: WriteUnit, tx: Tx) -> None:
    try:
        _call(unit, tx)
    except StentorError as error:
        # After an outage the transaction may be aborted, and the units after this one could not run in it.
        if tx.wrote or isinstance(error, StoreUnavailable):
            raise RetryWithSavepoints from None
        # Nothing to undo, so the group continues. Most rejected requests end here.
        unit.error = _without_frames(error)
    except LockContended:
        raise
    except BaseException:  # noqa: BLE001 - the second run gives the error to the caller of this unit
        raise RetryWithSavepoints from None


def _run_with_savepoints(connection: DbConnection, group: list[WriteUnit], now: int) -> None:
    for unit in group:
        _run_unit_in_savepoint(connection, unit, Tx(connection, now))


def _run_unit_in_savepoint(connection: DbConnection, unit: WriteUnit, tx: Tx) -> None:
    connection.control("savepoint unit")
    try:
        _call(unit, tx)
        tx.flush()
    except BaseException as error:
        if isinstance(error, StoreConflict | LockContended) or (
            isinstance(error, StoreUnavailable) and not connection.in_transaction()
        ):
            raise  # the database has aborted the whole transaction, so there is no savepoint to return to
        if isinstance(error, StoreUnavailable):
            # the driver's message is not passed on to the caller
            log.error("database: statement failed error=%s", error)
        unit.error, unit.hooks, unit.added = _without_frames(error), [], []
        connection.control("rollback to savepoint unit")
    # Needed after a rollback to the savepoint too, because that keeps the savepoint itself.
    connection.control("release savepoint unit")


def _without_frames(error: BaseException) -> BaseException:
    """Return an expected error without its traceback, whose frames refer to the unit, and the unit to the error."""
    return error.with_traceback(None) if isinstance(error, StentorError) else error


def _call(unit: WriteUnit, tx: Tx) -> None:
    unit.result = unit.fn(tx)
    unit.hooks, unit.added = tx.hooks, tx.added


def fail_group(group: list[WriteUnit], error: StoreUnavailable) -> None:
    """Set the error on every unit that has none yet, after the commit failed or its outcome is unknown."""
    for unit in group:
        # A separate exception for each: one that is raised in many tasks would collect all their tracebacks.
        unit.error = unit.error or copy.copy(error)
        unit.hooks = []


def resolve_group(group: list[WriteUnit]) -> None:
    """Resolve the future of each unit on its event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteUnit]] = {}
    for unit in group:
        by_loop.setdefault(unit.loop, []).append(unit)
    for loop, units in by_loop.items():
        try:
            # One call for all units, because each one wakes the loop with a system call.
            loop.call_soon_threadsafe(_resolve, units)
        except RuntimeError:
            # The loop was closed while the transaction ran; the commit is valid, but no caller is left.
            log.warning("database: event loop closed, results dropped count=%d", len(units))


def _resolve(units: list[WriteUnit]) -> None:
    for unit in units:
        # Before the cancellation check: a change is announced even if its caller is gone.
        for hook in unit.hooks if unit.on_end is None else [*unit.hooks, unit.on_end]:
            try:
                hook()
            except Exception:
                # The commit is done and the caller must learn that; the reconciler repairs what the hook missed.
                log.exception("database: after-commit hook failed")
        if unit.future.cancelled():
            continue
        if unit.error is None:
            unit.future.set_result(unit.result)
        else:
            unit.future.set_exception(unit.error)
