"""What agents learned, what became of their trust, and what the sentinel found: rows that no route tells."""

from __future__ import annotations

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.learning.model import Alert, Weight, returned
from stentor.domains.trust.model import Change
from stentor.surfaces.dashboard.pages.agents_rows import AFTER

TYPES = 12
"""Task types that a heat map has columns for: those with most outcomes."""
CHANGES, LOOKED_AT = 200, 20_000
"""Changes of trust that a page shows, among the newest of the tenant."""
WEIGHTS, ALERTS = 200, 20

_OWN = "agent_id in (select agent_id from agents where tenant = :tenant)"
_TOP = f"""select task_type, sum(samples) as n from hebbian_weights where {_OWN}
    group by task_type order by n desc, task_type limit {TYPES}"""
_TYPES = Sql(_TOP)
_ALL_TYPES = Sql(f"select count(distinct task_type) from hebbian_weights where {_OWN}")
_CELLS = Sql(
    f"""select p.agent_id, p.name, p.created_at, w.task_type, w.weight, w.updated_at, w.samples from (
        select a.agent_id, a.name, a.created_at from agents as a
        where a.tenant = :tenant and {AFTER}
            and exists (select 1 from hebbian_weights as h where h.agent_id = a.agent_id
                and h.task_type in (select task_type from ({_TOP}) as shown))
        order by a.created_at, a.agent_id limit :limit
    ) as p join hebbian_weights as w on w.agent_id = p.agent_id
    where w.task_type in (select task_type from ({_TOP}) as top) order by p.created_at, p.agent_id"""
)
_TRUST = Sql(
    f"""select entity_id, kind, delta, score, cause, happened_at from (
        select change_id, entity_id, kind, delta, score, cause, happened_at from trust_changes
        where tenant = :tenant order by change_id desc limit {LOOKED_AT}
    ) as newest where entity_id = :agent_id order by change_id desc limit {CHANGES}"""
)
_WEIGHTS = Sql(
    f"""select agent_id, task_type, weight, mean_ms, samples, recent, updated_at from hebbian_weights
    where agent_id = :agent_id and {_OWN} order by samples desc, task_type limit {WEIGHTS}"""
)
_ALERTS = Sql(
    f"""select alert_id, agent_id, task_type, rate, threshold, samples, opened_at, resolved_at from sentinel_alerts
    where agent_id = :agent_id and {_OWN} order by alert_id desc limit {ALERTS}"""
)


class Cell(msgspec.Struct, frozen=True):
    weight: float
    samples: int


class Heat(msgspec.Struct, frozen=True):
    """Rows of (agent id, name, cell by task type); `last` is where the next page begins."""

    types: list[str]
    types_total: int
    rows: list[tuple[str, str, dict[str, Cell]]]
    last: tuple[int, str] | None


def heat(tx: Tx, tenant: str, after: tuple[int, str], now: int, limit: int) -> Heat:
    """Weights as of now of the agents that have one of these types, oldest agent first."""
    types = [str(row[0]) for row in tx.rows(_TYPES, tenant=tenant)]
    total = int(tx.rows(_ALL_TYPES, tenant=tenant)[0][0])
    rows: dict[str, tuple[str, str, dict[str, Cell]]] = {}
    last = after
    for agent_id, name, created_at, kind, weight, moved_at, samples in tx.rows(
        _CELLS, tenant=tenant, after=after[0], after_id=after[1], limit=limit
    ):
        rows.setdefault(agent_id, (agent_id, name, {}))[2][kind] = Cell(returned(weight, now - moved_at), samples)
        last = (created_at, agent_id)
    return Heat(types, total, list(rows.values()), last if len(rows) == limit else None)


def trust(tx: Tx, tenant: str, agent_id: str) -> list[Change]:
    """Newest first."""
    return [Change(*row) for row in tx.rows(_TRUST, tenant=tenant, agent_id=agent_id)]


def weights(tx: Tx, tenant: str, agent_id: str) -> list[Weight]:
    """Those with most outcomes first."""
    return [Weight(*row) for row in tx.rows(_WEIGHTS, tenant=tenant, agent_id=agent_id)]


def alerts(tx: Tx, tenant: str, agent_id: str) -> list[Alert]:
    """The sentinel's, newest first."""
    return [Alert(*row) for row in tx.rows(_ALERTS, tenant=tenant, agent_id=agent_id)]
