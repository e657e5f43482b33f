"""Wires metrics: where each figure of a scrape comes from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from prometheus_client.core import Metric

from stentor.bootstrap.kernel import Kernel
from stentor.core.db import Tx
from stentor.domains.execution import dispatcher as execution
from stentor.domains.learning import store as learning
from stentor.domains.memory import health as memory
from stentor.domains.messaging import store as messaging
from stentor.domains.monitoring import metrics as installation
from stentor.domains.monitoring.metrics import MetricSource, build_scrape
from stentor.domains.registry import store as registry
from stentor.domains.tasks import metrics as tasks
from stentor.web.request_context import GrpcCallDurations, RequestDurations

Part = Callable[[Tx], Iterable[Metric]]


def figures(kernel: Kernel, times: RequestDurations, calls: GrpcCallDurations) -> Callable[[], Awaitable[bytes]]:
    """A function that answers one scrape of this process."""
    outcomes = tasks.OutcomeMetrics(kernel.hub)

    async def process() -> Iterable[Metric]:
        """From memory alone, so that it is there in an outage."""
        return [
            installation.build_info_metric(kernel.db.driver.name),
            *times.collect_metrics(),
            *calls.collect_metrics(),
            *outcomes.collect_metrics(),
            *execution.collect_metrics(kernel.dispatcher),
            *kernel.submission.collect_metrics(),
            *kernel.routing.collect_metrics(),
            *kernel.db.collect_metrics(),
            *kernel.llm.gateway.call_metrics.collect_metrics(),
            *registry.agent_metrics(kernel.registry.agents),
        ]

    return build_scrape(
        {
            "process": process,
            "components": partial(installation.component_metrics, kernel.health),
            "disk": partial(installation.disk_metrics, kernel.settings.data_dir),
            "database": _rows(kernel),
            **_memory(kernel),
        }
    )


def _rows(kernel: Kernel) -> MetricSource:
    """Everything that is read from the service's database, in one view of it."""
    parts: list[Part] = [
        tasks.collect_metrics,
        learning.collect_metrics,
        registry.violation_metrics,
        messaging.collect_metrics,
        memory.collect_write_metrics,
        kernel.hooks.metrics,
        kernel.provenance.figures,
    ]
    return lambda: kernel.db.read(lambda tx: [metric for part in parts for metric in part(tx)])


def _memory(kernel: Kernel) -> dict[str, MetricSource]:
    found = kernel.memory
    if found is None:
        return {}
    return {"memory": partial(memory.collect_index_metrics, found.index, found.indexer, found.meanings, found.leader)}
