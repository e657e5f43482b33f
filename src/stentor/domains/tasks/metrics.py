"""What metrics tell of tasks: their states and the queue from the rows, outcomes as this process saw them end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from prometheus_client.core import Metric

from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.live import Hub
from stentor.core.metrics import (
    LONG_BUCKETS_S,
    LabeledCounter,
    LabeledHistogram,
    gauge_family,
    labeled_counter_family,
    labeled_gauge_family,
    labeled_histogram_family,
)
from stentor.core.runlog import RunLogEvent
from stentor.domains.tasks.model import TASK_STATUSES, OutcomeClass

OUTCOMES: tuple[str, ...] = get_args(OutcomeClass)
PRIORITIES = range(4)
_HUMAN = frozenset(("task_cancelled", "task_aborted"))
"""Events whose outcome class, where they do not say one, is cancelled: somebody's word ended the task."""
_ENDS = _HUMAN | {"task_completed", "task_failed", "dispatch_denied"}
# Tenants one by one, because the table's key begins with the tenant and a row of each hour stands in it.
_NEXT_TENANT = Sql("select min(tenant) from task_counts where tenant > :after")
_STATES = Sql("select status, sum(n) from task_counts where tenant = :tenant and hour = -1 group by status")
_OLDEST = Sql("select min(queued_at) from tasks where status = 'queued' and priority = :priority")


def collect_metrics(tx: Tx) -> Iterable[Metric]:
    """Of all tenants together."""
    yield labeled_gauge_family("stentor_tasks", "Tasks by state.", "status", _states(tx))
    text = "How long the task that waits longest for its agent has waited; 0 when none waits."
    yield gauge_family("stentor_queue_oldest_seconds", text, _waits(tx))


def _states(tx: Tx) -> dict[str, float]:
    found: Counter[str] = Counter(dict.fromkeys(TASK_STATUSES, 0))
    tenant = ""
    while (row := tx.row(_NEXT_TENANT, after=tenant)) and row[0] is not None:
        tenant = row[0]
        found.update({status: int(n) for status, n in tx.rows(_STATES, tenant=tenant)})
    return {status: float(n) for status, n in found.items()}


def _waits(tx: Tx) -> float:
    rows = [tx.row(_OLDEST, priority=priority) for priority in PRIORITIES]
    since = min((row[0] for row in rows if row and row[0] is not None), default=tx.now)
    return max(0, tx.now - int(since)) / SECOND


class OutcomeMetrics:
    """Counts the ends of attempts as the run log announces them, after their commit."""

    def __init__(self, hub: Hub) -> None:
        self._ended = LabeledCounter(*((name,) for name in OUTCOMES))
        self._times = LabeledHistogram(LONG_BUCKETS_S)
        hub.listeners.append(self._saw)

    def _saw(self, tenant: str, task_id: str, events: list[RunLogEvent]) -> None:
        # A denial at dispatch is followed by the failure it leads to, in the same list: one end.
        for event in events:
            if event.event_type in _ENDS:
                self._count(event)
                return

    def _count(self, event: RunLogEvent) -> None:
        outcome = str(event.metadata.get("outcome_class", "cancelled"))
        self._ended.increment(outcome)
        if event.duration_ms is not None:
            self._times.labels(outcome).observe(event.duration_ms / 1000)

    def collect_metrics(self) -> Iterable[Metric]:
        text = "Attempts at tasks that ended, and submits that nobody was admitted for, by outcome class."
        yield labeled_counter_family("stentor_task_outcomes", text, ("outcome_class",), self._ended.snapshot())
        text = "Time from the claim of a task to its end, by outcome class."
        yield labeled_histogram_family("stentor_task_duration_seconds", text, ("outcome_class",), self._times.items())
