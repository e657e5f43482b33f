"""Reads the events of a task for its activity trail."""

from __future__ import annotations

from stentor.core import runlog
from stentor.core.db import Tx
from stentor.domains.activity.model import MAX_EVENTS, Events


def read(tx: Tx, tenant: str, task_id: str, limit: int, after: str = "") -> Events:
    """Read a page of at most `limit` events after the event `after`. Raises CorruptRecord."""
    first = last = runlog.read_task_events(tx, tenant, task_id, MAX_EVENTS + 1)  # one more, to see whether more follow
    if len(first) > MAX_EVENTS:
        last = runlog.read_latest_events(tx, tenant, task_id, MAX_EVENTS)
    page = runlog.read_task_events(tx, tenant, task_id, limit + 1, after) if after else first
    return Events(first, last, page[:limit], len(page) > limit)
