"""A cost with how it was measured, and the file that keeps them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

KEPT = Path(__file__).with_name("kept.json")
"""The costs that the published figures rest on."""


@dataclass(frozen=True)
class Cost:
    """`method` says in one line how it was measured."""

    value: float
    unit: str
    method: str


Costs = dict[str, Cost]


def save(path: Path, costs: Costs) -> None:
    path.write_text(json.dumps({name: asdict(cost) for name, cost in costs.items()}, indent=2) + "\n")


def load(path: Path = KEPT) -> Costs:
    return {name: Cost(**cost) for name, cost in json.loads(path.read_text()).items()}
