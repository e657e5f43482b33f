"""SQL of limits by key: what runs, what has started, and the tasks that are parked until a slot is free.

A parked task stays `queued` but is outside the indexes that claims read, so it costs the claims of others nothing.
"""

from __future__ import annotations

from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.tasks.model import MAX_LIMIT_SECONDS, QueuedTask, TaskLimit
from stentor.domains.tasks.queues.queue_store import QUEUED_COLUMNS, queued_from_row

CHECK_EVERY_US = SECOND
MAX_PERIODS = 100
"""Different periods of one key that a claim and a search for free slots consider, so that none takes long."""
_KEY = "tenant = :tenant and limit_key = :key"
# `is not null` says nothing new, but without it SQLite does not use the partial index.
_COUNT_RUNNING = Sql(f"select count(*) from tasks where {_KEY} and status = 'executing' and limit_key is not null")
_COUNT_STARTS = Sql(f"select count(*) from limit_starts where {_KEY} and started_at > :since")
_START_THAT_FILLS = Sql(
    f"select started_at from limit_starts where {_KEY} order by started_at desc limit 1 offset :skipped"
)
_PARKED = f"{_KEY} and status = 'queued' and parked = 1"
# In the next longer period the highest `max`: one lookup in the index for each period, however many tasks are parked.
_NEXT_PERIOD = Sql(
    f"""select limit_seconds, limit_max from tasks where {_PARKED} and limit_seconds > :after
    order by limit_seconds, limit_max desc limit 1"""
)
# With `+` the index in the order of the queue is used, and not the one by period, whose rows would have to be sorted.
_WITH_ROOM = f"{_PARKED} and +limit_seconds = :seconds and +limit_max > :used"
_HAS_OLDER = Sql(
    f"""select 1 from tasks where {_WITH_ROOM}
        and (priority, queued_at, task_id) < (:priority, :queued_at, :task_id) limit 1"""
)
_PARK = Sql(
    """update tasks set parked = 1, limit_key = :key, limit_max = :max, limit_seconds = :seconds
    where tenant = :tenant and task_id = :task_id and status = 'queued' and epoch = :epoch"""
)
# Keep the earlier of two times.
_SCHEDULE_CHECK = Sql(
    """insert into parked_limits (tenant, limit_key, check_at) values (:tenant, :key, :check_at)
    on conflict (tenant, limit_key) do update set check_at = excluded.check_at
    where parked_limits.check_at > excluded.check_at"""
)
_SET_KEY = Sql(
    """update tasks set limit_key = :key, parked = 0
    where tenant = :tenant and task_id = :task_id and status = 'executing' and epoch = :epoch"""
)
# One row for each start: a rate counts attempts, so a retry counts again.
_RECORD_START = Sql(
    """insert into limit_starts (tenant, limit_key, started_at, task_id, epoch)
    values (:tenant, :key, :now, :task_id, :epoch)"""
)
_LIST_WITH_ROOM = Sql(
    f"select {QUEUED_COLUMNS} from tasks where {_WITH_ROOM} order by priority, queued_at, task_id limit :limit"
)
_UNPARK = Sql("update tasks set parked = 0 where tenant = :tenant and task_id = :task_id and status = 'queued'")
_IS_UNPARKED = Sql(
    "select 1 from tasks where tenant = :tenant and task_id = :task_id and status = 'queued' and parked = 0"
)
_HAS_PARKED = Sql(f"select 1 from tasks where {_PARKED} limit 1")
_LIST_DUE = Sql("select tenant, limit_key from parked_limits where check_at <= :now order by check_at limit :limit")
_SET_CHECK = Sql(f"update parked_limits set check_at = :check_at where {_KEY}")
_DELETE_CHECK = Sql(f"delete from parked_limits where {_KEY}")
_BRING_BACK_STARTS = Sql("update limit_starts set started_at = :now where started_at > :now")
_BRING_BACK_CHECKS = Sql("update parked_limits set check_at = :now where check_at > :now")
_PURGE_STARTS = Sql("delete from limit_starts where started_at < :before")


def count_used(tx: Tx, tenant: str, limit: TaskLimit) -> int:
    """Return how many tasks with the key run, or for a rate how many started in its last `per_seconds`."""
    if limit.per_seconds is None:
        return _count(tx, _COUNT_RUNNING, tenant=tenant, key=limit.key)
    since = tx.now - limit.per_seconds * SECOND
    return _count(tx, _COUNT_STARTS, tenant=tenant, key=limit.key, since=since)


