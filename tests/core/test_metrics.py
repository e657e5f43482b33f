"""Metrics are shown as the library shows its own, without its series of creation times."""

from __future__ import annotations

import prometheus_client

from stentor.core.metrics import (
    LONG_BUCKETS_S,
    REQUEST_BUCKETS_S,
    SHORT_BUCKETS_S,
    Counter,
    Histogram,
    counter_family,
)


def test_bounds_rise_and_are_seconds() -> None:
    for bounds in (SHORT_BUCKETS_S, REQUEST_BUCKETS_S, LONG_BUCKETS_S):
        assert list(bounds) == sorted(set(bounds))
        assert bounds[-1] >= 1


def test_known_labels_are_zero_from_the_start() -> None:
    counter = Counter("refusals", "x", "reason", known=[("budget",), ("circuit",)])
    (family,) = counter.collect()
    shown = {(sample.name, sample.labels["reason"]): sample.value for sample in family.samples}
    assert shown == {("refusals_total", "budget"): 0, ("refusals_total", "circuit"): 0}


def test_no_series_tells_when_it_was_created() -> None:
    histogram = Histogram("seconds", "x", SHORT_BUCKETS_S)
    histogram.observe(0.2)
    (family,) = histogram.collect()
    assert {sample.name for sample in family.samples} == {"seconds_bucket", "seconds_count", "seconds_sum"}


def test_a_computed_counter_is_shown_with_total() -> None:
    (sample,) = counter_family("c", "x", 3).samples
    assert (sample.name, sample.value) == ("c_total", 3)


def test_a_histogram_shows_what_one_of_the_library_does() -> None:
    ours = Histogram("seconds", "x", SHORT_BUCKETS_S, "route", "method")
    theirs = prometheus_client.Histogram("seconds", "x", ["route", "method"], buckets=SHORT_BUCKETS_S, registry=None)
    for histogram in (ours, theirs):
        # At a bound, between two, below the first and above the last.
        for value in (0.1, 0.2, 0.000_01, 7):
            histogram.labels("/a", "GET").observe(value)
        histogram.labels("/b", "GET").observe(0.1)
    shown, expected = ([(s.name, s.labels, s.value) for m in h.collect() for s in m.samples] for h in (ours, theirs))
    assert shown == [sample for sample in expected if not sample[0].endswith("_created")]
