"""Agents as the pages list them: rows that no route tells."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.trust.model import decayed
from stentor.surfaces.dashboard.site.calls import decoded

_WHERE = """a.tenant = :tenant
    and (:status = '' or a.status = :status)
    and (:tier = '' or a.trust_tier = :tier)
    and (:capability = '' or replace(a.capabilities, :capability, '') <> a.capabilities)
    and (:text = '' or replace(lower(a.name), lower(:text), '') <> lower(a.name))
    and (:alert = 0 or exists (
        select 1 from sentinel_alerts as s where s.agent_id = a.agent_id and s.resolved_at is null))"""
AFTER = "(a.created_at > :after or (a.created_at = :after and a.agent_id > :after_id))"
_PAGE = Sql(
    f"""select a.agent_id, a.name, a.status, a.trust_tier, a.capabilities, a.runtime, a.violation_count,
        0.4 * a.alignment_score + 0.4 * a.accuracy_score + 0.2 * a.efficiency_score, a.created_at, t.score, t.updated_at
    from agents as a left join trust_scores as t on t.tenant = a.tenant and t.entity_id = a.agent_id
    where {_WHERE} and {AFTER} order by a.created_at, a.agent_id limit :limit"""
)
_COUNT = Sql(f"select count(*) from agents as a where {_WHERE}")


class Wanted(msgspec.Struct, frozen=True):
    """Which agents; an empty text takes none away. `after` is (created_at, agent_id) of the last one seen."""

    status: str = ""
    tier: str = ""
    capability: str = ""
    text: str = ""
    alert: bool = False
    after: tuple[int, str] = (-1, "")


class Row(msgspec.Struct, frozen=True):
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


def page(tx: Tx, tenant: str, wanted: Wanted, now: int, limit: int) -> tuple[list[Row], int]:
    """The agents, oldest first, and how many match in all."""
    where = _where(tenant, wanted)
    after, after_id = wanted.after
    found = tx.rows(_PAGE, **where, after=after, after_id=after_id, limit=limit)
    return [_row(row, now) for row in found], int(tx.rows(_COUNT, **where)[0][0])


def _where(tenant: str, wanted: Wanted) -> dict[str, Any]:
    quoted = jsontext.dump(wanted.capability) if wanted.capability else ""
    fields = {name: getattr(wanted, name) for name in ("status", "tier", "text")}
    return fields | {"tenant": tenant, "capability": quoted, "alert": int(wanted.alert)}


def _row(row: tuple[Any, ...], now: int) -> Row:
    agent_id, name, status, tier, capabilities, runtime, violations, composite, created_at, score, moved_at = row
    able, works = decoded(capabilities.encode()), decoded(runtime.encode())
    return Row(
        agent_id,
        name,
        status,
        tier,
        able if isinstance(able, list) else None,
        str(works.get("kind")) if isinstance(works, dict) else None,
        violations,
        composite,
        created_at,
        None if score is None else decayed(score, now - moved_at),
    )
