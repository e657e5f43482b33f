"""Metrics in the types of `prometheus_client`: counters and histograms that parts keep, gauges computed for a scrape.

The label values of a metric must be a small, fixed set: never an id, a name chosen by a client, or a capability. No
metric is in the library's global registry, because a process may have several kernels; the endpoint /metrics calls
`collect_metrics` of the parts that `bootstrap/monitoring.py` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import prometheus_client
from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Labels = tuple[str, ...]
Values = Mapping[Any, float]
"""Values by their label values (a tuple of texts)."""

SHORT_BUCKETS_S = (0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Bounds in seconds for operations of microseconds."""
REQUEST_BUCKETS_S = (0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds in seconds for a request or a commit."""
LONG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds in seconds for long operations."""


# The time at which each series began doubles the answer, and no dashboard of ours reads it.
prometheus_client.disable_created_metrics()


def create_histogram(name: str, text: str, bounds: Sequence[float], *labels: str) -> Histogram:
    """Return a histogram with these upper bounds and label names; thread-safe."""
    return Histogram(name, text, labels, buckets=bounds, registry=None)


def create_counter(name: str, text: str, *labels: str, known: Iterable[Labels] = ()) -> Counter:
    """Return a counter; thread-safe. The `known` combinations of label values are 0 from the start."""
    counter = Counter(name, text, labels, registry=None)
    for values in known:
        counter.labels(*values)
    return counter


def gauge_family(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def labeled_gauge_family(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return one gauge for each value of a label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family


def counter_family(name: str, text: str, value: float) -> Metric:
    """Return a counter; Prometheus adds `_total` to the name."""
    return CounterMetricFamily(name, text, value=value)


def labeled_counter_family(name: str, text: str, labels: Labels, values: Values) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
