"""What waits for each webhook, and what a delivery carries: no route tells either."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.db import Sql, Tx
from stentor.domains.tasks.store import result_of
from stentor.domains.webhooks import listing, naming

MOST = 1_000
"""Deliveries of one webhook that are counted."""
_WAITING = Sql(
    f"""select count(*) from (select 1 from webhook_deliveries where subscription_id = :subscription_id
        and tenant = :tenant and status = 'waiting' limit {MOST + 1}) as counted"""
)
_OLDEST = Sql(
    """select created_at from webhook_deliveries where subscription_id = :subscription_id and tenant = :tenant
    and status = 'waiting' order by due_at, delivery_id limit 1"""
)


class Backlog(msgspec.Struct, frozen=True):
    """`count` ends at MOST + 1; `since` is when the event of the delivery that is due first happened."""

    count: int
    since: str | None


def backlogs(tx: Tx, tenant: str, subscription_ids: Iterable[str]) -> dict[str, Backlog]:
    found = {}
    for subscription_id in subscription_ids:
        given = {"tenant": tenant, "subscription_id": subscription_id}
        count = int(tx.rows(_WAITING, **given)[0][0])
        row = tx.row(_OLDEST, **given) if count else None
        found[subscription_id] = Backlog(count, format_iso(row[0]) if row else None)
    return found


def body(tx: Tx, tenant: str, name: str, event_id: str) -> Any:
    """The JSON that is posted for an event; None when the run log does not have it any more."""
    event = listing.event(tx, event_id)
    if event is None or event.tenant != tenant:
        return None
    result = result_of(tx, tenant, event.task_id or "") if name == "task.completed" else None
    return jsontext.decode(naming.payload(name, event, result))
