"""Policies: which agent gets the next task. Ours is the product's own functions; the peers are the textbook's."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from random import Random
from typing import Protocol

import msgspec

from bench.routing.worlds import DOUBLING, World
from stentor.domains.learning.length import Splits, length_group
from stentor.domains.learning.model import Weight, apply_outcome, initial_weight
from stentor.domains.learning.view import LearningView, TaskTypeRecords
from stentor.domains.registry.model import Agent, Runtime, SandboxWhitelist
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.penalties import COST_OFFSET_USD, Preference, count_doublings
from stentor.domains.routing.ranking import rank_candidates
from stentor.domains.routing.service import AGE_STEP, track_record_from_weight
from stentor.domains.routing.track_record import TrackRecord

TENANT = "default"


class Policy(Protocol):
    """`choose` answers the number of an agent; `learn` is told what it was worth, in [0,1].

    `length` is the length of the input, None where all have the same.
    """

    def choose(self, kind: int, ahead: list[int], length: int | None) -> int: ...
    def learn(self, kind: int, agent: int, reward: float, length: int | None) -> None: ...


def penalties(world: World) -> list[float]:
    """What each agent's cost takes off its value, the same for every policy."""
    cheapest = min(world.costs, default=0.0)
    return [DOUBLING * count_doublings(cost, cheapest, COST_OFFSET_USD) for cost in world.costs] or [0.0] * world.agents


class Declared:
    """The composite score alone."""

    def __init__(self, world: World, random: Random) -> None:
        values = [score - less for score, less in zip(world.declared, penalties(world), strict=True)]
        self._best = values.index(max(values))

    def choose(self, kind: int, ahead: list[int], length: int | None) -> int:
        return self._best

    def learn(self, kind: int, agent: int, reward: float, length: int | None) -> None:
        pass


class Before:
    """The ranking of version 0.1: 0.7 composite + 0.3 weight / largest weight, 0.5 without a record."""

    def __init__(self, world: World, random: Random) -> None:
        self._declared = world.declared
        self._less = penalties(world)
        self._weights: dict[int, dict[int, Weight]] = {}

    def choose(self, kind: int, ahead: list[int], length: int | None) -> int:
        known = self._weights.get(kind, {})
        largest = max((record.weight for record in known.values()), default=1.0)
        scores = [
            0.7 * score + 0.3 * (known[n].weight / largest if n in known else 0.5) - self._less[n]
            for n, score in enumerate(self._declared)
        ]
        return scores.index(max(scores))

    def learn(self, kind: int, agent: int, reward: float, length: int | None) -> None:
        records = self._weights.setdefault(kind, {})
        record = records.get(agent) or initial_weight(str(agent), str(kind), 0)
        records[agent] = apply_outcome(record, success=reward > 0, performance=reward, duration_ms=0, now=0)


class Counting:
    """Sums of rewards and numbers of outcomes by type and agent, for the peers."""

    def __init__(self, world: World, random: Random) -> None:
        self.random = random
        self.less = penalties(world)
        self.sums = [[0.0] * world.agents for _ in range(world.types)]
        self.numbers = [[0.0] * world.agents for _ in range(world.types)]

    def learn(self, kind: int, agent: int, reward: float, length: int | None) -> None:
        self.sums[kind][agent] += reward
        self.numbers[kind][agent] += 1


class Ucb1(Counting):
    def choose(self, kind: int, ahead: list[int], length: int | None) -> int:
        numbers, sums = self.numbers[kind], self.sums[kind]
        if 0 in numbers:
            return numbers.index(0)
        total = 2 * log(sum(numbers) + 1)
        scores = [s / n + sqrt(total / n) - less for s, n, less in zip(sums, numbers, self.less, strict=True)]
        return scores.index(max(scores))


