"""SQL of grants."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.domains.tasks.grants.model import MAX_DEPTH, Grant

_FIELDS = Grant.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ONE = Sql(f"select {_COLUMNS} from grants where tenant = :tenant and grant_id = :grant_id")
_OF_TASK = Sql(
    f"select {_COLUMNS} from grants where tenant = :tenant and task_id = :task_id order by grant_id limit :limit"
)
_TO_AGENT = Sql(
    f"""select {_COLUMNS} from grants where tenant = :tenant and to_agent = :agent_id and revoked_at is null
        and expires_at > :now and exists (
            select 1 from tasks where tasks.tenant = grants.tenant and tasks.task_id = grants.task_id
            and tasks.status = 'executing' and tasks.epoch = grants.epoch
        ) order by grant_id limit :limit"""
)
_INSERT = Sql(f"insert into grants ({_COLUMNS}) values ({', '.join(':' + name for name in _FIELDS)})")
_REVOKE = Sql(
    "update grants set revoked_at = :now where tenant = :tenant and grant_id = :grant_id and revoked_at is null"
)
MOST = 1_000


def insert(tx: Tx, grant: Grant) -> None:
    values = msgspec.structs.asdict(grant)
    tx.run(_INSERT, **{**values, "capabilities": jsontext.dump(grant.capabilities)})


def find(tx: Tx, tenant: str, grant_id: str) -> Grant | None:
    row = tx.row(_ONE, tenant=tenant, grant_id=grant_id)
    return _grant(row) if row else None


def chain(tx: Tx, tenant: str, grant_id: str | None) -> list[Grant]:
    """A grant and those that it comes from, the nearest first; empty when one of them is missing."""
    found: list[Grant] = []
    while grant_id is not None:
        grant = find(tx, tenant, grant_id)
        if grant is None or len(found) == MAX_DEPTH:
            return []
        found.append(grant)
        grant_id = grant.parent_id
    return found


def of_task(tx: Tx, tenant: str, task_id: str) -> list[Grant]:
    return [_grant(row) for row in tx.rows(_OF_TASK, tenant=tenant, task_id=task_id, limit=MOST)]


def to_agent(tx: Tx, tenant: str, agent_id: str) -> list[Grant]:
    """Those that have not ended by themselves, or with the work that they were given for."""
    return [_grant(row) for row in tx.rows(_TO_AGENT, tenant=tenant, agent_id=agent_id, now=tx.now, limit=MOST)]


def revoke(tx: Tx, tenant: str, grant_id: str) -> bool:
    """Whether it was not revoked before."""
    return tx.run(_REVOKE, tenant=tenant, grant_id=grant_id, now=tx.now) == 1


_capabilities = msgspec.json.Decoder(tuple[str, ...])


def _grant(row: tuple[Any, ...]) -> Grant:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["capabilities"] = _capabilities.decode(values["capabilities"])
        return msgspec.convert(values, Grant)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The stored grant {values['grant_id']!r} is malformed: {error}.") from error
