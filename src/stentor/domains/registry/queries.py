"""SQL of lists of agents; agents as records are in `store`."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Params
from stentor.domains.trust.model import decay_score

# `replace` instead of `like`: the caller's text may have % and _, and both databases do this the same way.
_WHERE = """a.tenant = :tenant
    and (:status = '' or a.status = :status)
    and (a.archived_at is not null) = (:archived = 1)
    and (:tier = '' or a.trust_tier = :tier)
    and (:capability = '' or replace(a.capabilities, :capability, '') <> a.capabilities)
    and (:text = '' or replace(lower(a.name), lower(:text), '') <> lower(a.name))
    and (:alert = 0 or exists (
        select 1 from sentinel_alerts as s where s.agent_id = a.agent_id and s.resolved_at is null))"""
AFTER_CURSOR = "(a.created_at > :after or (a.created_at = :after and a.agent_id > :after_id))"
# The composite as in `Agent.composite`: here it has a value for a malformed record too.
_LIST = Sql(
    f"""select a.agent_id, a.name, a.status, a.trust_tier, a.capabilities, a.runtime, a.violation_count,
        0.4 * a.alignment_score + 0.4 * a.accuracy_score + 0.2 * a.efficiency_score, a.created_at, t.score, t.updated_at
    from agents as a left join trust_scores as t on t.tenant = a.tenant and t.entity_id = a.agent_id
    where {_WHERE} and {AFTER_CURSOR} order by a.created_at, a.agent_id limit :limit"""
)
_COUNT = Sql(f"select count(*) from agents as a where {_WHERE}")
_HAS_OWN = Sql("select 1 from agents where tenant = :tenant and replace(runtime, '\"builtin\"', '') = runtime limit 1")
_LIST_NAMES = Sql("select agent_id, name from agents where tenant = :tenant")
_LIST_CURRENT_NAMES = Sql(
    "select agent_id, name from agents where tenant = :tenant and (archived_at is null or agent_id = :keep)"
)
_LIST_IDS_BY_NAME = Sql(
    """select agent_id from agents where tenant = :tenant and name = :name and archived_at is null
    order by agent_id limit 2"""
)
_ACTIVE_CAPABILITIES = Sql(
    "select distinct capabilities from agents where tenant = :tenant and status = 'active' limit 1000"
)
_COUNT_QUARANTINED = Sql("select count(*) from agents where tenant = :tenant and status = 'quarantined'")


class AgentListFilter(msgspec.Struct, frozen=True):
    """Conditions of a list; an empty one matches all agents.

    `after` is the position of the last agent of the page before: (created_at, agent_id).
    """

    status: str = ""
    archived: bool = False
    tier: str = ""
    capability: str = ""
    text: str = ""
    alert: bool = False
    after: tuple[int, str] = (-1, "")


class AgentListRow(msgspec.Struct, frozen=True):
    """An agent in a list. `capabilities` and `kind` are None for a malformed record."""

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


def list_agents(
    tx: Tx, tenant: str, agent_filter: AgentListFilter, now: int, limit: int
) -> tuple[list[AgentListRow], int]:
    """List agents, oldest first, and count the matches on all pages."""
    where = _where(tenant, agent_filter)
    after, after_id = agent_filter.after
    rows = tx.rows(_LIST, **where, after=after, after_id=after_id, limit=limit)
    return [_to_row(row, now) for row in rows], int(tx.rows(_COUNT, **where)[0][0])


def _where(tenant: str, agent_filter: AgentListFilter) -> Params:
    # Includes the quotes, so that it matches no part of a longer name.
    quoted = jsontext.dump(agent_filter.capability) if agent_filter.capability else ""
    fields = {name: getattr(agent_filter, name) for name in ("status", "tier", "text")}
    return fields | {
        "tenant": tenant,
        "capability": quoted,
        "alert": int(agent_filter.alert),
        "archived": int(agent_filter.archived),
    }


def _to_row(row: tuple[Any, ...], now: int) -> AgentListRow:
    agent_id, name, status, tier, capabilities, runtime, violations, composite, created_at, score, changed_at = row
    decoded_capabilities = jsontext.decode_or_none(capabilities.encode())
    decoded_runtime = jsontext.decode_or_none(runtime.encode())
    return AgentListRow(
        agent_id,
        name,
        status,
        tier,
        decoded_capabilities if isinstance(decoded_capabilities, list) else None,
        str(decoded_runtime.get("kind")) if isinstance(decoded_runtime, dict) else None,
        violations,
        composite,
        created_at,
        None if score is None else decay_score(score, now - changed_at),
    )


def read_names(tx: Tx, tenant: str) -> dict[str, str]:
    """Return the names of the agents by id."""
    return {str(agent_id): str(name) for agent_id, name in tx.rows(_LIST_NAMES, tenant=tenant)}


def read_current_names(tx: Tx, tenant: str, keep: str = "") -> dict[str, str]:
    """Return the names of the agents by id, without those of archived ones but for the id `keep`."""
    return {str(agent_id): str(name) for agent_id, name in tx.rows(_LIST_CURRENT_NAMES, tenant=tenant, keep=keep)}


def list_active_capabilities(tx: Tx, tenant: str) -> list[str]:
    """Return the capabilities of the active agents, in their order; those of malformed records are left out."""
    found: set[str] = set()
    for row in tx.rows(_ACTIVE_CAPABILITIES, tenant=tenant):
        decoded = jsontext.decode_or_none(row[0].encode())
        if isinstance(decoded, list):
            found.update(name for name in decoded if isinstance(name, str))
    return sorted(found)


def list_ids_by_name(tx: Tx, tenant: str, name: str) -> list[str]:
    """Return at most two ids of agents with a name: the second one shows that the name is ambiguous."""
    return [str(row[0]) for row in tx.rows(_LIST_IDS_BY_NAME, tenant=tenant, name=name)]


def count_quarantined(tx: Tx, tenant: str) -> int:
    return int(tx.rows(_COUNT_QUARANTINED, tenant=tenant)[0][0])


def has_own_agent(tx: Tx, tenant: str) -> bool:
    """Return whether the tenant has an agent besides the builtin ones."""
    return tx.row(_HAS_OWN, tenant=tenant) is not None
