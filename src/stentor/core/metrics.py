"""Metrics: counters and histograms that parts keep, and gauges computed for a scrape.

They are collected in the types of `prometheus_client`, but not counted by it: that takes two to three times as long.

The label values of a metric must be a small, fixed set: never an id, a name chosen by a client, or a capability. No
metric is in the library's global registry, because a process may have several kernels; the endpoint /metrics calls
`collect_metrics` of the parts that `bootstrap/monitoring.py` lists.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

LabelNames = tuple[str, ...]
LabelValues = tuple[str, ...]

SHORT_BUCKETS_S = (0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Bounds in seconds for operations of microseconds."""
REQUEST_BUCKETS_S = (0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds in seconds for a request or a commit."""
LONG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds in seconds for long operations."""


class CounterSeries:
    """A sum; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self.value += amount


class HistogramSeries:
    """Counts of values by upper bounds, and their sum; thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """Return the count below each bound and at last of all values, and their sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        return list(accumulate(counts)), total


class Counter:
    """A counter with one series for each combination of label values; the `known` ones are 0 from the start."""

    def __init__(self, name: str, text: str, *labels: str, known: Iterable[LabelValues] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[LabelValues, CounterSeries] = {values: CounterSeries() for values in known}

    def labels(self, *values: str) -> CounterSeries:
        """Return the series with these label values, in the order of the names."""
        assert len(values) == len(self._labels)
        return self._series.get(values) or self._series.setdefault(values, CounterSeries())

    def collect(self) -> Iterable[Metric]:
        values = {labels: series.value for labels, series in self._series.copy().items()}
        return [labeled_counter_family(self._name, self._text, self._labels, values)]


class Histogram:
    """A histogram with one series for each combination of label values; `bounds` are upper bounds."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._shown_bounds = [floatToGoString(bound) for bound in (*bounds, math.inf)]
        self._series: dict[LabelValues, HistogramSeries] = {}
        if not labels:
            self.labels()  # shown from the start

    def observe(self, value: float) -> None:
        """Count a value; only without label names."""
        self.labels().observe(value)

    def labels(self, *values: str) -> HistogramSeries:
        """Return the series with these label values, in the order of the names."""
        assert len(values) == len(self._labels)
        return self._series.get(values) or self._series.setdefault(values, HistogramSeries(self._bounds))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self._series.copy().items():
            counts, total = series.read()
            family.add_metric(labels, list(zip(self._shown_bounds, counts, strict=True)), total)
        return [family]


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


def labeled_counter_family(name: str, text: str, labels: LabelNames, values: Mapping[Any, float]) -> Metric:
    """Return one counter for each key of `values`, a tuple of label values."""
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
