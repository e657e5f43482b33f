"""SQL of updates, checkpoints and rollbacks.

A malformed row of an update raises CorruptRecord. The counts of pages are here too.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Params
from stentor.core.errors import CorruptRecord
from stentor.core.jsontext import JsonObject
from stentor.domains.governance.model import Changes, Checkpoint, Rollback, TierBasis, Update, UpdateFilter

_FIELDS = Update.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_MUTABLE = (
    *("status", "head_id", "updated_at", "decided_by", "decision", "approved_at", "rejected_at", "deployed_at"),
    *("rolled_back_at", "checkpoint_id", "test_results", "notes"),
)
_STRUCTURES = {"changes": Changes, "basis": TierBasis, "decision": JsonObject, "test_results": JsonObject}

_FIND_UPDATE = Sql(f"select {_COLUMNS} from governance_updates where tenant = :tenant and update_id = :update_id")
_INSERT_UPDATE = Sql.insert("governance_updates", _FIELDS)
# Fenced by status and head_id: every change appends an event, so a concurrent one has another head.
_CHANGE_UPDATE = Sql(
    f"""update governance_updates set {", ".join(f"{name} = :{name}" for name in _MUTABLE)}
    where tenant = :tenant and update_id = :update_id and status = :from_status and head_id = :from_head"""
)
_WHERE = """tenant = :tenant and (:status = '' or status = :status) and (:tier = 0 or tier = :tier)
    and (:agent_id = '' or agent_id = :agent_id)"""
_LIST_UPDATES = Sql(
    f"""select {_COLUMNS} from governance_updates where {_WHERE}
        and (submitted_at < :before or (submitted_at = :before and update_id < :before_id))
    order by submitted_at desc, update_id desc limit :limit"""
)
_LIST_OLDEST_UPDATES = Sql(
    f"""select {_COLUMNS} from governance_updates where {_WHERE}
    order by submitted_at, update_id limit :limit offset :offset"""
)
_COUNT_UPDATES = Sql(
    f"""select count(*), coalesce(sum(case when status = 'submitted' and approval_deadline < :now then 1 else 0 end), 0)
    from governance_updates where {_WHERE}"""
)
_TO_DEPLOY = Sql(
    """select tenant, update_id from governance_updates
    where patched = 1 and (status = 'approved' or (status = 'deploying' and updated_at <= :until))
    order by updated_at limit :limit"""
)
_LIST_UNDONE = Sql(
    f"""select {_COLUMNS} from governance_updates
    where tenant = :tenant and agent_id = :agent_id and status in ('deployed', 'deploying')
        and (checkpoint_id = :checkpoint_id or named_checkpoint = :checkpoint_id or update_id = :update_id
            or (patched = 1 and (deployed_at is null or deployed_at >= :since)))"""
)
_COUNT_DECISIONS = Sql(
    """select coalesce(sum(case when status in ('approved', 'deploying', 'deployed') then 1 else 0 end), 0),
        coalesce(sum(case when status = 'submitted' then 0 else 1 end), 0)
    from governance_updates where tenant = :tenant and agent_id = :agent_id"""
)
_MAX_TIME, _MAX_ID = 2**62, "\x7f"
"""The start of the first page: later than every time, and greater than every id."""
_COUNT_BY_STATUS = Sql(
    """select status, tier, count(*),
        coalesce(sum(case when status = 'submitted' and approval_deadline < :now then 1 else 0 end), 0)
    from governance_updates where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
    group by status, tier"""
)
_COUNT_SUBMITTED = Sql("select count(*) from governance_updates where tenant = :tenant and status = 'submitted'")
_FIND_HEAD = {
    "update": Sql("select head_id from governance_updates where tenant = :tenant and update_id = :record_id"),
    "rollback": Sql("select head_id from rollbacks where tenant = :tenant and rollback_id = :record_id"),
}


def find_update(tx: Tx, tenant: str, update_id: str) -> Update | None:
    row = tx.row(_FIND_UPDATE, tenant=tenant, update_id=update_id)
    return _to_update(row) if row else None


def insert_update(tx: Tx, update: Update) -> None:
    tx.run(_INSERT_UPDATE, **_params(update))


def change_update(tx: Tx, before: Update, after: Update) -> bool:
    """Write the mutable fields; return False after a concurrent change."""
    params = {name: value for name, value in _params(after).items() if name in _MUTABLE}
    key = {"tenant": before.tenant, "update_id": before.update_id}
    return tx.run(_CHANGE_UPDATE, **key, **params, from_status=before.status, from_head=before.head_id) == 1


def list_updates(tx: Tx, tenant: str, filters: UpdateFilter, limit: int) -> list[Update]:
    """Return a page of updates, newest first."""
    before, before_id = filters.before or (_MAX_TIME, _MAX_ID)
    rows = tx.rows(_LIST_UPDATES, **_where(tenant, filters), before=before, before_id=before_id, limit=limit)
    return [_to_update(row) for row in rows]


def list_oldest_updates(tx: Tx, tenant: str, filters: UpdateFilter, limit: int, offset: int) -> list[Update]:
    """Return a page of updates, oldest first."""
    return [
        _to_update(row) for row in tx.rows(_LIST_OLDEST_UPDATES, **_where(tenant, filters), limit=limit, offset=offset)
    ]


def count_updates(tx: Tx, tenant: str, filters: UpdateFilter) -> tuple[int, int]:
    """Return how many updates match, and how many of them are overdue."""
    row = tx.row(_COUNT_UPDATES, **_where(tenant, filters), now=tx.now)
    assert row is not None
    return int(row[0]), int(row[1])


def list_deployable(tx: Tx, until: int, limit: int) -> list[tuple[str, str]]:
    """Return updates to deploy, and those whose deployment has not changed since `until`."""
    return [(row[0], row[1]) for row in tx.rows(_TO_DEPLOY, until=until, limit=limit)]


def list_undone_by(
    tx: Tx, tenant: str, agent_id: str, checkpoint_id: str, update_id: str | None, since: int
) -> list[Update]:
    """Return the updates that a restored checkpoint undoes: those that name it, and patches deployed after it."""
    key = {"tenant": tenant, "agent_id": agent_id, "checkpoint_id": checkpoint_id, "update_id": update_id or ""}
    return [_to_update(row) for row in tx.rows(_LIST_UNDONE, **key, since=since)]


def count_decisions(tx: Tx, tenant: str, agent_id: str) -> tuple[int, int]:
    """Return how many decided updates of an agent are approved and not rolled back, and how many there are."""
    row = tx.row(_COUNT_DECISIONS, tenant=tenant, agent_id=agent_id)
    assert row is not None
    return int(row[0]), int(row[1])


def _where(tenant: str, filters: UpdateFilter) -> Params:
    return {
        "tenant": tenant,
        "status": filters.status or "",
        "tier": filters.tier or 0,
        "agent_id": filters.agent_id or "",
    }


def _params(update: Update) -> Params:
    params = {name: getattr(update, name) for name in _FIELDS}
    params["patched"] = int(update.patched)
    for name in _STRUCTURES:
        params[name] = None if params[name] is None else jsontext.dump(params[name])
    return params


def _to_update(row: tuple[Any, ...]) -> Update:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["patched"] = bool(values["patched"])
        for name, kind in _STRUCTURES.items():
            if values[name] is not None:
                values[name] = msgspec.json.decode(values[name], type=kind)
        return msgspec.convert(values, Update)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise CorruptRecord(f"The stored update {values['update_id']} is malformed: {error}.") from error


_CHECKPOINT_COLUMNS = ", ".join(Checkpoint.__struct_fields__)
_INSERT_CHECKPOINT = Sql.insert("checkpoints", Checkpoint.__struct_fields__)
_FIND_CHECKPOINT = Sql(
    f"select {_CHECKPOINT_COLUMNS} from checkpoints where tenant = :tenant and checkpoint_id = :checkpoint_id"
)
_LIST_CHECKPOINTS = Sql(
    f"""select {_CHECKPOINT_COLUMNS} from checkpoints
    where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
        and (taken_at < :before or (taken_at = :before and checkpoint_id < :before_id))
    order by taken_at desc, checkpoint_id desc limit :limit"""
)
# Those of open updates and rollbacks stay: without its checkpoint a deployment could not be undone.
_LIST_EXPIRED_CHECKPOINTS = Sql(
    """select tenant, checkpoint_id from checkpoints as old where taken_at < :before
        and not exists (select 1 from rollbacks where rollbacks.tenant = old.tenant
            and rollbacks.checkpoint_id = old.checkpoint_id and rollbacks.status in ('initiated', 'in_progress'))
        and not exists (select 1 from governance_updates as u where u.tenant = old.tenant
            and u.status in ('approved', 'deploying')
            and (u.checkpoint_id = old.checkpoint_id or u.named_checkpoint = old.checkpoint_id))
    order by taken_at limit :limit"""
)
_DELETE_CHECKPOINT = Sql("delete from checkpoints where tenant = :tenant and checkpoint_id = :checkpoint_id")

_ROLLBACK_COLUMNS = ", ".join(Rollback.__struct_fields__)
_INSERT_ROLLBACK = Sql.insert("rollbacks", Rollback.__struct_fields__)
_FIND_ROLLBACK = Sql(f"select {_ROLLBACK_COLUMNS} from rollbacks where tenant = :tenant and rollback_id = :rollback_id")
# Fenced only by the status, which never goes back.
_CHANGE_ROLLBACK = Sql(
    """update rollbacks set status = :status, completed_at = :completed_at, verified = :verified, notes = :notes,
        head_id = :head_id
    where tenant = :tenant and rollback_id = :rollback_id and status = :from_status"""
)
_LIST_ROLLBACKS = Sql(
    f"""select {_ROLLBACK_COLUMNS} from rollbacks where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
        and (initiated_at < :before or (initiated_at = :before and rollback_id < :before_id))
    order by initiated_at desc, rollback_id desc limit :limit"""
)
_LIST_UNFINISHED_ROLLBACKS = Sql(
    """select tenant, rollback_id from rollbacks where status in ('initiated', 'in_progress')
    order by initiated_at limit :limit"""
)
PageBefore = tuple[int, str] | None


def insert_checkpoint(tx: Tx, checkpoint: Checkpoint) -> None:
    tx.run(_INSERT_CHECKPOINT, **msgspec.structs.asdict(checkpoint))


def find_checkpoint(tx: Tx, tenant: str, checkpoint_id: str) -> Checkpoint | None:
    row = tx.row(_FIND_CHECKPOINT, tenant=tenant, checkpoint_id=checkpoint_id)
    return Checkpoint(*row) if row else None


def list_checkpoints(tx: Tx, tenant: str, agent_id: str | None, before: PageBefore, limit: int) -> list[Checkpoint]:
    """Return a page of checkpoints, newest first."""
    return [Checkpoint(*row) for row in tx.rows(_LIST_CHECKPOINTS, **_page_params(tenant, agent_id, before, limit))]


def list_expired_checkpoints(tx: Tx, before: int, limit: int) -> list[tuple[str, str]]:
    """Return checkpoints taken before a time, except those that an open update or rollback needs."""
    return [(row[0], row[1]) for row in tx.rows(_LIST_EXPIRED_CHECKPOINTS, before=before, limit=limit)]


def delete_checkpoint(tx: Tx, tenant: str, checkpoint_id: str) -> None:
    tx.run(_DELETE_CHECKPOINT, tenant=tenant, checkpoint_id=checkpoint_id)


def insert_rollback(tx: Tx, rollback: Rollback) -> None:
    tx.run(_INSERT_ROLLBACK, **{**msgspec.structs.asdict(rollback), "verified": int(rollback.verified)})


def find_rollback(tx: Tx, tenant: str, rollback_id: str) -> Rollback | None:
    row = tx.row(_FIND_ROLLBACK, tenant=tenant, rollback_id=rollback_id)
    return _to_rollback(row) if row else None


def change_rollback(tx: Tx, before: Rollback, after: Rollback) -> bool:
    """Write the mutable fields; return False after a concurrent change."""
    names = ("tenant", "rollback_id", "status", "completed_at", "notes", "head_id")
    params = {name: getattr(after, name) for name in names}
    return tx.run(_CHANGE_ROLLBACK, **params, verified=int(after.verified), from_status=before.status) == 1


def list_rollbacks(tx: Tx, tenant: str, agent_id: str | None, before: PageBefore, limit: int) -> list[Rollback]:
    """Return a page of rollbacks, newest first."""
    return [_to_rollback(row) for row in tx.rows(_LIST_ROLLBACKS, **_page_params(tenant, agent_id, before, limit))]


def list_unfinished_rollbacks(tx: Tx, limit: int) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in tx.rows(_LIST_UNFINISHED_ROLLBACKS, limit=limit)]


def _page_params(tenant: str, agent_id: str | None, before: PageBefore, limit: int) -> Params:
    moment, last_id = before or (_MAX_TIME, _MAX_ID)
    return {"tenant": tenant, "agent_id": agent_id or "", "before": moment, "before_id": last_id, "limit": limit}


def _to_rollback(row: tuple[Any, ...]) -> Rollback:
    values: dict[str, Any] = dict(zip(Rollback.__struct_fields__, row, strict=True))
    return Rollback(**values | {"verified": bool(values["verified"])})


def count_updates_by_status(tx: Tx, tenant: str, agent_id: str, tier: int, now: int) -> tuple[dict[str, int], int]:
    """Count updates by status, and those whose approval is overdue. An empty id is all agents, tier 0 all tiers."""
    counts: dict[str, int] = {}
    overdue = 0
    for status, row_tier, n, late in tx.rows(_COUNT_BY_STATUS, tenant=tenant, agent_id=agent_id, now=now):
        if tier in (0, row_tier):
            counts[status] = counts.get(status, 0) + int(n)
            overdue += int(late)
    return counts, overdue


def count_submitted(tx: Tx, tenant: str) -> int:
    """Count the updates that wait for approval."""
    return int(tx.rows(_COUNT_SUBMITTED, tenant=tenant)[0][0])


def find_head_event(tx: Tx, tenant: str, kind: Literal["update", "rollback"], record_id: str) -> str | None:
    """Return the id of the newest run log event of a record; None if there is no such record."""
    row = tx.row(_FIND_HEAD[kind], tenant=tenant, record_id=record_id)
    return str(row[0]) if row else None
