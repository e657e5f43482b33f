"""Figures for Prometheus, collected when it asks.

Fails open: a source that fails or is late is left out, and `stentor_collector_success` says so. So an outage
of the database is seen in the figures, instead of there being none.

What metrics tell of the installation: its version, its components, its disk.
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
"""A source that takes longer is left out; Prometheus waits for 10 s by default."""
MetricSource = Callable[[], Awaitable[Iterable[Metric]]]
log = logging.getLogger(__name__)


class StaticCollector(Collector):
    """Figures that were read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def build_scrape(sources: Mapping[str, MetricSource]) -> Callable[[], Awaitable[bytes]]:
    """A function that answers one scrape: what the sources tell, and the process of itself."""

    async def answer() -> bytes:
        read = await asyncio.gather(*(_read_source(name, source) for name, source in sources.items()))
        found = [metric for metrics in read if metrics is not None for metric in metrics]
        worked = {name: float(metrics is not None) for name, metrics in zip(sources, read, strict=True)}
        text = "Whether a source of figures could be read; without it its figures are missing."
        registry = CollectorRegistry(auto_describe=False)
        registry.register(
            StaticCollector([*found, labeled_gauge_family("stentor_collector_success", text, "source", worked)])
        )
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    return answer


async def _read_source(name: str, source: MetricSource) -> list[Metric] | None:
    try:
        async with asyncio.timeout(SOURCE_TIMEOUT_SECONDS):
            return list(await source())
    except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are shown
        # An outage is told by the part it concerns; here it would be a line for every scrape.
        log.debug("the figures of %s are left out of a scrape: %r", name, error)
        return None


def build_info_metric(database: str) -> Metric:
    labels = {"version": __version__, "python": platform.python_version(), "database": database}
    text = "Always 1; the labels say what runs here."
    info = GaugeMetricFamily("stentor_build_info", text, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


async def component_metrics(health: HealthService) -> Iterable[Metric]:
    """As /health/detailed shows them; what is not part of this installation is left out."""
    found = await health.check_components()
    up = {name: float(one.status == "available") for name, one in found.items() if one.status != "disabled"}
    return [
        labeled_gauge_family(
            "stentor_component_up", "Whether a component works, as the health route says.", "component", up
        )
    ]


async def disk_metrics(folder: Path) -> Iterable[Metric]:
    """Of the file system that the data folder lies on."""
    usage = await asyncio.to_thread(shutil.disk_usage, folder)
    return [
        gauge_family("stentor_data_free_bytes", "Free space where the data folder lies.", usage.free),
        gauge_family("stentor_data_total_bytes", "Size of the file system where the data folder lies.", usage.total),
    ]
