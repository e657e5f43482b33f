"""Replays tables of (prompt, model, correct, cost) in order: what `auto` would have chosen, against the usual peers.

Ours is the product's own code: `kind_of`, `candidates` and `decide` choose, `learned` learns, from the chosen answer
alone, whose `correct` is taken for its grade. What a model costs on average is known to all before, as prices are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from statistics import mean
from typing import Protocol

import msgspec

from bench.figures import Figure, at_most
from bench.routing import tables
from bench.routing.tables import Row, Table, TableError
from bench.sizes import Scale, say
from stentor.domains.learning.model import apply_outcome, initial_weight
from stentor.domains.learning.view import LearningView
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart
from stentor.domains.modelrouting.model import ModelOption, build_candidates, choose_model, classify_request
from stentor.domains.routing.penalties import COST_OFFSET_USD, PENALTIES_BY_PREFERENCE, Preference, count_doublings

PREFERRED: tuple[Preference, ...] = ("quality", "balanced", "cheap")
ALPHA = 0.2
"""The default of SERVICE_HEBBIAN_ROUTING_ALPHA."""


class Policy(Protocol):
    def choose(self, row: Row) -> str: ...
    def learn(self, row: Row, model: str) -> None: ...


class Fixed:
    """One model for everything: the first, by `key` over the whole table."""

    def __init__(self, table: Table, key: Callable[[str], float]) -> None:
        self._model = min(table.models, key=key)

    def choose(self, row: Row) -> str:
        return self._model

    def learn(self, row: Row, model: str) -> None:
        pass


class Anyone:
    def __init__(self, table: Table, seed: int) -> None:
        self._models, self._random = table.models, Random(seed)

    def choose(self, row: Row) -> str:
        return self._random.choice(self._models)

    def learn(self, row: Row, model: str) -> None:
        pass


class Thompson:
    """Beta(1 + correct, 1 + wrong) for each model over all prompts, less what its mean cost takes off."""

    def __init__(self, table: Table, prefer: Preference, seed: int) -> None:
        self._models, self._random = table.models, Random(seed)
        self._right, self._wrong = dict.fromkeys(table.models, 0.0), dict.fromkeys(table.models, 0.0)
        costs = table.costs
        cheapest = min(costs.values(), default=0.0)
        per_cost = PENALTIES_BY_PREFERENCE[prefer][1]
        self._less = {
            each: per_cost * count_doublings(costs.get(each, 0.0), cheapest, COST_OFFSET_USD) for each in table.models
        }

    def choose(self, row: Row) -> str:
        def score(model: str) -> float:
            return self._random.betavariate(1 + self._right[model], 1 + self._wrong[model]) - self._less[model]

        return max(self._models, key=score)

    def learn(self, row: Row, model: str) -> None:
        self._right[model] += row.correct[model]
        self._wrong[model] += 1 - row.correct[model]


class Ours:
    """The product's own functions; without `kinds` all prompts are of one kind."""

    def __init__(self, table: Table, prefer: Preference, *, kinds: bool) -> None:
        self._prefer, self._kinds, self._usual = prefer, kinds, table.costs
        self._entries = [ModelOption(model, self._usual.get(model), self._usual.get(model)) for model in table.models]
        self._view = LearningView()

    def choose(self, row: Row) -> str:
        kind = self._kind(row)
        ranked = build_candidates(self._entries, self._view, "", kind, ALPHA, 0)
        return choose_model(ranked, kind, self._prefer, ALPHA).agent_id

    def learn(self, row: Row, model: str) -> None:
        records, worth = self._view.records("", self._kind(row)), row.correct[model]
        known = records.weights_by_agent.get(model) or initial_weight(model, self._kind(row), 0)
        cost, usual = row.cost.get(model), self._usual.get(model)
        relative_cost = None if cost is None or not usual else cost / usual
        weight = apply_outcome(
            known,
            success=worth > 0,
            performance=worth,
            duration_ms=0,
            now=0,
            cost=relative_cost,
            progress=records.progress,
        )
        self._view.put("", weight)

    def _kind(self, row: Row) -> str:
        return (
            classify_request(ChatRequest("auto", (LlmMessage("user", (TextPart(row.prompt),)),)))
            if self._kinds
            else "any"
        )


