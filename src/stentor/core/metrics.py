"""Counters and histograms that parts of the service keep, and their conversion to Prometheus metric families.

The label values of a metric must be a small, fixed set: never an id, a name chosen by a client, or a capability. The
endpoint /metrics calls `collect_metrics` of each part.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
Values = Mapping[Any, float]
"""Values by their label values (a tuple of texts)."""

SHORT_BUCKETS_S = (0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Bounds in seconds for operations of microseconds."""
REQUEST_BUCKETS_S = (0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds in seconds for a request or a commit."""
LONG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds in seconds for long operations."""


class Histogram:
    """A histogram of values; thread-safe."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Add a value."""
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Add values, with one lock for all."""
        with self._lock:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
                self._sum += value

    def snapshot(self) -> tuple[list[tuple[str, float]], float]:
        """Return each bound with the number of values up to it, and the sum of all values."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(counts), strict=True)], total


class LabeledHistogram:
    """A histogram for each combination of label values; the `known` ones exist from the start."""

    def __init__(self, bounds: Sequence[float], *known: Labels) -> None:
        self._bounds = tuple(bounds)
        self._by_labels: dict[Labels, Histogram] = {labels: Histogram(bounds) for labels in known}

    def labels(self, *labels: str) -> Histogram:
        """Return the histogram for these label values."""
        histogram = self._by_labels.get(labels)
        # setdefault is atomic: two threads get the same new histogram.
        return histogram if histogram is not None else self._by_labels.setdefault(labels, Histogram(self._bounds))

    def items(self) -> list[tuple[Labels, Histogram]]:
        return list(self._by_labels.items())


class LabeledCounter:
    """A counter for each combination of label values; thread-safe. The `known` ones are 0 from the start."""

    def __init__(self, *known: Labels) -> None:
        self._by_labels: dict[Labels, float] = dict.fromkeys(known, 0.0)
        self._lock = threading.Lock()

    def increment(self, *labels: str, n: float = 1) -> None:
        with self._lock:
            self._by_labels[labels] = self._by_labels.get(labels, 0.0) + n

    def snapshot(self) -> dict[Labels, float]:
        with self._lock:
            return dict(self._by_labels)


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


def histogram_family(name: str, text: str, values: Histogram) -> Metric:
    return labeled_histogram_family(name, text, (), [((), values)])


def labeled_histogram_family(
    name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, Histogram]]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, histogram in values:
        buckets, total = histogram.snapshot()
        family.add_metric(label_values, buckets, total)
    return family
