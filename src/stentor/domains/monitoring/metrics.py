"""Figures for Prometheus, collected when it asks. Fails open: what cannot be read is left out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stentor.core.db import Database, Sql, Tx
from stentor.domains.execution.dispatcher import Dispatcher
from stentor.domains.registry.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = Sql("select status, sum(n) from task_counts where hour = -1 group by status order by status")
_OUTCOMES = Sql("select coalesce(sum(samples), 0) from hebbian_weights")


class Figures(Collector):
    """What one scrape shows."""

    def __init__(self, states: dict[str, int], learned: int, dispatcher: Dispatcher, agents: int) -> None:
        self._states = states
        self._learned = learned
        self._dispatcher = dispatcher
        self._agents = agents

    def collect(self) -> Iterable[Metric]:
        states = GaugeMetricFamily("stentor_tasks", "Tasks by state.", labels=["status"])
        for status, number in self._states.items():
            states.add_metric([status], number)
        yield states
        yield CounterMetricFamily("stentor_learned_outcomes", "Outcomes learned from.", value=self._learned)
        yield GaugeMetricFamily("stentor_queue_depth", "Tasks waiting here.", value=self._dispatcher.depth())
        yield GaugeMetricFamily("stentor_running", "Tasks running here.", value=self._dispatcher.running())
        yield GaugeMetricFamily("stentor_agents", "Agents registered.", value=self._agents)


class Read(Collector):
    """Figures that a part of the service has read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def scrape(
    db: Database, dispatcher: Dispatcher, snapshot: Snapshot, parts: Sequence[Callable[[Tx], Iterable[Metric]]] = ()
) -> Callable[[], Awaitable[bytes]]:
    """A function that answers one scrape; `parts` read what other domains show."""

    def read(tx: Tx) -> tuple[dict[str, int], int, list[Metric]]:
        row = tx.row(_OUTCOMES)
        more = [metric for part in parts for metric in part(tx)]
        return {str(s): int(n) for s, n in tx.rows(_STATES)}, int(row[0]) if row else 0, more

    async def answer() -> bytes:
        states, learned, more = await db.read(read)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Figures(states, learned, dispatcher, len(snapshot)))
        registry.register(Read(more))
        return generate_latest(registry)

    return answer
