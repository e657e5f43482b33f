"""SQL of what only the dashboard reads."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord

LOOKED_AT = 20_000
"""Events among which the last decision is looked for."""
_DECIDED = Sql(
    f"""select happened_at, metadata from (
        select event_id, tenant, event_type, happened_at, metadata from events order by event_id desc limit {LOOKED_AT}
    ) as newest
    where tenant = :tenant and event_type = 'routing_decision' order by event_id desc limit 1"""
)
_NAMED = Sql("select agent_id from agents where tenant = :tenant and name = :name order by agent_id limit 2")


class Decided(msgspec.Struct, frozen=True):
    """The settings of routing as its last decision recorded them; the time in microseconds."""

    at: int
    alpha: float
    beta: float
    trust_floor: float
    trust_available: bool


def last_decision(tx: Tx, tenant: str) -> Decided | None:
    """None when there was none lately. Raises CorruptRecord."""
    row = tx.row(_DECIDED, tenant=tenant)
    if row is None:
        return None
    try:
        return msgspec.convert({"at": row[0], **_routing(row[1])}, Decided)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise CorruptRecord("The last routing decision in the run log is malformed.") from error


def _routing(metadata: str) -> dict[str, Any]:
    found: dict[str, Any] = jsontext.load(metadata)["routing"]
    return found


def named(tx: Tx, tenant: str, name: str) -> list[str]:
    """Ids of the agents with this name, two at most: one is wanted."""
    return [str(row[0]) for row in tx.rows(_NAMED, tenant=tenant, name=name)]
