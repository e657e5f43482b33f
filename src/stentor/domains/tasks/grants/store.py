"""SQL of the grants."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.domains.tasks.grants.model import MAX_DELEGATION_DEPTH, Grant

MAX_LISTED_GRANTS = 1_000
_FIELDS = Grant.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_FIND = Sql(f"select {_COLUMNS} from grants where tenant = :tenant and grant_id = :grant_id")
_LIST_BY_TASK = Sql(
    f"select {_COLUMNS} from grants where tenant = :tenant and task_id = :task_id order by grant_id limit :limit"
)
_LIST_BY_AGENT = Sql(
    f"""select {_COLUMNS} from grants where tenant = :tenant and to_agent = :agent_id and revoked_at is null
        and expires_at > :now and exists (
            select 1 from tasks where tasks.tenant = grants.tenant and tasks.task_id = grants.task_id
            and tasks.status = 'executing' and tasks.epoch = grants.epoch
        ) and exists (
            select 1 from agents where agents.tenant = grants.tenant and agents.agent_id = grants.from_agent
            and agents.status = 'active'
        ) order by grant_id limit :limit"""
)
_INSERT = Sql.insert("grants", _FIELDS)
_REVOKE = Sql(
    "update grants set revoked_at = :now where tenant = :tenant and grant_id = :grant_id and revoked_at is null"
)
_capabilities_decoder = msgspec.json.Decoder(tuple[str, ...])


def insert_grant(tx: Tx, grant: Grant) -> None:
    values = msgspec.structs.asdict(grant)
    tx.run(_INSERT, **{**values, "capabilities": jsontext.dump(grant.capabilities)})


def find_grant(tx: Tx, tenant: str, grant_id: str) -> Grant | None:
    row = tx.row(_FIND, tenant=tenant, grant_id=grant_id)
    return _grant_from_row(row) if row else None


def find_chain(tx: Tx, tenant: str, grant_id: str | None) -> list[Grant]:
    """Return a grant and its parents, nearest first; empty if one of them is missing or the chain is too long."""
    chain: list[Grant] = []
    while grant_id is not None:
        grant = find_grant(tx, tenant, grant_id)
        # Fails closed: callers read an empty chain as no authority.
        if grant is None or len(chain) == MAX_DELEGATION_DEPTH:
            return []
        chain.append(grant)
        grant_id = grant.parent_id
    return chain


def list_task_grants(tx: Tx, tenant: str, task_id: str) -> list[Grant]:
    rows = tx.rows(_LIST_BY_TASK, tenant=tenant, task_id=task_id, limit=MAX_LISTED_GRANTS)
    return [_grant_from_row(row) for row in rows]


def list_agent_grants(tx: Tx, tenant: str, agent_id: str) -> list[Grant]:
    """List the grants to an agent that are neither expired nor revoked and whose task is in the same claim."""
    rows = tx.rows(_LIST_BY_AGENT, tenant=tenant, agent_id=agent_id, now=tx.now, limit=MAX_LISTED_GRANTS)
    return [_grant_from_row(row) for row in rows]


def mark_revoked(tx: Tx, tenant: str, grant_id: str) -> bool:
    """Revoke a grant; False if it was revoked already."""
    return tx.run(_REVOKE, tenant=tenant, grant_id=grant_id, now=tx.now) == 1


def _grant_from_row(row: tuple[Any, ...]) -> Grant:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["capabilities"] = _capabilities_decoder.decode(values["capabilities"])
        return msgspec.convert(values, Grant)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The stored grant {values['grant_id']!r} is malformed: {error}.") from error
