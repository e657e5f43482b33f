"""SQL of the audit. A partial index has only its events, so that a list does not scan the events of tasks."""

from __future__ import annotations

import re

from stentor.core import runlog_queries
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.runlog import EVENT_COLUMNS, RunLogEvent

CATEGORIES: dict[str, tuple[str, ...]] = {
    "sign-ins": ("signed_in", "sign_in_refused"),
    "changes": tuple(
        (
            "agent_registered agent_updated agent_status_changed alert_thresholds_changed approval_given "
            "approval_refused authority_granted authority_revoked budget_changed checkpoint_taken connection_changed "
            "content_deleted history_accepted key_changed memory_invalidated memory_restored model_route_changed "
            "person_changed provider_changed rollback_completed rollback_failed rollback_started schedule_changed "
            "session_deleted trust_changed update_approved update_deployed update_rejected update_rolled_back "
            "update_submitted webhook_changed webhook_disabled"
        ).split()
    ),
    "refusals": ("dispatch_denied", "sign_in_refused", "tool_denied"),
}
_LISTED = tuple(sorted({name for names in CATEGORIES.values() for name in names}))
AUDITED = tuple(sorted((*_LISTED, "violation_recorded")))
"""With the violations, which the index has but no list: each only repeats the denial that it follows."""
# With `or` and not `in`, because the index is defined so.
IS_AUDITED = " or ".join(f"event_type = '{name}'" for name in AUDITED)
"""Exactly the condition of the index `events_audited`: only then SQLite uses it."""
_COLUMNS = ", ".join(EVENT_COLUMNS)
# Without the levels of trust that outcomes changed, which nobody decided; `_` stands for the colon, which would begin
# the name of a parameter.
_RANGE = f"""from events where tenant = :tenant and ({IS_AUDITED})
    and event_id < :before and event_id > :after
    and not (event_type || '' = 'trust_changed' and metadata like '%"by"_null%')"""
_TAIL = "order by event_id desc limit :limit"
_NAMES = {category: f"({', '.join(map(repr, names))})" for category, names in {"": _LISTED, **CATEGORIES}.items()}
# Concatenated, so that SQLite does not prefer an index of types.
_LIST = {
    category: Sql(f"select {_COLUMNS} {_RANGE} and event_type || '' in {names} {_TAIL}")
    for category, names in _NAMES.items()
}
MAX_SEARCHED_EVENTS = 5_000
"""Audited events that one page of a search reads."""
_SEARCHED = f"{_RANGE} order by event_id desc limit {MAX_SEARCHED_EVENTS}"
_SEARCH = {
    category: Sql(
        f"""select {_COLUMNS} from (select {_COLUMNS} {_SEARCHED}) as newest where event_type in {names}
        and (lower(message) like :pattern escape '!' or lower(metadata) like :pattern escape '!') {_TAIL}"""
    )
    for category, names in _NAMES.items()
}
_SEARCHED_COLUMNS = EVENT_COLUMNS.index("message"), EVENT_COLUMNS.index("metadata")
_LAST_SEARCHED = Sql(f"select count(*), min(event_id) from (select event_id {_SEARCHED}) as newest")

MAX_SCANNED_EVENTS = 2_000
"""Newest audited events that are searched for recent changes."""
_LIST_RECENT_CHANGES = Sql(
    f"""select {_COLUMNS} from (
        select {_COLUMNS} from events where tenant = :tenant and ({IS_AUDITED}) and event_id > :after
        order by event_id desc limit {MAX_SCANNED_EVENTS}
    ) as newest where event_type in ({", ".join(repr(name) for name in CATEGORIES["changes"])})
    order by event_id desc"""
)


def list_events(
    tx: Tx, tenant: str, category: str, before: str, limit: int, *, after: str = "", text: str = ""
) -> tuple[list[RunLogEvent], str | None]:
    """List a tenant's audited events of a category (empty: of all) between two event ids, the latest first.

    With a text only those whose message or metadata has it, ignoring case. Also returns the id before which the next
    page begins, None after the last one; a page of a search may be empty and have a next one.
    """
    span = {"tenant": tenant, "before": before, "after": after}
    if text:
        # `!` and not a backslash, which PostgreSQL and SQLite treat differently in a text.
        pattern = "%" + re.sub("([!%_])", r"!\1", text.lower()) + "%"
        # SQLite lowers only ASCII: for other letters it finds candidates, and Python checks them.
        pattern = re.sub(r"[^\x00-\x7f]+", "%", pattern)
        most = limit + 1 if text.isascii() else MAX_SEARCHED_EVENTS
        rows = tx.rows(_SEARCH[category], **span, pattern=pattern, limit=most)
        if not text.isascii():
            rows = [row for row in rows if _has_text(row, text.casefold())][: limit + 1]
    else:
        rows = tx.rows(_LIST[category], **span, limit=limit + 1)
    events = [runlog_queries.to_event(row) for row in rows]
    if len(events) > limit:
        return events[:limit], events[limit - 1].event_id
    if text:
        count, last = tx.rows(_LAST_SEARCHED, **span)[0]
        return events, str(last) if count == MAX_SEARCHED_EVENTS else None
    return events, None


def _has_text(row: Row, folded: str) -> bool:
    return any(folded in str(row[column]).casefold() for column in _SEARCHED_COLUMNS)


def list_recent_changes(tx: Tx, tenant: str, after: str) -> list[RunLogEvent]:
    """List a tenant's changes after an event id, the latest first, if they are among MAX_SCANNED_EVENTS events."""
    return [runlog_queries.to_event(row) for row in tx.rows(_LIST_RECENT_CHANGES, tenant=tenant, after=after)]
