"""SQL of the audit. An index has these events only, so that a list does not walk through those of tasks."""

from __future__ import annotations

from stentor.core import runlog_queries
from stentor.core.db import Sql, Tx
from stentor.core.runlog import EVENT_COLUMNS, RunLogEvent

CATEGORIES: dict[str, tuple[str, ...]] = {
    "sign-ins": ("signed_in", "sign_in_refused"),
    "changes": tuple(
        (
            "agent_registered agent_updated agent_status_changed approval_given authority_granted authority_revoked "
            "budget_changed checkpoint_taken content_deleted history_accepted key_changed model_route_changed "
            "person_changed provider_changed "
            "rollback_completed rollback_failed rollback_started update_approved update_deployed update_rejected "
            "update_rolled_back update_submitted webhook_changed webhook_disabled"
        ).split()
    ),
    "refusals": ("dispatch_denied", "sign_in_refused", "tool_denied", "violation_recorded"),
}
AUDITED = tuple(sorted({name for names in CATEGORIES.values() for name in names}))
IS_AUDITED = " or ".join(f"event_type = '{name}'" for name in AUDITED)
"""Exactly the condition of the index `events_audited`: only then SQLite uses it."""
_COLUMNS = ", ".join(EVENT_COLUMNS)
_HEAD = f"""select {_COLUMNS} from events where tenant = :tenant and ({IS_AUDITED})
    and event_id < :before"""
_TAIL = "order by event_id desc limit :limit"
_LIST = {"": Sql(f"{_HEAD} {_TAIL}")} | {
    category: Sql(f"{_HEAD} and event_type || '' in ({', '.join(repr(name) for name in names)}) {_TAIL}")
    for category, names in CATEGORIES.items()
}

MAX_SCANNED_EVENTS = 2_000
"""Newest audited events that are searched for recent changes."""
_LIST_RECENT_CHANGES = Sql(
    f"""select {_COLUMNS} from (
        select {_COLUMNS} from events where tenant = :tenant and ({IS_AUDITED}) and event_id > :after
        order by event_id desc limit {MAX_SCANNED_EVENTS}
    ) as newest where event_type in ({", ".join(repr(name) for name in CATEGORIES["changes"])})
    order by event_id desc"""
)


def list_events(tx: Tx, tenant: str, category: str, before: str, limit: int) -> list[RunLogEvent]:
    """List a tenant's audited events of a category (empty: of all) before an event id, the latest first."""
    rows = tx.rows(_LIST[category], tenant=tenant, before=before, limit=limit)
    return [runlog_queries.to_event(row) for row in rows]


def list_recent_changes(tx: Tx, tenant: str, after: str) -> list[RunLogEvent]:
    """List a tenant's changes after an event id, the latest first, if they are among MAX_SCANNED_EVENTS events."""
    return [runlog_queries.to_event(row) for row in tx.rows(_LIST_RECENT_CHANGES, tenant=tenant, after=after)]
