"""SQL of claims, and of leases, timeouts and deadlines: renewal, what has expired, repair after the clock was set."""

from __future__ import annotations

from collections.abc import Sequence

from stentor.core.clock import SECOND
from stentor.core.db import RowsSql, Sql, Tx
from stentor.core.db.sql import Row
from stentor.domains.atp.text_format import content_for_agent
from stentor.domains.tasks.model import QueuedTask, Task, TaskClaim
from stentor.domains.tasks.rows import FIELDS, decode_claimed, task_from_row
from stentor.domains.tasks.store import TaskRef

_COLUMNS = ", ".join(FIELDS)
# Fencing: of two claims that read the same row, one finds the epoch that it read and increments it; the other updates
# nothing. `coalesce` keeps PostgreSQL from an index of queued tasks, in which it reads the whole queue of the agent: it
# prefers that one if the queue was short when the statement was planned.
_CLAIM = f"""update tasks set status = 'executing', epoch = tasks.epoch + 1, start_time = :now,
        lease_until = :lease_until, first_started_at = coalesce(tasks.first_started_at, :now), heartbeat_at = :now,
        deadline_at = :now + cast(tasks.timeout_seconds as bigint) * {SECOND}, head_id = given.new_head
    from given where tasks.tenant = given.tenant and tasks.task_id = given.task_id
        and coalesce(tasks.status, '') = 'queued' and tasks.epoch = cast(given.epoch as bigint)
        and coalesce(tasks.assigned_agent, '') = given.agent_id
    returning tasks.tenant, tasks.task_id, tasks.head_id, tasks.epoch, type, input, runtime_kind, created_at,
        timeout_seconds, required_capabilities, metadata, submitted_by, retry_epoch"""
_CLAIM_ALL = RowsSql(("tenant", "task_id", "epoch", "agent_id", "new_head"), _CLAIM)
# Without the table of given rows, which takes SQLite a third of the time.
_CLAIM_ONE = Sql(_CLAIM.replace("from given", "").replace("given.", ":"))
CLAIMS_PER_STATEMENT = 16
"""For more rows than these PostgreSQL reads a small table completely, and keeps that plan when the table has grown."""
_RENEW = Sql(
    """update tasks set lease_until = :lease_until, heartbeat_at = :now
    where tenant = :tenant and task_id = :task_id and status = 'executing' and epoch = :epoch"""
)
_LIST_OVERDUE = Sql(
    f"""select {_COLUMNS} from tasks
    where status = 'executing' and (lease_until < :until or deadline_at < :until) limit :limit"""
)
_LIST_QUEUE_EXPIRED = Sql(
    f"""select {_COLUMNS} from tasks
    where status = 'queued' and queue_deadline_at is not null and queue_deadline_at < :until limit :limit"""
)
# The index holds only tasks with a deadline that have not ended.
_WITH_DEADLINE = "end_by is not null and completion_time is null"
_NEXT_DEADLINE = Sql(f"select min(end_by) from tasks where {_WITH_DEADLINE}")
_LIST_LATE = Sql(
    f"select tenant, task_id from tasks where {_WITH_DEADLINE} and end_by < :now order by end_by limit :limit"
)
_LIST_EXECUTING_IN_PROCESS = Sql(
    f"select {_COLUMNS} from tasks where status = 'executing' and runtime_kind <> 'worker' limit :limit"
)
# The claims whose last heartbeat is in the future: the lease and timeout that were left then are left from now on.
_BRING_BACK = Sql(
    f"""update tasks set lease_until = lease_until - (heartbeat_at - :now),
        deadline_at = deadline_at - (heartbeat_at - :now), heartbeat_at = :now
    where status = 'executing' and heartbeat_at > :now + {SECOND}"""
)
# The rest of a queue timeout cannot be longer than the timeout itself.
_LAST_DEADLINE = f":now + cast(queue_timeout_seconds as bigint) * {SECOND}"
_BRING_BACK_QUEUED = Sql(
    f"""update tasks set queue_deadline_at = {_LAST_DEADLINE}
    where status = 'queued' and queue_deadline_at is not null and queue_deadline_at > {_LAST_DEADLINE}"""
)
# Only the first process that notices a jump applies it. A time in the future is from before the clock was set back.
_NOTICE_JUMP = Sql(
    """insert into clock_jumps (id, noticed_at) values (1, :now)
    on conflict (id) do update set noticed_at = excluded.noticed_at
    where clock_jumps.noticed_at <= :since or clock_jumps.noticed_at > excluded.noticed_at"""
)
# What began before the jump gets its length; a heartbeat after it has its time already, the timeout has not. When it
# began follows from its deadline, which moves with the clock: `start_time` is in the future if that was set back.
_FOLLOW_JUMP = (
    Sql(
        """update tasks set lease_until = lease_until + :jump, heartbeat_at = heartbeat_at + :jump
        where status = 'executing' and heartbeat_at <= :before"""
    ),
    Sql(
        f"""update tasks set deadline_at = deadline_at + :jump
        where status = 'executing' and deadline_at - cast(timeout_seconds as bigint) * {SECOND} <= :before"""
    ),
    Sql(
        f"""update tasks set queue_deadline_at = queue_deadline_at + :jump
        where status = 'queued' and queue_deadline_at is not null
        and queue_deadline_at - cast(queue_timeout_seconds as bigint) * {SECOND} <= :before"""
    ),
    # Messages in the mode direct, which wait for their tasks.
    Sql(
        """update atp_messages set deadline_at = deadline_at + :jump
        where status = 'executing' and deadline_at is not null and updated_at <= :before"""
    ),
)


