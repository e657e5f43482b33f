"""Counters and histograms of our own say what those of Prometheus's library say."""

from __future__ import annotations

import threading

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from stentor.core.metrics import (
    LONG_BUCKETS_S,
    REQUEST_BUCKETS_S,
    SHORT_BUCKETS_S,
    Histogram,
    LabeledCounter,
    LabeledHistogram,
    counter_family,
    histogram_family,
)

VALUES = st.lists(st.one_of(st.sampled_from(REQUEST_BUCKETS_S), st.floats(0, 100, allow_nan=False)), max_size=50)


@given(VALUES)
def test_a_histogram_counts_as_the_library_does(values: list[float]) -> None:
    ours = Histogram(REQUEST_BUCKETS_S)
    theirs = prometheus_client.Histogram("h", "x", buckets=REQUEST_BUCKETS_S, registry=CollectorRegistry())
    half = len(values) // 2
    ours.observe_all(values[:half])
    for value in values[half:]:
        ours.observe(value)
    for value in values:
        theirs.observe(value)
    shown = [sample for family in theirs.collect() for sample in family.samples if not sample.name.endswith("_created")]
    (found,) = [histogram_family("h", "x", ours)]
    by_name = {(sample.name, sample.labels.get("le")): sample.value for sample in found.samples}
    assert by_name == {(sample.name, sample.labels.get("le")): sample.value for sample in shown}


def test_bounds_rise_and_are_seconds() -> None:
    for bounds in (SHORT_BUCKETS_S, REQUEST_BUCKETS_S, LONG_BUCKETS_S):
        assert list(bounds) == sorted(set(bounds))
        assert bounds[-1] >= 1


def test_nothing_is_lost_between_threads() -> None:
    counts, seen = LabeledCounter(), LabeledHistogram(REQUEST_BUCKETS_S)

    def work() -> None:
        for n in range(2_000):
            counts.increment("a")
            seen.labels("a").observe(n / 1000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.snapshot() == {("a",): 8_000}
    ((_, one),) = seen.items()
    assert one.snapshot()[0][-1] == ("+Inf", 8_000)


def test_a_counter_is_shown_with_total_and_known_labels_from_the_start() -> None:
    (sample,) = counter_family("c", "x", 3).samples
    assert (sample.name, sample.value) == ("c_total", 3)
    assert LabeledCounter(("a",), ("b",)).snapshot() == {("a",): 0, ("b",): 0}
