"""What metrics tell of the installation: its version, its components, its disk."""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from stentor import __version__
from stentor.core.metrics import gauge_family, labeled_gauge_family
from stentor.domains.monitoring.service import Health


def build(database: str) -> Metric:
    labels = {"version": __version__, "python": platform.python_version(), "database": database}
    text = "Always 1; the labels say what runs here."
    info = GaugeMetricFamily("stentor_build_info", text, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


async def components(health: Health) -> Iterable[Metric]:
    """As /health/detailed shows them; what is not part of this installation is left out."""
    found = await health.components()
    up = {name: float(one.status == "available") for name, one in found.items() if one.status != "disabled"}
    return [
        labeled_gauge_family(
            "stentor_component_up", "Whether a component works, as the health route says.", "component", up
        )
    ]


async def disk(folder: Path) -> Iterable[Metric]:
    """Of the file system that the data folder lies on."""
    usage = await asyncio.to_thread(shutil.disk_usage, folder)
    return [
        gauge_family("stentor_data_free_bytes", "Free space where the data folder lies.", usage.free),
        gauge_family("stentor_data_total_bytes", "Size of the file system where the data folder lies.", usage.total),
    ]