def has_older_parked(tx: Tx, queued: QueuedTask, key: str) -> bool:
    """Return whether a parked task of the key with a slot by its own limit comes before this one."""
    order = {"priority": queued.priority, "queued_at": queued.queued_at, "task_id": queued.task_id}
    for highest in list_parked_limits(tx, queued.tenant, key):
        used = count_used(tx, queued.tenant, highest)
        if used < highest.max and tx.row(_HAS_OLDER, **_room(queued.tenant, highest, used), **order):
            return True
    return False


def park(tx: Tx, queued: QueuedTask, limit: TaskLimit, check_at: int) -> None:
    """Take a task out of the queue until a slot is free; check at `check_at`, in microseconds."""
    key = {"tenant": queued.tenant, "key": limit.key}
    seconds = limit.per_seconds or 0
    if tx.run(_PARK, task_id=queued.task_id, epoch=queued.epoch, max=limit.max, seconds=seconds, **key):
        tx.run(_SCHEDULE_CHECK, check_at=check_at, **key)


def record_start(tx: Tx, tenant: str, task_id: str, epoch: int, limit: TaskLimit) -> None:
    """Count a task that has just been claimed."""
    tx.run(_SET_KEY, tenant=tenant, task_id=task_id, epoch=epoch, key=limit.key)
    if limit.per_seconds is not None:
        tx.run(_RECORD_START, tenant=tenant, key=limit.key, now=tx.now, task_id=task_id, epoch=epoch)


def find_check_time(tx: Tx, tenant: str, limit: TaskLimit) -> int:
    """Return when to check again, in microseconds: soon, or when the start that fills a rate is old enough."""
    if limit.per_seconds is None:
        return tx.now + CHECK_EVERY_US
    row = tx.row(_START_THAT_FILLS, tenant=tenant, key=limit.key, skipped=limit.max - 1)
    room_at = 0 if row is None else int(row[0]) + limit.per_seconds * SECOND
    return room_at if room_at > tx.now else tx.now + CHECK_EVERY_US


def list_parked_limits(tx: Tx, tenant: str, key: str) -> list[TaskLimit]:
    """List the periods of a key's parked tasks, at most `MAX_PERIODS`, each with the highest `max` of its tasks."""
    limits, after = list[TaskLimit](), -1
    while len(limits) < MAX_PERIODS and (row := tx.row(_NEXT_PERIOD, tenant=tenant, key=key, after=after)):
        after, highest = row
        limits.append(TaskLimit(key, highest, after or None))
    return limits


def list_startable(tx: Tx, tenant: str, limit: TaskLimit, used: int, count: int) -> list[QueuedTask]:
    """List the parked tasks of the limit's key and period whose own `max` is above `used`, most urgent first."""
    return [queued_from_row(row) for row in tx.rows(_LIST_WITH_ROOM, **_room(tenant, limit, used), limit=count)]


def unpark(tx: Tx, queued: QueuedTask) -> None:
    tx.run(_UNPARK, tenant=queued.tenant, task_id=queued.task_id)


def is_unparked(tx: Tx, queued: QueuedTask) -> bool:
    """Return whether a task that was put back into the queue is still there."""
    return tx.row(_IS_UNPARKED, tenant=queued.tenant, task_id=queued.task_id) is not None


def has_parked(tx: Tx, tenant: str, key: str) -> bool:
    return tx.row(_HAS_PARKED, tenant=tenant, key=key) is not None


def list_due(tx: Tx, count: int) -> list[tuple[str, str]]:
    """List tenant and key of the limits whose parked tasks must be checked now."""
    return [(tenant, key) for tenant, key in tx.rows(_LIST_DUE, now=tx.now, limit=count)]


def set_check(tx: Tx, tenant: str, key: str, check_at: int | None) -> None:
    """Schedule the next check of a key's parked tasks, in microseconds; None if none is left."""
    if check_at is None:
        tx.run(_DELETE_CHECK, tenant=tenant, key=key)
    else:
        tx.run(_SET_CHECK, tenant=tenant, key=key, check_at=check_at)


def bring_back(tx: Tx) -> None:
    """After the clock was set back: count starts in the future as made now, and check all keys now."""
    tx.run(_BRING_BACK_STARTS, now=tx.now)
    tx.run(_BRING_BACK_CHECKS, now=tx.now)


def purge_starts(tx: Tx) -> None:
    """Delete the starts that no rate can count any more."""
    tx.run(_PURGE_STARTS, before=tx.now - MAX_LIMIT_SECONDS * SECOND)


def _room(tenant: str, limit: TaskLimit, used: int) -> dict[str, str | int]:
    return {"tenant": tenant, "key": limit.key, "seconds": limit.per_seconds or 0, "used": used}


def _count(tx: Tx, sql: Sql, **params: str | int) -> int:
    row = tx.row(sql, **params)
    assert row is not None
    return int(row[0])