def claim_all(tx: Tx, tasks: Sequence[tuple[QueuedTask, str]], lease: int) -> dict[TaskRef, TaskClaim]:
    """Claim queued tasks, given with their new heads, for `lease` microseconds. None may be given twice.

    Those that were claimed, reassigned or cancelled already are left out. Raises CorruptRow.
    """
    queued_by_ref = {(queued.tenant, queued.task_id): queued for queued, _ in tasks}
    given = [(queued.tenant, queued.task_id, queued.epoch, queued.agent_id, new_head) for queued, new_head in tasks]
    times = {"now": tx.now, "lease_until": tx.now + lease}
    rows = list[Row]()
    if len(given) == 1:
        rows = tx.rows(_CLAIM_ONE, **dict(zip(_CLAIM_ALL.columns, given[0], strict=True)), **times)
    else:
        for start in range(0, len(given), CLAIMS_PER_STATEMENT):
            for sql, values in _CLAIM_ALL.padded_chunks(given[start : start + CLAIMS_PER_STATEMENT]):
                rows += tx.rows(sql, **values, **times)
    claims = (_claim_from_row(queued_by_ref[row[0], row[1]], row[2:], **times) for row in rows)
    return {(claim.tenant, claim.task_id): claim for claim in claims}


def _claim_from_row(queued: QueuedTask, row: Row, now: int, lease_until: int) -> TaskClaim:
    head, epoch, task_type, text, runtime_kind, created_at, timeout, *structured, submitted_by, retry_epoch = row
    content, capabilities, metadata = decode_claimed(queued, text, *structured)
    return TaskClaim(
        queued.tenant,
        queued.task_id,
        epoch,
        task_type,
        content_for_agent(content),
        queued.agent_id,
        runtime_kind,
        created_at,
        now,
        timeout,
        lease_until,
        head,
        capabilities,
        metadata,
        submitted_by,
        retry_epoch,
    )


def renew_lease(tx: Tx, tenant: str, task_id: str, epoch: int, lease: int) -> bool:
    """Renew a lease for `lease` microseconds from now; False if the claim no longer holds it."""
    until = tx.now + lease
    return tx.run(_RENEW, tenant=tenant, task_id=task_id, epoch=epoch, lease_until=until, now=tx.now) == 1


def list_overdue(tx: Tx, until: int, limit: int) -> list[Task]:
    """List executing tasks whose lease or timeout expires before the time `until`."""
    return [task_from_row(row) for row in tx.rows(_LIST_OVERDUE, until=until, limit=limit)]


def list_queue_expired(tx: Tx, until: int, limit: int) -> list[Task]:
    """List queued tasks whose queue timeout expires before the time `until`."""
    return [task_from_row(row) for row in tx.rows(_LIST_QUEUE_EXPIRED, until=until, limit=limit)]


def list_executing_in_process(tx: Tx, limit: int) -> list[Task]:
    """List executing tasks that run inside a service process."""
    return [task_from_row(row) for row in tx.rows(_LIST_EXECUTING_IN_PROCESS, limit=limit)]


def next_deadline(tx: Tx) -> int | None:
    """Return the earliest deadline of the tasks that have not ended; None without one."""
    row = tx.row(_NEXT_DEADLINE)
    # A malformed one must not hold up all others: SQLite has any value in any column.
    return row[0] if row and isinstance(row[0], int) else None


def list_late(tx: Tx, limit: int) -> list[TaskRef]:
    """Return tasks whose deadline has passed and that have not ended, the latest last."""
    return [(tenant, task_id) for tenant, task_id in tx.rows(_LIST_LATE, now=tx.now, limit=limit)]


def bring_back_leases(tx: Tx) -> int:
    """Shorten the leases and timeouts that were written while the clock was ahead; return how many there were."""
    return tx.run(_BRING_BACK, now=tx.now) + tx.run(_BRING_BACK_QUEUED, now=tx.now)


def follow_jump(tx: Tx, since: int, now: int, jump: int) -> int:
    """Give leases and timeouts the time by which the clock jumped ahead; return how many changed.

    It jumped between the times `since` and `now`, in microseconds. 0 if another process has done it.
    """
    if not tx.run(_NOTICE_JUMP, now=now, since=since):
        return 0
    return sum(tx.run(sql, jump=jump, before=now - jump) for sql in _FOLLOW_JUMP)