class Thompson(Counting):
    """Beta(1 + successes, 1 + failures); a graded outcome counts as parts of both."""

    def choose(self, kind: int, ahead: list[int], length: int | None) -> int:
        draw = self.random.betavariate
        scores = [
            draw(1 + s, 1 + max(0.0, n - s)) - less
            for s, n, less in zip(self.sums[kind], self.numbers[kind], self.less, strict=True)
        ]
        return scores.index(max(scores))


class DiscountedThompson(Thompson):
    """All counts of a type shrink by 2 percent with each of its outcomes."""

    def learn(self, kind: int, agent: int, reward: float, length: int | None) -> None:
        self.sums[kind] = [0.98 * value for value in self.sums[kind]]
        self.numbers[kind] = [0.98 * value for value in self.numbers[kind]]
        super().learn(kind, agent, reward, length)


class Evidence:
    """Ours: the view keeps the records, `rank_candidates` chooses."""

    alpha = 0.2

    def __init__(self, world: World, random: Random) -> None:
        self._agents = [_agent(n, score) for n, score in enumerate(world.declared)]
        self._costs = world.costs
        self._view = LearningView()
        self._known: dict[tuple[str, int], tuple[object, TrackRecord]] = {}

    def choose(self, kind: int, ahead: list[int], length: int | None) -> int:
        records = self._view.records(TENANT, str(kind))
        odds = None if length is None else records.length_effect()
        lengths = None if length is None or odds is None else (odds, length_group(length))
        candidates = [self._candidate(str(kind), n, records, ahead[n], lengths) for n in range(len(self._agents))]
        prefer: Preference = "cheap" if self._costs else "quality"
        return int(rank_candidates(candidates, 0.0, prefer, limit=1).candidates[0].agent_id)

    def _candidate(
        self, kind: str, n: int, records: TaskTypeRecords, ahead: int, lengths: tuple[Splits, int] | None
    ) -> AgentCandidate:
        agent, progress = self._agents[n], records.progress
        weight, recent = records.weights_by_agent.get(agent.agent_id), self._view.recent_by_agent.get(agent.agent_id)
        # As the service does: a track record lasts until the agent's records or all results change.
        age = (progress.tick - (weight.tick if weight else 0)) // AGE_STEP
        state = weight, recent, age, progress.changed_tick, lengths
        known_at, known = self._known.get((kind, n), (None, None))
        if known is None or known_at != state:
            known = track_record_from_weight(
                agent.composite,
                self.alpha,
                weight,
                recent.elsewhere(kind) if recent else (0.0, 0.0),
                age * AGE_STEP,
                0,
                stale=progress.has_changed_since(weight),
                by_grades=False,
                seen=progress.tick,
                lengths=lengths,
            )
            # As in a price list: an agent's cost is known before its first task.
            known = msgspec.structs.replace(known, cost=self._costs[n] if self._costs else None, duration_ms=None)
            self._known[kind, n] = state, known
        return AgentCandidate(agent, known, ahead=ahead)

    def learn(self, kind: int, agent: int, reward: float, length: int | None) -> None:
        records = self._view.records(TENANT, str(kind))
        known = records.weights_by_agent.get(str(agent)) or initial_weight(str(agent), str(kind), 0)
        known, progress = records.before_outcome(known, success=reward > 0)
        weight = apply_outcome(
            known, success=reward > 0, performance=reward, duration_ms=0, now=0, progress=progress, length=length
        )
        self._view.put(TENANT, weight)


def _agent(n: int, score: float) -> Agent:
    scores = (score, score, score)
    return Agent(
        str(n), "default", f"{n:03}", (), *scores, "auto", "active", Runtime(), SandboxWhitelist(), None, 0, None, 0, 0
    )


POLICIES: dict[str, Callable[[World, Random], Policy]] = {
    "composite alone": Declared,
    "ranking of 0.1": Before,
    "UCB1": Ucb1,
    "Thompson": Thompson,
    "discounted Thompson": DiscountedThompson,
    "ours": Evidence,
}
PEERS = ("composite alone", "UCB1", "Thompson", "discounted Thompson")