class Replayed(msgspec.Struct, frozen=True):
    """Per 1,000 prompts: cost in US dollars, what was lost against the best model of each prompt and against the best
    single model for all of them. `accuracy` is the mean of `correct`.
    """

    accuracy: float
    cost: float
    regret: float
    to_single: float


def value(row: Row, model: str, prefer: Preference) -> float:
    """What an answer is worth to who prefers this: correct, less what its cost takes off."""
    cheapest = min(row.cost.values(), default=0.0)
    return row.correct[model] - PENALTIES_BY_PREFERENCE[prefer][1] * count_doublings(
        row.cost.get(model, 0.0), cheapest, COST_OFFSET_USD
    )


def replay(table: Table, policy: Policy, prefer: Preference) -> Replayed:
    """One pass over the table in its order."""
    right = cost = got = best = 0.0
    single = dict.fromkeys(table.models, 0.0)
    for row in table.rows:
        model = policy.choose(row)
        policy.learn(row, model)
        values = {each: value(row, each, prefer) for each in table.models}
        for each in table.models:
            single[each] += values[each]
        right, cost = right + row.correct[model], cost + row.cost.get(model, 0.0)
        got, best = got + values[model], best + max(values.values())
    number = len(table.rows)
    thousand = 1_000 / number
    return Replayed(right / number, cost * thousand, (best - got) * thousand, (max(single.values()) - got) * thousand)


def policies(table: Table, prefer: Preference, seed: int) -> dict[str, Policy]:
    """Ours and its peers; two of these know the whole table before."""

    def worth(model: str) -> float:
        return -sum(value(row, model, prefer) for row in table.rows)

    def cost(model: str) -> float:
        return sum(row.cost.get(model, 0.0) for row in table.rows)

    return {
        "best single model in hindsight": Fixed(table, worth),
        "cheapest model": Fixed(table, cost),
        "dearest model": Fixed(table, lambda model: -cost(model)),
        "any model": Anyone(table, seed),
        "Thompson, no kinds": Thompson(table, prefer, seed),
        "ours, no kinds": Ours(table, prefer, kinds=False),
        "ours": Ours(table, prefer, kinds=True),
    }


def run(scale: Scale) -> list[Figure]:
    """On the file of `--table`, else on synthetic tables."""
    if scale.table is not None:
        say(f"routing: models, {scale.table.name}")
        try:
            table = tables.read(scale.table)
        except (TableError, OSError) as error:
            raise SystemExit(f"--table: {error}") from None
        return figures([table], scale.table.name)
    number, rows = scale.pick((10, 2_000), (2, 200))
    say("routing: models, synthetic tables")
    made = [tables.synthetic(seed, rows) for seed in range(number)]
    return figures(made, f"{number} synthetic tables", targets=True)


def figures(made: Sequence[Table], name: str, *, targets: bool = False) -> list[Figure]:
    how = f"{name}, {len(made[0].rows):,} prompts, {len(made[0].models)} models; regret per 1,000 to each prompt's best"
    found: list[Figure] = []
    for prefer in PREFERRED:
        played: dict[str, list[Replayed]] = defaultdict(list)
        for seed, table in enumerate(made):
            for policy, player in policies(table, prefer, seed).items():
                played[policy].append(replay(table, player, prefer))
        found += [_figure(f"models, {prefer}: {policy}", games, how) for policy, games in played.items()]
        if targets:
            ours, peer = (mean(game.regret for game in played[each]) for each in ("ours", "Thompson, no kinds"))
            found.append(Figure(f"models, {prefer}, ours / Thompson", ours / peer, "×", how, at_most(1)))
    return found


def _figure(name: str, games: Sequence[Replayed], how: str) -> Figure:
    right, cost = mean(game.accuracy for game in games), mean(game.cost for game in games)
    single = mean(game.to_single for game in games)
    note = f"correct {right:.1%}; ${cost:.2f} per 1,000; {single:.0f} to the best single model"
    return Figure(name, mean(game.regret for game in games), "regret", how, None, note)
