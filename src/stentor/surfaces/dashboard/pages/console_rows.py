"""What the console reads of rows: what the newest tasks were asked, which no list of the gateway tells."""

from __future__ import annotations

from stentor.core.db import Sql, Tx

BEGINNING = 200
"""Characters of an input."""
_NEWEST = Sql(
    f"""select task_id, substr(input, 1, {BEGINNING}) from tasks where tenant = :tenant
    order by created_at desc, task_id desc limit :limit"""
)


def newest_inputs(tx: Tx, tenant: str, limit: int) -> dict[str, str]:
    """The beginning of the input of each of the newest tasks, as JSON text, by the task's id."""
    return {str(row[0]): str(row[1]) for row in tx.rows(_NEWEST, tenant=tenant, limit=limit)}
