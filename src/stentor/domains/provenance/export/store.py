"""The events that are exported, in the order of their ids, page by page."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stentor.core.db import Sql, Tx
from stentor.core.db.driver import Row
from stentor.core.runlog import EVENT_COLUMNS, RunLogEvent
from stentor.domains.provenance import store
from stentor.domains.provenance.model import event_of

PAGE = 1_000
_EVENT = ", ".join(EVENT_COLUMNS)
_PAGE = Sql(
    f"""select {_EVENT} from events where tenant = :tenant and event_id > :after
    and happened_at >= :since and happened_at < :before order by event_id limit :limit"""
)
_OF_TASK = Sql(
    f"""select {_EVENT} from events where tenant = :tenant and task_id = :task_id and event_id > :after
    order by event_id limit :limit"""
)
MOST_ROOTS = 100_000
"""Roots of runs kept in memory at a time."""


class Selection(msgspec.Struct, frozen=True):
    """Of one tenant: a task's events, or those of a time range in microseconds, its end excluded."""

    tenant: str
    task_id: str | None = None
    since: int = 0
    before: int = 2**62


def events(tx: Tx, chosen: Selection) -> Iterator[RunLogEvent]:
    """Raises CorruptRecord at an event that cannot be read."""
    after = ""
    while rows := _page(tx, chosen, after):
        yield from map(event_of, rows)
        after = rows[-1][0]


def _page(tx: Tx, chosen: Selection, after: str) -> list[Row]:
    if chosen.task_id is not None:
        return tx.rows(_OF_TASK, tenant=chosen.tenant, task_id=chosen.task_id, after=after, limit=PAGE)
    span = {"since": chosen.since, "before": chosen.before}
    return tx.rows(_PAGE, tenant=chosen.tenant, after=after, limit=PAGE, **span)


class Roots:
    """The first event of an event's run, by following parents; parents come before their children mostly."""

    def __init__(self, tx: Tx, tenant: str) -> None:
        self._tx = tx
        self._tenant = tenant
        self._known: dict[str, str] = {}

    def of(self, event: RunLogEvent) -> str:
        """Its id; a parent that is not in the log ends the way."""
        way, at = [event.event_id], event.parent_id
        while at is not None and at not in self._known and at not in way:
            row = store.find(self._tx, self._tenant, at)
            if row is None:
                break
            way.append(at)
            at = row[4]
        root = self._known.get(at, way[-1]) if at is not None else way[-1]
        if len(self._known) > MOST_ROOTS:
            self._known.clear()
        self._known |= dict.fromkeys(way, root)
        return root
