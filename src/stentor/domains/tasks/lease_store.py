"""SQL of leases and timeouts after the clock was set, back or ahead. Heartbeats renew leases in `store`."""

from __future__ import annotations

from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx

# The claims whose last sign of life is in the future: what was left of lease and timeout then is left from now on.
_BRING_BACK = Sql(
    f"""update tasks set lease_until = lease_until - (heartbeat_at - :now),
        deadline_at = deadline_at - (heartbeat_at - :now), heartbeat_at = :now
    where status = 'executing' and heartbeat_at > :now + {SECOND}"""
)
# No more can be left of a timeout in the queue than the timeout.
_LAST_DEADLINE = f":now + cast(queue_timeout_seconds as bigint) * {SECOND}"
_BRING_BACK_QUEUED = Sql(
    f"""update tasks set queue_deadline_at = {_LAST_DEADLINE}
    where status = 'queued' and queue_deadline_at is not null and queue_deadline_at > {_LAST_DEADLINE}"""
)
# Of the processes that notice a jump, the first one. A time in the future is from before the clock was set back.
_NOTICE_JUMP = Sql(
    """insert into clock_jumps (id, noticed_at) values (1, :now)
    on conflict (id) do update set noticed_at = excluded.noticed_at
    where clock_jumps.noticed_at <= :since or clock_jumps.noticed_at > excluded.noticed_at"""
)
# What began before the jump gets its length; a heartbeat after it has its time already, the timeout has not.
_FOLLOW_JUMP = (
    Sql(
        """update tasks set lease_until = lease_until + :jump, heartbeat_at = heartbeat_at + :jump
        where status = 'executing' and heartbeat_at <= :before"""
    ),
    Sql("update tasks set deadline_at = deadline_at + :jump where status = 'executing' and start_time <= :before"),
    Sql(
        """update tasks set queue_deadline_at = queue_deadline_at + :jump
        where status = 'queued' and queue_deadline_at is not null and queued_at <= :before"""
    ),
    # Messages in the mode direct, which wait for their tasks.
    Sql(
        """update atp_messages set deadline_at = deadline_at + :jump
        where status = 'executing' and deadline_at is not null and updated_at <= :before"""
    ),
)


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
