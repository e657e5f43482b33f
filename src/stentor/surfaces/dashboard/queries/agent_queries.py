"""Agents as the pages list them: rows that no route tells.

What agents learned, what became of their trust, and what the sentinel found: rows that no route tells.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.learning.model import SentinelAlert, Weight, decay_weight
from stentor.domains.trust.model import TrustChange, decay_score
from stentor.surfaces.dashboard.gateway import decode_json_or_none

_WHERE = """a.tenant = :tenant
    and (:status = '' or a.status = :status)
    and (:tier = '' or a.trust_tier = :tier)
    and (:capability = '' or replace(a.capabilities, :capability, '') <> a.capabilities)
    and (:text = '' or replace(lower(a.name), lower(:text), '') <> lower(a.name))
    and (:alert = 0 or exists (
        select 1 from sentinel_alerts as s where s.agent_id = a.agent_id and s.resolved_at is null))"""
AFTER_CURSOR = "(a.created_at > :after or (a.created_at = :after and a.agent_id > :after_id))"
_AGENTS = Sql(
    f"""select a.agent_id, a.name, a.status, a.trust_tier, a.capabilities, a.runtime, a.violation_count,
        0.4 * a.alignment_score + 0.4 * a.accuracy_score + 0.2 * a.efficiency_score, a.created_at, t.score, t.updated_at
    from agents as a left join trust_scores as t on t.tenant = a.tenant and t.entity_id = a.agent_id
    where {_WHERE} and {AFTER_CURSOR} order by a.created_at, a.agent_id limit :limit"""
)
_COUNT = Sql(f"select count(*) from agents as a where {_WHERE}")


class AgentListFilter(msgspec.Struct, frozen=True):
    """Which agents; an empty text takes none away. `after` is (created_at, agent_id) of the last one seen."""

    status: str = ""
    tier: str = ""
    capability: str = ""
    text: str = ""
    alert: bool = False
    after: tuple[int, str] = (-1, "")


class AgentListRow(msgspec.Struct, frozen=True):
    """`capabilities` and `kind` are None where the record cannot be read."""

    agent_id: str
    name: str
    status: str
    trust_tier: str
    capabilities: list[str] | None
    kind: str | None
    violation_count: int
    composite: float
    created_at: int
    trust: float | None


def list_agents(tx: Tx, tenant: str, wanted: AgentListFilter, now: int, limit: int) -> tuple[list[AgentListRow], int]:
    """The agents, oldest first, and how many match in all."""
    where = _where(tenant, wanted)
    after, after_id = wanted.after
    found = tx.rows(_AGENTS, **where, after=after, after_id=after_id, limit=limit)
    return [_agent_row(row, now) for row in found], int(tx.rows(_COUNT, **where)[0][0])


def _where(tenant: str, wanted: AgentListFilter) -> dict[str, Any]:
    quoted = jsontext.dump(wanted.capability) if wanted.capability else ""
    fields = {name: getattr(wanted, name) for name in ("status", "tier", "text")}
    return fields | {"tenant": tenant, "capability": quoted, "alert": int(wanted.alert)}


def _agent_row(row: tuple[Any, ...], now: int) -> AgentListRow:
    agent_id, name, status, tier, capabilities, runtime, violations, composite, created_at, score, moved_at = row
    able, works = decode_json_or_none(capabilities.encode()), decode_json_or_none(runtime.encode())
    return AgentListRow(
        agent_id,
        name,
        status,
        tier,
        able if isinstance(able, list) else None,
        str(works.get("kind")) if isinstance(works, dict) else None,
        violations,
        composite,
        created_at,
        None if score is None else decay_score(score, now - moved_at),
    )


MAX_TASK_TYPES = 12
"""Task types that a heat map has columns for: those with most outcomes."""
MAX_TRUST_CHANGES, MAX_SCANNED_CHANGES = 200, 20_000
"""Changes of trust that a page shows, among the newest of the tenant."""
MAX_WEIGHTS, MAX_ALERTS = 200, 20

_IN_TENANT = "agent_id in (select agent_id from agents where tenant = :tenant)"
_TOP = f"""select task_type, sum(samples) as n from hebbian_weights where {_IN_TENANT}
    group by task_type order by n desc, task_type limit {MAX_TASK_TYPES}"""
_TYPES = Sql(_TOP)
_ALL_TYPES = Sql(f"select count(distinct task_type) from hebbian_weights where {_IN_TENANT}")
_CELLS = Sql(
    f"""select p.agent_id, p.name, p.created_at, w.task_type, w.weight, w.updated_at, w.samples from (
        select a.agent_id, a.name, a.created_at from agents as a
        where a.tenant = :tenant and {AFTER_CURSOR}
            and exists (select 1 from hebbian_weights as h where h.agent_id = a.agent_id
                and h.task_type in (select task_type from ({_TOP}) as shown))
        order by a.created_at, a.agent_id limit :limit
    ) as p join hebbian_weights as w on w.agent_id = p.agent_id
    where w.task_type in (select task_type from ({_TOP}) as top) order by p.created_at, p.agent_id"""
)
_TRUST = Sql(
    f"""select entity_id, kind, delta, score, cause, happened_at from (
        select change_id, entity_id, kind, delta, score, cause, happened_at from trust_changes
        where tenant = :tenant order by change_id desc limit {MAX_SCANNED_CHANGES}
    ) as newest where entity_id = :agent_id order by change_id desc limit {MAX_TRUST_CHANGES}"""
)
_WEIGHTS = Sql(
    f"""select agent_id, task_type, weight, mean_ms, samples, recent, updated_at from hebbian_weights
    where agent_id = :agent_id and {_IN_TENANT} order by samples desc, task_type limit {MAX_WEIGHTS}"""
)
_ALERTS = Sql(
    f"""select alert_id, agent_id, task_type, rate, threshold, samples, opened_at, resolved_at from sentinel_alerts
    where agent_id = :agent_id and {_IN_TENANT} order by alert_id desc limit {MAX_ALERTS}"""
)


class HeatMapCell(msgspec.Struct, frozen=True):
    weight: float
    samples: int


class WeightHeatMap(msgspec.Struct, frozen=True):
    """Rows of (agent id, name, cell by task type); `last` is where the next page begins."""

    types: list[str]
    types_total: int
    rows: list[tuple[str, str, dict[str, HeatMapCell]]]
    last: tuple[int, str] | None


def read_heat_map(tx: Tx, tenant: str, after: tuple[int, str], now: int, limit: int) -> WeightHeatMap:
    """Weights as of now of the agents that have one of these types, oldest agent first."""
    types = [str(row[0]) for row in tx.rows(_TYPES, tenant=tenant)]
    total = int(tx.rows(_ALL_TYPES, tenant=tenant)[0][0])
    rows: dict[str, tuple[str, str, dict[str, HeatMapCell]]] = {}
    last = after
    for agent_id, name, created_at, kind, weight, moved_at, samples in tx.rows(
        _CELLS, tenant=tenant, after=after[0], after_id=after[1], limit=limit
    ):
        rows.setdefault(agent_id, (agent_id, name, {}))[2][kind] = HeatMapCell(
            decay_weight(weight, now - moved_at), samples
        )
        last = (created_at, agent_id)
    return WeightHeatMap(types, total, list(rows.values()), last if len(rows) == limit else None)


def read_trust_changes(tx: Tx, tenant: str, agent_id: str) -> list[TrustChange]:
    """Newest first."""
    return [TrustChange(*row) for row in tx.rows(_TRUST, tenant=tenant, agent_id=agent_id)]


def read_weights(tx: Tx, tenant: str, agent_id: str) -> list[Weight]:
    """Those with most outcomes first."""
    return [Weight(*row) for row in tx.rows(_WEIGHTS, tenant=tenant, agent_id=agent_id)]


def read_alerts(tx: Tx, tenant: str, agent_id: str) -> list[SentinelAlert]:
    """The sentinel's, newest first."""
    return [SentinelAlert(*row) for row in tx.rows(_ALERTS, tenant=tenant, agent_id=agent_id)]
