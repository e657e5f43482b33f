"""The benches run and give figures; how large these are is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from bench.figures import Area, Figure, at_least, at_most, markdown, number, percentile

ROOT = Path(__file__).parents[2]
# One time minus another: what the machine does beside can make the second the longer one.
DIFFERENCES = ("added latency", "bare proxy: added latency", "start beyond", "first token later than the provider's")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_the_quick_benches_print_their_figures_as_json(tmp_path: Path) -> None:
    done = bench("decide", "receipts", "atp", "start", "llm", "--quick", "--json", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert "quick sizes" in found["machine"]
    assert list(found["figures"]) == ["decide", "receipts", "atp", "start", "llm"]
    for figure in (figure for area in found["figures"].values() for figure in area):
        assert isfinite(figure["value"]), figure
        assert figure["value"] > 0 or figure["name"].startswith(DIFFERENCES), figure
        assert figure["unit"], figure
        assert figure["method"], figure
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_unknown_bench_is_refused_with_its_name() -> None:
    done = bench("decide", "speed")
    assert done.returncode == 2
    assert "no such bench: speed" in done.stderr


def test_headroom_below_one_says_that_a_target_is_missed() -> None:
    slow = Figure("tasks", 500, "/s", "counted", at_least(1_000))
    late = Figure("start", 4, "s", "timed", at_most(2))
    assert (slow.headroom_shown, late.headroom_shown) == ("0.50 (missed)", "0.50 (missed)")
    assert Figure("start", 1, "s", "timed", at_most(2)).headroom_shown == "2.00"


def test_a_table_for_the_readme_has_a_row_per_figure() -> None:
    text = markdown([Area("start", "start", [Figure("start", 0.5, "s", "timed", at_most(2), "3 rounds")])])
    assert "| start | 0.500 s (3 rounds) | ≤ 2.00 s | 4.00 | timed |" in text.splitlines()


@pytest.mark.parametrize(("value", "shown"), [(1234.5, "1,234"), (12.345, "12.3"), (0.1234, "0.123"), (0, "0")])
def test_numbers_are_shown_with_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1)] == [50, 95, 99, 100]
    assert percentile([7.0], 0.01) == 7
