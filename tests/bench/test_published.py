"""The figures that bench/README.md publishes keep what the contract publishes as its targets. Nothing is timed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.requirements import requirement

PAGE = (Path(__file__).parents[2] / "bench" / "README.md").read_text("utf-8")
ROW = re.compile(r"^\| ([\d,]+) notes: (.+?) p95 \| ([\d.,]+) ms \(p50 [\d.,]+, p99 ([\d.,]+)\) \|", re.MULTILINE)


def published() -> dict[tuple[str, str], tuple[float, float]]:
    """p95 and p99 in milliseconds, by number of notes and figure."""
    return {(m[1], m[2]): (float(m[3].replace(",", "")), float(m[4].replace(",", ""))) for m in ROW.finditer(PAGE)}


@requirement("memory.latency-targets")
@pytest.mark.parametrize("notes", ["2,000", "20,000", "100,000"])
def test_the_memory_keeps_the_latencies_that_the_contract_names(notes: str) -> None:
    found = published()
    for clients in ("1 client", "32 clients"):
        p95, p99 = found[notes, f"write, {clients}"]
        assert p95 < 200
        assert p99 < 500
    assert found[notes, "exact read"][0] < 50
    for way in ("a write through the bus", "an edit in the folder"):
        assert found[notes, f"sync lag, {way}"][0] < 300
