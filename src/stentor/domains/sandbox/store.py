"""SQL of the token buckets of rate limits, one for each agent and tool."""

from __future__ import annotations

from stentor.core.db import Sql, Tx

_FIND_BUCKET = Sql("select tokens, updated_at from rate_buckets where agent_id = :agent_id and tool = :tool")
_PUT_BUCKET = Sql(
    """insert into rate_buckets (agent_id, tool, tokens, updated_at) values (:agent_id, :tool, :tokens, :now)
    on conflict (agent_id, tool) do update set tokens = excluded.tokens, updated_at = excluded.updated_at"""
)


def read_bucket(tx: Tx, agent_id: str, tool: str) -> tuple[float | None, int]:
    """Return the tokens (None for an unused bucket) and the microseconds since the last use."""
    row = tx.row(_FIND_BUCKET, agent_id=agent_id, tool=tool)
    return (row[0], tx.now - row[1]) if row else (None, 0)


def put_bucket(tx: Tx, agent_id: str, tool: str, tokens: float) -> None:
    tx.run(_PUT_BUCKET, agent_id=agent_id, tool=tool, tokens=tokens, now=tx.now)
