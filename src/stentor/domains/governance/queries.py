"""SQL of the dashboard's counts and links; the domain's own is in `store`."""

from __future__ import annotations

from typing import Literal

from stentor.core.db import Sql, Tx

_COUNT_BY_STATUS = Sql(
    """select status, tier, count(*),
        coalesce(sum(case when status = 'submitted' and approval_deadline < :now then 1 else 0 end), 0)
    from governance_updates where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
    group by status, tier"""
)
_COUNT_SUBMITTED = Sql("select count(*) from governance_updates where tenant = :tenant and status = 'submitted'")
_FIND_HEAD = {
    "update": Sql("select head_id from governance_updates where tenant = :tenant and update_id = :record_id"),
    "rollback": Sql("select head_id from rollbacks where tenant = :tenant and rollback_id = :record_id"),
}


def count_updates(tx: Tx, tenant: str, agent_id: str, tier: int, now: int) -> tuple[dict[str, int], int]:
    """Count updates by status, and those whose approval is overdue. An empty id is all agents, tier 0 all tiers."""
    counts: dict[str, int] = {}
    overdue = 0
    for status, row_tier, n, late in tx.rows(_COUNT_BY_STATUS, tenant=tenant, agent_id=agent_id, now=now):
        if tier in (0, row_tier):
            counts[status] = counts.get(status, 0) + int(n)
            overdue += int(late)
    return counts, overdue


def count_submitted(tx: Tx, tenant: str) -> int:
    """Count the updates that wait for approval."""
    return int(tx.rows(_COUNT_SUBMITTED, tenant=tenant)[0][0])


def find_head_event(tx: Tx, tenant: str, kind: Literal["update", "rollback"], record_id: str) -> str | None:
    """Return the id of the newest run log event of a record; None if there is no such record."""
    row = tx.row(_FIND_HEAD[kind], tenant=tenant, record_id=record_id)
    return str(row[0]) if row else None
