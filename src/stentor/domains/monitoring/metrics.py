"""Figures for Prometheus, collected when it asks.

Fails open: a source that fails or is late is left out, and `stentor_collector_success` says so. So an outage
of the database is seen in the figures, instead of there being none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stentor.core.metrics import labeled_gauge_family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = 5.0
"""A source that takes longer is left out; Prometheus waits for 10 s by default."""
Source = Callable[[], Awaitable[Iterable[Metric]]]
log = logging.getLogger(__name__)


class Read(Collector):
    """Figures that were read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def scrape(sources: Mapping[str, Source]) -> Callable[[], Awaitable[bytes]]:
    """A function that answers one scrape: what the sources tell, and the process of itself."""

    async def answer() -> bytes:
        read = await asyncio.gather(*(_ask(name, source) for name, source in sources.items()))
        found = [metric for metrics in read if metrics is not None for metric in metrics]
        worked = {name: float(metrics is not None) for name, metrics in zip(sources, read, strict=True)}
        text = "Whether a source of figures could be read; without it its figures are missing."
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Read([*found, labeled_gauge_family("stentor_collector_success", text, "source", worked)]))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    return answer


async def _ask(name: str, source: Source) -> list[Metric] | None:
    try:
        async with asyncio.timeout(SECONDS):
            return list(await source())
    except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are shown
        # An outage is told by the part it concerns; here it would be a line for every scrape.
        log.debug("the figures of %s are left out of a scrape: %r", name, error)
        return None
