"""SQL of updates. A row becomes an Update or raises CorruptRecord."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.domains.governance.model import Basis, Changes, Filter, Update

_FIELDS = Update.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_MUTABLE = (
    *("status", "head_id", "updated_at", "decided_by", "decision", "approved_at", "rejected_at", "deployed_at"),
    *("rolled_back_at", "checkpoint_id", "test_results", "notes"),
)
_STRUCTURES = {"changes": Changes, "basis": Basis, "decision": dict[str, Any], "test_results": dict[str, Any]}

_ONE = Sql(f"select {_COLUMNS} from governance_updates where tenant = :tenant and update_id = :update_id")
_INSERT = Sql(f"insert into governance_updates ({_COLUMNS}) values ({', '.join(':' + name for name in _FIELDS)})")
_MOVE = Sql(
    f"""update governance_updates set {", ".join(f"{name} = :{name}" for name in _MUTABLE)}
    where tenant = :tenant and update_id = :update_id and status = :from_status and head_id = :from_head"""
)
_WHERE = """tenant = :tenant and (:status = '' or status = :status) and (:tier = 0 or tier = :tier)
    and (:agent_id = '' or agent_id = :agent_id)"""
_PAGE = Sql(
    f"""select {_COLUMNS} from governance_updates where {_WHERE}
        and (submitted_at < :before or (submitted_at = :before and update_id < :before_id))
    order by submitted_at desc, update_id desc limit :limit"""
)
_WAITING = Sql(
    f"""select {_COLUMNS} from governance_updates where {_WHERE}
    order by submitted_at, update_id limit :limit offset :offset"""
)
_COUNT = Sql(
    f"""select count(*), coalesce(sum(case when status = 'submitted' and approval_deadline < :now then 1 else 0 end), 0)
    from governance_updates where {_WHERE}"""
)
_TO_DEPLOY = Sql(
    """select tenant, update_id from governance_updates
    where patched = 1 and (status = 'approved' or (status = 'deploying' and updated_at <= :until))
    order by updated_at limit :limit"""
)
_UNDONE = Sql(
    f"""select {_COLUMNS} from governance_updates
    where tenant = :tenant and agent_id = :agent_id and status in ('deployed', 'deploying')
        and (checkpoint_id = :checkpoint_id or named_checkpoint = :checkpoint_id or update_id = :update_id
            or (patched = 1 and (deployed_at is null or deployed_at >= :since)))"""
)
_AUDIT = Sql(
    """select coalesce(sum(case when status in ('approved', 'deploying', 'deployed') then 1 else 0 end), 0),
        coalesce(sum(case when status = 'submitted' then 0 else 1 end), 0)
    from governance_updates where tenant = :tenant and agent_id = :agent_id"""
)
_EVER, _LAST = 2**62, "\x7f"


def find(tx: Tx, tenant: str, update_id: str) -> Update | None:
    row = tx.row(_ONE, tenant=tenant, update_id=update_id)
    return _update(row) if row else None


def insert(tx: Tx, update: Update) -> None:
    tx.run(_INSERT, **_params(update))


def move(tx: Tx, before: Update, after: Update) -> bool:
    """Write what can change; false when somebody else was faster."""
    params = {name: value for name, value in _params(after).items() if name in _MUTABLE}
    key = {"tenant": before.tenant, "update_id": before.update_id}
    return tx.run(_MOVE, **key, **params, from_status=before.status, from_head=before.head_id) == 1


def page(tx: Tx, tenant: str, wanted: Filter, limit: int) -> list[Update]:
    """Newest first."""
    before, before_id = wanted.before or (_EVER, _LAST)
    rows = tx.rows(_PAGE, **_where(tenant, wanted), before=before, before_id=before_id, limit=limit)
    return [_update(row) for row in rows]


def waiting(tx: Tx, tenant: str, wanted: Filter, limit: int, offset: int) -> list[Update]:
    """Oldest first."""
    return [_update(row) for row in tx.rows(_WAITING, **_where(tenant, wanted), limit=limit, offset=offset)]


def count(tx: Tx, tenant: str, wanted: Filter) -> tuple[int, int]:
    """How many match, and how many of them wait past their deadline."""
    row = tx.row(_COUNT, **_where(tenant, wanted), now=tx.now)
    assert row is not None
    return int(row[0]), int(row[1])


def to_deploy(tx: Tx, until: int, limit: int) -> list[tuple[str, str]]:
    """Updates that this service has to deploy, and those whose deployment has not moved since `until`."""
    return [(row[0], row[1]) for row in tx.rows(_TO_DEPLOY, until=until, limit=limit)]


def undone_by(
    tx: Tx, tenant: str, agent_id: str, checkpoint_id: str, update_id: str | None, since: int
) -> list[Update]:
    """What a restored checkpoint undoes: the updates that name it, and the patches deployed after it."""
    key = {"tenant": tenant, "agent_id": agent_id, "checkpoint_id": checkpoint_id, "update_id": update_id or ""}
    return [_update(row) for row in tx.rows(_UNDONE, **key, since=since)]


def audit(tx: Tx, tenant: str, agent_id: str) -> tuple[int, int]:
    """Of an agent's decided updates: those approved and not rolled back, and all."""
    row = tx.row(_AUDIT, tenant=tenant, agent_id=agent_id)
    assert row is not None
    return int(row[0]), int(row[1])


def _where(tenant: str, wanted: Filter) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "status": wanted.status or "",
        "tier": wanted.tier or 0,
        "agent_id": wanted.agent_id or "",
    }


def _params(update: Update) -> dict[str, Any]:
    params = {name: getattr(update, name) for name in _FIELDS}
    params["patched"] = int(update.patched)
    for name in _STRUCTURES:
        params[name] = None if params[name] is None else jsontext.dump(params[name])
    return params


def _update(row: tuple[Any, ...]) -> Update:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["patched"] = bool(values["patched"])
        for name, kind in _STRUCTURES.items():
            if values[name] is not None:
                values[name] = msgspec.json.decode(values[name], type=kind)
        return msgspec.convert(values, Update)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise CorruptRecord(f"The stored update {values['update_id']} is malformed: {error}.") from error
