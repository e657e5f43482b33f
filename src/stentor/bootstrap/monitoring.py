"""Wires the metrics: what a scrape collects, and from where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from prometheus_client.core import Metric

from stentor.bootstrap.kernel import Kernel
from stentor.core.db import Tx
from stentor.domains.execution.dispatch import dispatcher as execution
from stentor.domains.learning import store as learning
from stentor.domains.memory import health as memory
from stentor.domains.messaging import store as messaging
from stentor.domains.monitoring import metrics as installation
from stentor.domains.monitoring.metrics import MetricSource, build_scrape
from stentor.domains.registry import store as registry
from stentor.domains.tasks import metrics as tasks
from stentor.web.request_context import GrpcCallDurations, RequestDurations


def scrape_function(
    kernel: Kernel, durations: RequestDurations, grpc_durations: GrpcCallDurations
) -> Callable[[], Awaitable[bytes]]:
    """Return a function that answers one scrape of this process."""
    outcomes = tasks.OutcomeMetrics(kernel.infra.hub)

    async def collect_process_metrics() -> Iterable[Metric]:
        # Read only from memory, so that they are available while the database is down.
        return [
            installation.build_info_metric(kernel.infra.db.driver.name),
            *durations.collect_metrics(),
            *grpc_durations.collect_metrics(),
            *outcomes.collect_metrics(),
            *execution.collect_metrics(kernel.tasks.dispatcher),
            *kernel.tasks.submission.collect_metrics(),
            *kernel.agents.routing.collect_metrics(),
            *kernel.infra.db.collect_metrics(),
            *kernel.llm.gateway.call_metrics.collect_metrics(),
            *registry.agent_metrics(kernel.agents.registry.agents),
        ]

    sources: dict[str, MetricSource] = {
        "process": collect_process_metrics,
        "components": partial(installation.component_metrics, kernel.health),
        "disk": partial(installation.disk_metrics, kernel.infra.settings.storage.data_dir),
        "database": _database_source(kernel),
    }
    if kernel.memory is not None:
        vault = kernel.memory.default
        sources["memory"] = partial(
            memory.collect_index_metrics, vault.index, vault.indexer, vault.embeddings, kernel.memory.leader
        )
    return build_scrape(sources)


def _database_source(kernel: Kernel) -> MetricSource:
    """Return a source that reads all metrics of the database in one snapshot."""
    collectors: list[Callable[[Tx], Iterable[Metric]]] = [
        partial(tasks.collect_metrics, dialect=kernel.infra.db.driver.name),
        learning.collect_metrics,
        registry.violation_metrics,
        messaging.collect_metrics,
        memory.collect_write_metrics,
        kernel.webhooks.collect_metrics,
        kernel.provenance.collect_metrics,
    ]
    # A list, not a generator: the rows must be read before the transaction ends.
    return lambda: kernel.infra.db.read(lambda tx: [metric for collect in collectors for metric in collect(tx)])
