"""SQL of messages: rows in, rows out, the guarded changes of their status, and the metrics of the queue.

Writes no events: that is up to `lifecycle`, which calls these functions in its transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from prometheus_client.core import Metric

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRow
from stentor.core.jsontext import JsonObject
from stentor.core.metrics import gauge_family
from stentor.domains.atp.model import PRIORITIES, AtpHeader
from stentor.domains.messaging.model import MessageStatus, QueueSnapshot, StoredMessage

TABLE = "atp_messages"
_FIELDS = StoredMessage.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_KEY = "tenant = :tenant and message_id = :message_id"
# The fence: a processor whose claim was given to another updates no row.
_CLAIMED = f"{_KEY} and status = 'executing' and epoch = :epoch"
_ONE = Sql(f"select {_COLUMNS} from atp_messages where {_KEY}")
_INSERT = Sql.insert("atp_messages", (*_FIELDS, "priority"))
_NEXT = Sql(
    """select tenant, message_id, epoch from atp_messages where status = 'queued' and due_at <= :now
    order by priority, created_at, message_id limit 1"""
)
# One cheap query per tick; only what it reports is then read in full.
_PENDING = Sql(
    """select exists (select 1 from atp_messages where status = 'queued' and due_at <= :now),
        exists (select 1 from atp_messages where status = 'executing' and task_id is null and lease_until < :now),
        exists (select 1 from atp_messages where status = 'executing' and task_id is not null and deadline_at < :now),
        exists (select 1 from atp_messages m join tasks t on t.tenant = m.tenant and t.task_id = m.task_id
            where m.status = 'executing' and m.task_id is not null and t.completion_time is not null)"""
)
_CLAIM = Sql(
    f"""update atp_messages set status = 'executing', epoch = epoch + 1, lease_until = :lease_until,
        updated_at = :now, head_id = :head_id
    where {_KEY} and status = 'queued' and epoch = :epoch returning {_COLUMNS}"""
)
_WAIT = Sql(
    f"""update atp_messages set task_id = :task_id, deadline_at = :deadline_at, lease_until = null, route = :route,
        response = :response, updated_at = :now where {_CLAIMED}"""
)
_FINISH = Sql(
    f"""update atp_messages set status = :status, response = :response, route = coalesce(:route, route),
        lease_until = null, deadline_at = null, updated_at = :now, head_id = :head_id where {_CLAIMED}"""
)
# Not a message that waits for its task: its action is done, only the response is missing.
_REQUEUE = Sql(
    f"""update atp_messages set status = 'queued', lease_until = null, updated_at = :now, head_id = :head_id
    where {_CLAIMED} and task_id is null"""
)
_OPEN = f"{_KEY} and status in ('queued', 'executing')"
_OPEN_HEAD = Sql(f"select head_id from atp_messages where {_OPEN}")
_FAIL_MALFORMED = Sql(
    f"""update atp_messages set status = 'failed', response = :response, lease_until = null, deadline_at = null,
        updated_at = :now, head_id = :head_id where {_KEY} and status = 'executing'"""
)
_CLAIM_MALFORMED = Sql(
    f"""update atp_messages set status = 'executing', epoch = epoch + 1, lease_until = :now
    where {_KEY} and status = 'queued'"""
)
_RENEW = Sql(f"update atp_messages set lease_until = :lease_until where {_CLAIMED} and task_id is null")
# A lease that ends later than a new one was written while the clock was ahead.
_SHORTEN = Sql(
    """update atp_messages set lease_until = :until
    where status = 'executing' and task_id is null and lease_until > :until"""
)
_DUE_NOW = Sql(
    """update atp_messages set due_at = :now
    where status in ('queued', 'executing') and due_at > :now and due_at = created_at"""
)
_EXPIRED = Sql(
    f"""select {_COLUMNS} from atp_messages where status = 'executing' and task_id is null
        and lease_until < :before limit :limit"""
)
_OVERDUE = Sql(
    f"""select {_COLUMNS} from atp_messages
    where status = 'executing' and task_id is not null and deadline_at < :now limit :limit"""
)
_IS_OVERDUE = Sql(f"select 1 from atp_messages where {_KEY} and status = 'executing' and deadline_at < :now")
_WAITING = Sql(
    f"""select {_COLUMNS} from atp_messages
    where tenant = :tenant and task_id = :task_id and status = 'executing'"""
)
_ENDED_TASKS = Sql(
    """select m.tenant, m.task_id from atp_messages m join tasks t on t.tenant = m.tenant and t.task_id = m.task_id
    where m.status = 'executing' and m.task_id is not null and t.completion_time is not null limit :limit"""
)
_AWAITED_TASKS = Sql(
    "select tenant, task_id from atp_messages where status = 'executing' and task_id is not null limit :limit"
)
_COUNTS = Sql(
    "select priority, count(*) from atp_messages where tenant = :tenant and status = 'queued' group by priority"
)
_OLDEST = Sql(
    """select message_id, priority, created_at from atp_messages where tenant = :tenant and status = 'queued'
    order by created_at, message_id limit 1"""
)
_LAST_WRITE = Sql(
    """select metadata from events where parent_id = :parent and event_type = 'memory_written'
    order by event_id desc limit 1"""
)
_METRICS_QUEUED = Sql("select count(*), min(due_at) from atp_messages where status = 'queued'")
_METRICS_EXECUTING = Sql("select count(*) from atp_messages where status = 'executing'")
_HEADER_DECODER = msgspec.json.Decoder(AtpHeader)
_PRINCIPAL_DECODER = msgspec.json.Decoder(Principal)


def insert(tx: Tx, stored: StoredMessage) -> None:
    params = {name: getattr(stored, name) for name in _FIELDS}
    params["header"] = jsontext.dump(stored.header)
    params["principal"] = jsontext.dump(stored.principal)
    tx.run(_INSERT, **params, priority=stored.priority)


def find(tx: Tx, tenant: str, message_id: str) -> StoredMessage | None:
    row = tx.row(_ONE, tenant=tenant, message_id=message_id)
    return _stored(row) if row else None


def claim_next(tx: Tx, lease: int, head_id: str) -> StoredMessage | None:
    """Claim the most urgent and oldest due message; return None if there is none or another process claimed it.

    `lease` in microseconds.
    """
    row = tx.row(_NEXT, now=tx.now)
    if row is None:
        return None
    tenant, message_id, epoch = row
    return claim(tx, tenant, message_id, epoch, lease, head_id)


def claim(tx: Tx, tenant: str, message_id: str, epoch: int, lease: int, head_id: str) -> StoredMessage | None:
    """Claim a queued message; return None if another process was faster. `lease` in microseconds."""
    key = {"tenant": tenant, "message_id": message_id, "epoch": epoch}
    rows = tx.rows(_CLAIM, **key, now=tx.now, lease_until=tx.now + lease, head_id=head_id)
    return _stored(rows[0]) if rows else None


def wait_for_task(
    tx: Tx, stored: StoredMessage, task_id: str, deadline: int | None, route: JsonObject, response: JsonObject | None
) -> bool:
    """Make a message wait for a task; return False if the epoch is not its current one."""
    params = _claim_key(stored) | {"task_id": task_id, "deadline_at": deadline}
    return tx.run(_WAIT, **params, now=tx.now, route=jsontext.dump(route), response=_json(response)) == 1


def finish(
    tx: Tx, stored: StoredMessage, status: MessageStatus, response: JsonObject, route: JsonObject | None, head_id: str
) -> bool:
    """End a message; return False if the epoch is not its current one. A route of None keeps the stored one."""
    params = _claim_key(stored) | {"status": status, "head_id": head_id}
    return tx.run(_FINISH, **params, now=tx.now, response=jsontext.dump(response), route=_json(route)) == 1


def requeue(tx: Tx, stored: StoredMessage, head_id: str) -> bool:
    """Requeue a message that waits for no task; return False if the epoch is not its current one."""
    return tx.run(_REQUEUE, **_claim_key(stored), now=tx.now, head_id=head_id) == 1


def fail_malformed(tx: Tx, tenant: str, message_id: str, response: JsonObject, head_id: str) -> str | None:
    """End a message that cannot be read; return its last event before, None if it has ended."""
    row = tx.row(_OPEN_HEAD, tenant=tenant, message_id=message_id)
    if row is None:
        return None
    key = {"tenant": tenant, "message_id": message_id, "now": tx.now}
    # Only a claimed message may end.
    tx.run(_CLAIM_MALFORMED, **key)
    tx.run(_FAIL_MALFORMED, **key, response=jsontext.dump(response), head_id=head_id)
    return str(row[0])


def renew_leases(tx: Tx, messages: list[StoredMessage], lease: int) -> None:
    """Renew the leases of claimed messages to `lease` microseconds from now."""
    tx.many(_RENEW, [_claim_key(stored) | {"lease_until": tx.now + lease} for stored in messages])


def bring_back(tx: Tx, lease: int) -> None:
    """After the clock was set back: let no lease end later than `lease` microseconds from now, and no message wait that
    was due at once.
    """
    tx.run(_SHORTEN, until=tx.now + lease)
    tx.run(_DUE_NOW, now=tx.now)


def check_pending(tx: Tx) -> tuple[bool, bool, bool, bool]:
    """Return whether any message is due, has an expired lease, is overdue, or waits for a task that has ended."""
    due, expired, overdue, ended = tx.rows(_PENDING, now=tx.now)[0]
    return bool(due), bool(expired), bool(overdue), bool(ended)


def list_expired(tx: Tx, before: int, limit: int) -> list[StoredMessage]:
    """Return claimed messages whose lease ended before a time."""
    return [_stored(row) for row in tx.rows(_EXPIRED, before=before, limit=limit)]


def list_overdue(tx: Tx, limit: int) -> list[StoredMessage]:
    """Return messages whose deadline has passed while they wait for their task."""
    return [_stored(row) for row in tx.rows(_OVERDUE, now=tx.now, limit=limit)]


def is_overdue(tx: Tx, stored: StoredMessage) -> bool:
    """Return whether the deadline of a message has passed, which may have changed since it was read."""
    return tx.row(_IS_OVERDUE, tenant=stored.tenant, message_id=stored.message_id, now=tx.now) is not None


def list_waiting_for_task(tx: Tx, tenant: str, task_id: str) -> list[StoredMessage]:
    """Return the messages that wait for a task."""
    return [_stored(row) for row in tx.rows(_WAITING, tenant=tenant, task_id=task_id)]


def list_ended_tasks(tx: Tx, limit: int) -> list[tuple[str, str]]:
    """Return tenant and id of the ended tasks that messages still wait for."""
    return [(row[0], row[1]) for row in tx.rows(_ENDED_TASKS, limit=limit)]


def list_awaited_tasks(tx: Tx, limit: int) -> list[tuple[str, str]]:
    """Return tenant and id of the tasks that messages wait for."""
    return [(row[0], row[1]) for row in tx.rows(_AWAITED_TASKS, limit=limit)]


def read_queue(tx: Tx, tenant: str) -> QueueSnapshot:
    """Return the number of queued messages per priority, zeros included, and the oldest one."""
    queued = {PRIORITIES[row[0]]: int(row[1]) for row in tx.rows(_COUNTS, tenant=tenant)}
    counts = {name: queued.get(name, 0) for name in PRIORITIES}
    row = tx.row(_OLDEST, tenant=tenant)
    oldest = (row[0], PRIORITIES[row[1]], row[2]) if row else None
    return QueueSnapshot(sum(counts.values()), oldest, counts)


def find_memory_write(tx: Tx, parent: str) -> JsonObject | None:
    """Return the metadata of the last memory write with the given parent event, or None."""
    row = tx.row(_LAST_WRITE, parent=parent)
    return dict(jsontext.load(row[0])) if row else None


def collect_metrics(tx: Tx) -> Iterable[Metric]:
    """Yield the metrics of the message queue, over all tenants."""
    depth, due = tx.rows(_METRICS_QUEUED)[0]
    oldest_seconds = 0.0 if due is None else max(0, tx.now - int(due)) / SECOND
    executing = int(tx.rows(_METRICS_EXECUTING)[0][0])
    yield gauge_family("stentor_message_queue_depth", "Queued ATP messages, scheduled ones included.", int(depth))
    yield gauge_family(
        "stentor_message_oldest_seconds", "Seconds since the oldest queued ATP message was due.", oldest_seconds
    )
    yield gauge_family("stentor_messages_executing", "ATP messages that execute or wait for their task.", executing)


def _claim_key(stored: StoredMessage) -> dict[str, Any]:
    return {"tenant": stored.tenant, "message_id": stored.message_id, "epoch": stored.epoch}


def _json(value: JsonObject | None) -> str | None:
    return None if value is None else jsontext.dump(value)


def _stored(row: tuple[Any, ...]) -> StoredMessage:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["header"] = _HEADER_DECODER.decode(values["header"])
        values["principal"] = _PRINCIPAL_DECODER.decode(values["principal"])
        for optional in ("route", "response"):
            if values[optional] is not None:
                values[optional] = jsontext.load(values[optional])
        return StoredMessage(**values)
    except (msgspec.MsgspecError, TypeError) as error:
        text = f"The stored message {values['message_id']!r} is malformed: {error}."
        raise CorruptRow(text, TABLE, (values["tenant"], values["message_id"])) from error
