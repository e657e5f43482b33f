"""What a part of the service counts and measures of itself, and the families that Prometheus is shown.

Every label has a small, fixed set of values: never an id, a name that a caller chose, or a capability.
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
"""By the values of the labels, a tuple of texts."""

SHORT_BUCKETS_S = (0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Bounds in seconds for what takes microseconds."""
REQUEST_BUCKETS_S = (0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds in seconds for a request or a commit."""
LONG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds in seconds for work that takes its time."""


class Histogram:
    """How many values lie at or below each bound. Any thread may use it."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        at = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        with self._lock:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
                self._sum += value

    def snapshot(self) -> tuple[list[tuple[str, float]], float]:
        """Each bound with the number of values up to it, and the sum of all values."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(counts), strict=True)], total


class LabeledHistogram:
    """A histogram for each combination of label values that comes up."""

    def __init__(self, bounds: Sequence[float], *known: Labels) -> None:
        self._bounds = tuple(bounds)
        self._by_labels: dict[Labels, Histogram] = {labels: Histogram(bounds) for labels in known}

    def labels(self, *labels: str) -> Histogram:
        found = self._by_labels.get(labels)
        return found if found is not None else self._by_labels.setdefault(labels, Histogram(self._bounds))

    def items(self) -> list[tuple[Labels, Histogram]]:
        return list(self._by_labels.items())


class LabeledCounter:
    """A counter for each combination of label values; the `known` ones are shown from the start, as 0."""

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
    """One gauge for each value of a label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for of, value in values.items():
        family.add_metric([of], value)
    return family


def counter_family(name: str, text: str, value: float) -> Metric:
    """`name` without `_total`, which is added."""
    return CounterMetricFamily(name, text, value=value)


def labeled_counter_family(name: str, text: str, labels: Labels, values: Values) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def histogram_family(name: str, text: str, values: Histogram) -> Metric:
    return labeled_histogram_family(name, text, (), [((), values)])


def labeled_histogram_family(
    name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, Histogram]]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for of, one in values:
        buckets, total = one.snapshot()
        family.add_metric(of, buckets, total)
    return family
