"""Tables of (prompt, model, correct, cost) for the replay, from CSV or JSONL in three public forms, or synthetic.

- long: a row for each prompt and model, with `prompt`, `model`, `correct`, and `cost` where it is known;
- RouterBench: a row for each prompt, with `prompt`, a column per model, and its cost in `MODEL|total_cost`;
- RouteLLM: a row for each prompt, with `prompt` and a column per model; no costs.

`correct` is true or false, or a score from 0 to 1; costs are US dollars. Other columns are passed over.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

COST = "|total_cost"
CORRECT = ("correct", "score", "performance")
BESIDE = frozenset(
    "prompt model cost correct score performance sample_id eval_name oracle_model_to_route_to answer label id index "
    "question_id".split()
)
"""Columns that are no model's."""
MOST_BYTES = 64_000_000
"""Of one field: answers of models may stand beside the scores."""


class TableError(ValueError):
    """The file cannot be read as a table; the message says where and why."""


@dataclass
class Row:
    """One prompt; what each model's answer was worth, in [0,1], and what it cost where that is known."""

    prompt: str
    correct: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)


@dataclass
class Table:
    """Every row has all models."""

    name: str
    models: list[str]
    rows: list[Row]

    @property
    def costs(self) -> dict[str, float]:
        """What each model costs on average, where that is known."""
        known = {model: [row.cost[model] for row in self.rows if model in row.cost] for model in self.models}
        return {model: sum(costs) / len(costs) for model, costs in known.items() if costs}


def read(path: Path) -> Table:
    """Raises TableError. A prompt that not every model answered is left out."""
    lines = list(_lines(path))
    if not lines:
        raise TableError(f"{path.name} has no rows.")
    if "prompt" not in lines[0]:
        raise TableError(f"{path.name} has no column 'prompt'; it has {', '.join(map(str, lines[0]))}.")
    rows = _long(path, lines) if "model" in lines[0] else _wide(path, lines)
    models = sorted({model for row in rows for model in row.correct})
    whole = [row for row in rows if len(row.correct) == len(models)]
    if len(models) < 2 or not whole:
        raise TableError(f"{path.name} has no prompt that two models answered, and every model that it names.")
    return Table(path.name, models, whole)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        if path.suffix == ".csv":
            csv.field_size_limit(MOST_BYTES)
            yield from csv.DictReader(file)
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise TableError(f"{path.name}, line {number}: no JSON ({error}).") from None
            if not isinstance(found, dict):
                raise TableError(f"{path.name}, line {number}: no JSON object.")
            yield found


def _long(path: Path, lines: list[dict[str, Any]]) -> list[Row]:
    name = next((each for each in CORRECT if each in lines[0]), None)
    if name is None:
        raise TableError(f"{path.name} has a column 'model', and none of {', '.join(CORRECT)}.")
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        worth = _worth(line.get(name))
        if worth is None:
            raise TableError(f"{path.name}, row {number}: {line.get(name)!r} is not true, false or from 0 to 1.")
        row = rows.setdefault(str(line["prompt"]), Row(str(line["prompt"])))
        row.correct[str(line["model"])] = worth
        if (cost := _cost(line.get("cost"))) is not None:
            row.cost[str(line["model"])] = cost
    return list(rows.values())


def _wide(path: Path, lines: list[dict[str, Any]]) -> list[Row]:
    names = [name for name in lines[0] if name and "|" not in name and name.lower() not in BESIDE]
    priced = [name for name in names if name + COST in lines[0]]
    models = priced or [name for name in names if all(_worth(line.get(name)) is not None for line in lines)]
    if not models:
        raise TableError(f"{path.name} has no column that is true, false or from 0 to 1 in each row.")
    rows = []
    for line in lines:
        row = Row(str(line["prompt"]))
        for model in models:
            if (worth := _worth(line.get(model))) is not None:
                row.correct[model] = worth
            if (cost := _cost(line.get(model + COST))) is not None:
                row.cost[model] = cost
        rows.append(row)
    return rows


def _worth(value: Any) -> float | None:
    if isinstance(value, str):
        value = {"true": 1, "false": 0}.get(value.strip().lower(), value)
    try:
        worth = float(value)
    except (TypeError, ValueError):
        return None
    return worth if 0 <= worth <= 1 else None


def _cost(value: Any) -> float | None:
    try:
        cost = float(value)
    except (TypeError, ValueError):
        return None
    return cost if 0 <= cost < float("inf") else None


PROMPTS = {
    "code": ("Write a python function that {}.", "Why does this raise a traceback when it {}?"),
    "maths": ("Solve the equation for {} and show each step.", "How many pieces are left after {}?"),
    "question": ("Why is it that {}?", "What happens when someone {}?"),
    "instruction": ("Summarize a letter about {}.", "Translate a note about {} into Polish."),
    "script": ("请解释 {} 是什么，为什么重要。", "Объясните подробно и понятно, что значит {}."),
}
THINGS = ("x", "tides", "salt", "two boats", "a harbour", "old maps", "the wind", "a lighthouse")
MODELS = {"tiny": 0.0002, "small": 0.001, "medium": 0.005, "large": 0.02}
"""Invented models with invented costs of a request in US dollars."""


def synthetic(seed: int, rows: int) -> Table:
    """Invented: each model is right at a rate of its own for each subject, the dearer ones more often on average."""
    random = Random(f"models/{seed}")
    rates = {
        (model, subject): min(0.97, max(0.05, 0.45 + 0.12 * at + random.gauss(0, 0.18)))
        for at, model in enumerate(MODELS)
        for subject in PROMPTS
    }
    made = []
    for number in range(rows):
        subject = random.choice(tuple(PROMPTS))
        prompt = random.choice(PROMPTS[subject]).format(random.choice(THINGS)) + f" ({number})"
        row = Row(prompt)
        for model, cost in MODELS.items():
            row.correct[model] = float(random.random() < rates[model, subject])
            row.cost[model] = cost * random.uniform(0.5, 2)
        made.append(row)
    return Table(f"synthetic {seed}", list(MODELS), made)
