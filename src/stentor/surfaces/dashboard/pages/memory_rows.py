"""Who wrote the versions of a note: no route tells it, the run log does."""

from __future__ import annotations

from collections.abc import Iterable

from stentor.core import ids, jsontext
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.memory.vaults import DEFAULT

NEAR = SECOND
"""How far an event's id may lie from the time of its transaction."""
LOOKED_AT = 2_000
"""Events beside each version."""
_WRITTEN = Sql(
    f"""select metadata, agent_id from (
        select tenant, event_type, metadata, agent_id from events where event_id > :low and event_id < :high
        order by event_id limit {LOOKED_AT}
    ) as near where tenant = :tenant and event_type = 'memory_written'"""
)


def writers(
    tx: Tx, tenant: str, path: str, vault: str, versions: Iterable[tuple[str, int]]
) -> dict[str, tuple[str, str | None]]:
    """Key and agent by the hash of the version, as far as the run log has them; times in microseconds."""
    found: dict[str, tuple[str, str | None]] = {}
    for content_hash, at in versions:
        span = {"low": ids.min_id_at(at - NEAR), "high": ids.min_id_at(at + NEAR)}
        for metadata, agent_id in tx.rows(_WRITTEN, tenant=tenant, **span):
            event = jsontext.load(metadata)
            here = event.get("path") == path and event.get("vault", DEFAULT) == vault
            if here and event.get("after_hash") == content_hash:
                found[content_hash] = (str(event.get("by") or ""), agent_id)
    return found
