"""SQL of checkpoints and rollbacks."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.governance.model import Checkpoint, Rollback

_C = ", ".join(Checkpoint.__struct_fields__)
_PUT = Sql(f"insert into checkpoints ({_C}) values ({', '.join(':' + f for f in Checkpoint.__struct_fields__)})")
_GET = Sql(f"select {_C} from checkpoints where tenant = :tenant and checkpoint_id = :checkpoint_id")
_LIST = Sql(
    f"""select {_C} from checkpoints where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
        and (taken_at < :before or (taken_at = :before and checkpoint_id < :before_id))
    order by taken_at desc, checkpoint_id desc limit :limit"""
)
_OLD = Sql(
    """select tenant, checkpoint_id from checkpoints as old where taken_at < :before
        and not exists (select 1 from rollbacks where rollbacks.tenant = old.tenant
            and rollbacks.checkpoint_id = old.checkpoint_id and rollbacks.status in ('initiated', 'in_progress'))
        and not exists (select 1 from governance_updates as u where u.tenant = old.tenant
            and u.status in ('approved', 'deploying')
            and (u.checkpoint_id = old.checkpoint_id or u.named_checkpoint = old.checkpoint_id))
    order by taken_at limit :limit"""
)
_DROP = Sql("delete from checkpoints where tenant = :tenant and checkpoint_id = :checkpoint_id")

_R = ", ".join(Rollback.__struct_fields__)
_START = Sql(f"insert into rollbacks ({_R}) values ({', '.join(':' + f for f in Rollback.__struct_fields__)})")
_READ = Sql(f"select {_R} from rollbacks where tenant = :tenant and rollback_id = :rollback_id")
_MOVE = Sql(
    """update rollbacks set status = :status, completed_at = :completed_at, verified = :verified, notes = :notes,
        head_id = :head_id
    where tenant = :tenant and rollback_id = :rollback_id and status = :from_status"""
)
_PAGE = Sql(
    f"""select {_R} from rollbacks where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
        and (initiated_at < :before or (initiated_at = :before and rollback_id < :before_id))
    order by initiated_at desc, rollback_id desc limit :limit"""
)
_OPEN = Sql(
    """select tenant, rollback_id from rollbacks where status in ('initiated', 'in_progress')
    order by initiated_at limit :limit"""
)
_EVER, _LAST = 2**62, "\x7f"
Before = tuple[int, str] | None


def put(tx: Tx, checkpoint: Checkpoint) -> None:
    tx.run(_PUT, **msgspec.structs.asdict(checkpoint))


def find(tx: Tx, tenant: str, checkpoint_id: str) -> Checkpoint | None:
    row = tx.row(_GET, tenant=tenant, checkpoint_id=checkpoint_id)
    return Checkpoint(*row) if row else None


def checkpoints(tx: Tx, tenant: str, agent_id: str | None, before: Before, limit: int) -> list[Checkpoint]:
    """Newest first."""
    return [Checkpoint(*row) for row in tx.rows(_LIST, **_page(tenant, agent_id, before, limit))]


def expired(tx: Tx, before: int, limit: int) -> list[tuple[str, str]]:
    """Those taken before that time, but for what an open update or rollback needs."""
    return [(row[0], row[1]) for row in tx.rows(_OLD, before=before, limit=limit)]


def drop(tx: Tx, tenant: str, checkpoint_id: str) -> None:
    tx.run(_DROP, tenant=tenant, checkpoint_id=checkpoint_id)


def start(tx: Tx, rollback: Rollback) -> None:
    tx.run(_START, **{**msgspec.structs.asdict(rollback), "verified": int(rollback.verified)})


def read(tx: Tx, tenant: str, rollback_id: str) -> Rollback | None:
    row = tx.row(_READ, tenant=tenant, rollback_id=rollback_id)
    return _rollback(row) if row else None


def move(tx: Tx, before: Rollback, after: Rollback) -> bool:
    """False when somebody else was faster."""
    names = ("tenant", "rollback_id", "status", "completed_at", "notes", "head_id")
    params = {name: getattr(after, name) for name in names}
    return tx.run(_MOVE, **params, verified=int(after.verified), from_status=before.status) == 1


def rollbacks(tx: Tx, tenant: str, agent_id: str | None, before: Before, limit: int) -> list[Rollback]:
    """Newest first."""
    return [_rollback(row) for row in tx.rows(_PAGE, **_page(tenant, agent_id, before, limit))]


def unfinished(tx: Tx, limit: int) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in tx.rows(_OPEN, limit=limit)]


def _page(tenant: str, agent_id: str | None, before: Before, limit: int) -> dict[str, Any]:
    moment, last = before or (_EVER, _LAST)
    return {"tenant": tenant, "agent_id": agent_id or "", "before": moment, "before_id": last, "limit": limit}


def _rollback(row: tuple[Any, ...]) -> Rollback:
    values = dict(zip(Rollback.__struct_fields__, row, strict=True))
    return Rollback(**{**values, "verified": bool(values["verified"])})
