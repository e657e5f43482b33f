"""Prometheus metrics of tasks: statuses and queue age read from the database, outcomes counted in this process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import get_args

from prometheus_client.core import Metric

from stentor.core.clock import SECOND
from stentor.core.db import Tx
from stentor.core.fanout.live import TERMINAL_EVENTS, Hub
from stentor.core.metrics import (
    LONG_BUCKETS_S,
    Counter,
    Histogram,
    gauge_family,
    labeled_gauge_family,
)
from stentor.core.runlog import RunLogEvent
from stentor.domains.tasks import queries
from stentor.domains.tasks.model import TASK_STATUSES, OutcomeClass
from stentor.domains.tasks.queues import lane_store, queue_store

OUTCOMES: tuple[str, ...] = get_args(OutcomeClass)
_FIND_OLDEST = {"sqlite": lane_store.find_oldest_queued_at, "postgresql": queue_store.find_oldest_queued_at}
_END_EVENTS = TERMINAL_EVENTS | {"dispatch_denied"}


def collect_metrics(tx: Tx, dialect: str) -> Iterable[Metric]:
    """Yield the gauges over all tenants. `dialect` is the name of the database's driver."""
    yield labeled_gauge_family("stentor_tasks", "Tasks by status.", "status", _count_by_status(tx))
    text = "Age of the oldest queued task that does not wait for room of its limit; 0 without one."
    yield gauge_family("stentor_queue_oldest_seconds", text, _oldest_wait_s(tx, dialect))


def _count_by_status(tx: Tx) -> dict[str, float]:
    counts: dict[str, float] = dict.fromkeys(TASK_STATUSES, 0.0)
    for tenant in queries.iter_tenants(tx):
        for status, count in queries.count_by_status(tx, tenant).items():
            counts[status] += count
    return counts


def _oldest_wait_s(tx: Tx, dialect: str) -> float:
    oldest = _FIND_OLDEST[dialect](tx)
    return 0 if oldest is None else max(0, tx.now - oldest) / SECOND


class OutcomeMetrics:
    """Counter and duration histogram of outcomes, fed by committed run log events of this process."""

    def __init__(self, hub: Hub) -> None:
        text = "Ended attempts and submissions without an eligible agent, by outcome class."
        known = [(outcome,) for outcome in OUTCOMES]
        self._outcomes = Counter("stentor_task_outcomes", text, "outcome_class", known=known)
        text = "Duration from the claim of a task to its outcome, by outcome class."
        self._durations = Histogram("stentor_task_duration_seconds", text, LONG_BUCKETS_S, "outcome_class")
        # Cached, because it takes longer to find a series than to count in it.
        self._find_count, self._find_durations = cache(self._outcomes.labels), cache(self._durations.labels)
        hub.listen(self._on_events, _END_EVENTS)

    def _on_events(self, tenant: str, task_id: str, events: list[RunLogEvent]) -> None:
        # Count only the first: a denial at dispatch and the failure that it causes are in the same list.
        for event in events:
            if event.event_type in _END_EVENTS:
                self._count(event)
                return

    def _count(self, event: RunLogEvent) -> None:
        # An event without an outcome class is a cancellation or a rejected approval.
        outcome = str(event.metadata.get("outcome_class", "cancelled"))
        self._find_count(outcome).inc()
        if event.duration_ms is not None:
            self._find_durations(outcome).observe(event.duration_ms / 1000)

    def collect_metrics(self) -> Iterable[Metric]:
        yield from self._outcomes.collect()
        yield from self._durations.collect()
