"""Builds the response of /metrics from all sources, and has three metrics of its own: build, components and disk.

Fails open: a source that fails or times out is left out, and `stentor_collector_success` reports it, so that a scrape
during an outage of the database still has everything else.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stentor import __version__
from stentor.core.metrics import gauge_family, labeled_gauge_family
from stentor.domains.monitoring.service import HealthService

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SOURCE_TIMEOUT_SECONDS = 5.0
"""A slower source is left out. Prometheus itself waits for 10 s by default."""
MetricSource = Callable[[], Awaitable[Iterable[Metric]]]
log = logging.getLogger(__name__)


class StaticCollector(Collector):
    """Adapts metrics that are already collected to the Collector interface of prometheus_client."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def build_scrape(sources: Mapping[str, MetricSource]) -> Callable[[], Awaitable[bytes]]:
    """Return a function that answers one scrape with the metrics of the sources and of the process."""

    async def scrape() -> bytes:
        results = await asyncio.gather(*(_read_source(name, source) for name, source in sources.items()))
        collected = [metric for metrics in results if metrics is not None for metric in metrics]
        success = {name: float(metrics is not None) for name, metrics in zip(sources, results, strict=True)}
        text = "Whether a source of metrics could be read. If not, its metrics are missing from this scrape."
        collected.append(labeled_gauge_family("stentor_collector_success", text, "source", success))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StaticCollector(collected))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    return scrape


async def _read_source(name: str, source: MetricSource) -> list[Metric] | None:
    try:
        async with asyncio.timeout(SOURCE_TIMEOUT_SECONDS):
            return list(await source())
    except Exception as error:  # noqa: BLE001 - whatever it is, the other sources are shown
        # The source logs its own outage once; logging here would repeat it with every scrape.
        log.debug("monitoring: source left out source=%s error=%r", name, error)
        return None


def build_info_metric(database: str) -> Metric:
    labels = {"version": __version__, "python": platform.python_version(), "database": database}
    text = "Always 1; the labels describe what runs."
    info = GaugeMetricFamily("stentor_build_info", text, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


async def component_metrics(health: HealthService) -> Iterable[Metric]:
    """Return the status of each component, as in /health/detailed; disabled ones are left out."""
    components = await health.check_components()
    up = {name: float(c.status == "available") for name, c in components.items() if c.status != "disabled"}
    text = "Whether a component is available, as in the health route."
    return [labeled_gauge_family("stentor_component_up", text, "component", up)]


async def disk_metrics(folder: Path) -> Iterable[Metric]:
    """Return size and free space of the data folder's file system."""
    usage = await asyncio.to_thread(shutil.disk_usage, folder)
    return [
        gauge_family("stentor_data_free_bytes", "Free space of the data folder's file system.", usage.free),
        gauge_family("stentor_data_total_bytes", "Size of the data folder's file system.", usage.total),
    ]
