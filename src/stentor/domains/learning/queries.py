"""SQL of what pages show of learning: the heat map, and the weights and alerts of one agent."""

from __future__ import annotations

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.learning.model import SentinelAlert, Weight, decay_weight

MAX_TASK_TYPES = 12
"""Columns of a heat map: the task types with most outcomes."""
MAX_WEIGHTS, MAX_ALERTS = 200, 20

_IN_TENANT = "agent_id in (select agent_id from agents where tenant = :tenant)"
_TOP = f"""select task_type, sum(samples) as n from hebbian_weights where {_IN_TENANT}
    group by task_type order by n desc, task_type limit {MAX_TASK_TYPES}"""
_LIST_TYPES = Sql(_TOP)
_COUNT_TYPES = Sql(f"select count(distinct task_type) from hebbian_weights where {_IN_TENANT}")
_LIST_CELLS = Sql(
    f"""select p.agent_id, p.name, p.created_at, w.task_type, w.weight, w.updated_at, w.samples from (
        select a.agent_id, a.name, a.created_at from agents as a
        where a.tenant = :tenant and (a.created_at > :after or (a.created_at = :after and a.agent_id > :after_id))
            and exists (select 1 from hebbian_weights as h where h.agent_id = a.agent_id
                and h.task_type in (select task_type from ({_TOP}) as shown))
        order by a.created_at, a.agent_id limit :limit
    ) as p join hebbian_weights as w on w.agent_id = p.agent_id
    where w.task_type in (select task_type from ({_TOP}) as top) order by p.created_at, p.agent_id"""
)
_LIST_WEIGHTS = Sql(
    f"""select agent_id, task_type, weight, mean_ms, samples, recent, updated_at from hebbian_weights
    where agent_id = :agent_id and {_IN_TENANT} order by samples desc, task_type limit {MAX_WEIGHTS}"""
)
_LIST_ALERTS = Sql(
    f"""select alert_id, agent_id, task_type, rate, threshold, samples, opened_at, resolved_at from sentinel_alerts
    where agent_id = :agent_id and {_IN_TENANT} order by alert_id desc limit {MAX_ALERTS}"""
)


_COUNT_OPEN_ALERTS = Sql(
    """select count(*) from sentinel_alerts where resolved_at is null
    and agent_id in (select agent_id from agents where tenant = :tenant)"""
)


class HeatMapCell(msgspec.Struct, frozen=True):
    weight: float
    samples: int


class WeightHeatMap(msgspec.Struct, frozen=True):
    """Rows of (agent id, name, cell by task type); `last` is the position of the last row, None on the last page."""

    types: list[str]
    types_total: int
    rows: list[tuple[str, str, dict[str, HeatMapCell]]]
    last: tuple[int, str] | None


def read_heat_map(tx: Tx, tenant: str, after: tuple[int, str], now: int, limit: int) -> WeightHeatMap:
    """Return the present weights of the agents that have one of the types, oldest agent first."""
    types = [str(row[0]) for row in tx.rows(_LIST_TYPES, tenant=tenant)]
    total = int(tx.rows(_COUNT_TYPES, tenant=tenant)[0][0])
    rows: dict[str, tuple[str, str, dict[str, HeatMapCell]]] = {}
    last = after
    for agent_id, name, created_at, kind, weight, moved_at, samples in tx.rows(
        _LIST_CELLS, tenant=tenant, after=after[0], after_id=after[1], limit=limit
    ):
        rows.setdefault(agent_id, (agent_id, name, {}))[2][kind] = HeatMapCell(
            decay_weight(weight, now - moved_at), samples
        )
        last = (created_at, agent_id)
    return WeightHeatMap(types, total, list(rows.values()), last if len(rows) == limit else None)


def list_top_weights(tx: Tx, tenant: str, agent_id: str) -> list[Weight]:
    """List the weights of an agent, those with most outcomes first."""
    return [Weight(*row) for row in tx.rows(_LIST_WEIGHTS, tenant=tenant, agent_id=agent_id)]


def list_agent_alerts(tx: Tx, tenant: str, agent_id: str) -> list[SentinelAlert]:
    """List the alerts about an agent, newest first."""
    return [SentinelAlert(*row) for row in tx.rows(_LIST_ALERTS, tenant=tenant, agent_id=agent_id)]


def count_open_alerts(tx: Tx, tenant: str) -> int:
    return int(tx.rows(_COUNT_OPEN_ALERTS, tenant=tenant)[0][0])
