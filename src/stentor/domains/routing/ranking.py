"""Ranks the admitted candidates: what an agent says of itself is a prior, what it has shown is evidence. Pure.

    prior       = (4 (0.3 + 0.5 composite) + e elsewhere) / (4 + e)  before any outcome at this task type
    expectation = mean + slope (prior - mean)                        as far as priors hold for the others
    strength    = (1 - alpha) / alpha + e / 4                        outcomes that the prior is worth
    open        = ahead strength / (4 (strength + outcomes))         what its tasks without an answer count as
    expected    = (strength expectation + rewards) / (strength + outcomes + open)
    q           = optimism variation / (strength + outcomes + ahead) optimism is 4, and 400 for who is stale and idle
    possible    = (expected + q / 2 + sqrt(q expected (1 - expected) + q^2 / 4)) / (1 + q)
    uncertainty = possible - expected                                how much better it may be than is expected
    blended     = (1 - beta) (expected + uncertainty - time - cost) + beta trust

`possible` is the upper end of Wilson's interval at two standard deviations: never above 1, so that nobody is tried for
hopes that no agent could fulfil. For an agent that is stale, without an outcome since somebody's results changed at the
task type, and has nothing to do, it is the end at twenty: whatever changed may have changed for it too, so each of them
is tried once more. `rewards` and `outcomes` are the agent's at this task type (learning/evidence.py), faded by one part
in 1,000 for each outcome of the others since; `variation` is 1 unless outcomes are graded and alike. `elsewhere` is the
mean at the agent's other types and `e` their number, at most 16. `ahead` are the tasks that it has already: each counts
as a quarter of a failure as far as the agent is unknown, so that many tasks at once do not all try the same one. `time`
and `cost` rise by a fixed amount for each doubling over the best candidate. Why, and what was measured:
docs/decisions/0036-routing-that-learns.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, sqrt
from typing import Literal, Protocol

import msgspec

from stentor.domains.registry.model import Agent

Preference = Literal["quality", "balanced", "fast", "cheap"]

RULE_VERSION = "evidence-3"
"""Names the formula in each decision, so that one of another version is not held against it."""
NEUTRAL_TRUST = 0.5
"""The prior for a missing trust score."""
MIN_DECLARED_PRIOR, DECLARED_PRIOR_SPAN = 0.3, 0.5
"""What a composite score of 0 makes one expect, and how much more a score of 1: words alone promise neither success nor
failure, so an agent that fails is left soon whatever it declares.
"""
DECLARED_PRIOR_WEIGHT = 4.0
"""Outcomes at other task types that the composite score is worth."""
MAX_OTHER_OUTCOMES = 16.0
"""Outcomes at other task types that count, at most."""
MAX_OTHER_WEIGHT = 4.0
"""Outcomes at this task type that those are worth, at most."""
EVIDENCE_DECAY = 0.999
"""What evidence keeps of its number for each later outcome of another agent at the task type."""
MIN_OUTCOMES = 1e-9
"""Outcomes below which there is no evidence left."""
OPEN_TASK_PENALTY = 0.25
"""Failures that a task without an answer counts as, of an agent of which nothing is known."""
OPTIMISM = 4.0
"""Square of the standard deviations, two, that an agent is given the benefit of."""
OPTIMISM_STALE = 400.0
"""The same for an idle agent without an outcome since somebody's results changed at the task type."""
SLOPE_REGULARIZATION = 0.05
"""How much variance of the priors it takes until their slope is measured rather than assumed to be 1."""
MIN_EXPECTATION = 0.02
"""The least expectation, and the distance of the largest from 1: nobody is certain before there is evidence."""
MIN_STRENGTH, MAX_STRENGTH = 0.5, 1e9
"""Bounds of the prior's strength, for an alpha of 1 and of 0."""
DURATION_OFFSET_MS = 1_000.0
COST_OFFSET_USD = 0.001
"""Durations and costs are compared above these: nobody cares for a doubling of less."""
DEFAULT_DURATION_MS = 1_000.0
"""Of a task where no candidate's duration is known, so that a queue counts all the same."""

PENALTIES_BY_PREFERENCE: dict[Preference, tuple[float, float]] = {
    "quality": (0.0, 0.0),
    "balanced": (0.03, 0.02),
    "fast": (0.15, 0.02),
    "cheap": (0.02, 0.15),
}
"""What a doubling of the time, and of the cost, takes off the expected quality."""


class TrackRecord(msgspec.Struct, frozen=True):
    """What an agent's record says of its next outcome at a task type, before anything is known of the other candidates:
    the first lines of the formula. `share` is how much the evidence counts, `mean` what it shows; times in
    milliseconds and cost in US dollars, None where unknown. `stale` when there is no outcome since the last change of
    anybody's results at the task type.
    """

    prior: float
    strength: float
    rewards: float = 0.0
    outcomes: float = 0.0
    elsewhere: float = 0.0
    elsewhere_outcomes: float = 0.0
    share: float = 0.0
    mean: float = 0.0
    variation: float = 1.0
    weight: float | None = None
    duration_ms: float | None = None
    cost: float | None = None
    stale: bool = False


def build_track_record(
    composite: float,
    alpha: float,
    rewards: float = 0.0,
    outcomes: float = 0.0,
    elsewhere: tuple[float, float] = (0.0, 0.0),
    *,
    age: int = 0,
    variation: float = 1.0,
    weight: float | None = None,
    duration_ms: float | None = None,
    cost: float | None = None,
    stale: bool = False,
) -> TrackRecord:
    """From a sum of `rewards` of so many `outcomes`, which `age` outcomes of others came after, and the same two of all
    other task types together.
    """
    strength = min(MAX_STRENGTH, max(MIN_STRENGTH, (1 - alpha) / alpha)) if alpha > 0 else MAX_STRENGTH
    declared = MIN_DECLARED_PRIOR + DECLARED_PRIOR_SPAN * composite
    prior, mean, number = declared, 0.0, min(MAX_OTHER_OUTCOMES, elsewhere[1])
    if number > 0:
        mean = elsewhere[0] / elsewhere[1]
        prior = (DECLARED_PRIOR_WEIGHT * declared + number * mean) / (DECLARED_PRIOR_WEIGHT + number)
        strength += MAX_OTHER_WEIGHT * number / MAX_OTHER_OUTCOMES
    kept = EVIDENCE_DECAY**age
    rewards, outcomes = rewards * kept, outcomes * kept
    if outcomes < MIN_OUTCOMES:
        return TrackRecord(prior, strength, 0.0, 0.0, mean, number, 0.0, 0.0, 1.0, weight, duration_ms, cost, stale)
    share = outcomes / (outcomes + strength)
    shown = rewards / outcomes
    return TrackRecord(
        prior, strength, rewards, outcomes, mean, number, share, shown, variation, weight, duration_ms, cost, stale
    )


class AgentCandidate(msgspec.Struct, frozen=True):
    """An agent as routing sees it: `ahead` tasks wait for it or run, of which it does `lanes` at a time."""

    agent: Agent
    track_record: TrackRecord
    trust: float | None = None
    ahead: int = 0
    concurrency: int = 1
    online: bool = True


class RankedSubject(Protocol):
    """Who is ranked: an agent, or a model of a provider (domains/modelrouting). Equal scores fall to the name."""

    @property
    def agent_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def composite(self) -> float: ...


class RankableCandidate(Protocol):
    """The fields of `Candidate`, of an agent or of a model."""

    @property
    def agent(self) -> RankedSubject: ...
    @property
    def track_record(self) -> TrackRecord: ...
    @property
    def trust(self) -> float | None: ...
    @property
    def ahead(self) -> int: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def online(self) -> bool: ...


class RankedCandidate(msgspec.Struct, frozen=True):
    """A candidate with what its rank was made of, in the order of the formula; `hebbian` is the weight as the routes of
    learning show it, None without an outcome. `blended` decides among those that are online.
    """

    agent_id: str
    name: str
    composite: float
    elsewhere: float
    elsewhere_outcomes: float
    prior: float
    strength: float
    rewards: float
    outcomes: float
    hebbian: float | None
    expected: float
    variation: float
    stale: bool
    ahead: int
    uncertainty: float
    ready_ms: float
    time_penalty: float
    cost: float | None
    cost_penalty: float
    trust: float
    online: bool
    blended: float


class RankingResult(msgspec.Struct, frozen=True):
    """The candidates, best first, and what holds for all of them. `usual_cost` stands in for an unknown one, in US
    dollars; None where all are known.
    """

    candidates: list[RankedCandidate]
    mean: float
    slope: float
    fastest_ms: float
    cheapest: float
    usual_cost: float | None = None


def rank_candidates(
    candidates: Sequence[RankableCandidate], beta: float, prefer: Preference = "balanced", limit: int | None = None
) -> RankingResult:
    """Those that are online first, then by blended score, composite, name and id. At most `most` are listed."""
    standings = [candidate.track_record for candidate in candidates]
    mean, slope = calibrate_priors(standings)
    totals = _filled([each.duration_ms for each in standings], DEFAULT_DURATION_MS)
    prices = [each.cost for each in standings]
    costs = _filled(prices, 0.0)
    usual = costs[prices.index(None)] if None in prices else None
    for n, candidate in enumerate(candidates):
        if candidate.ahead:
            totals[n] *= 1 + candidate.ahead // max(1, candidate.concurrency)
    fastest, cheapest = min(totals, default=0.0), min(costs, default=0.0)
    per_time, per_cost = PENALTIES_BY_PREFERENCE[prefer]
    keep, doubt, usual_optimism, stale_optimism = 1 - beta, OPEN_TASK_PENALTY, OPTIMISM / 2, OPTIMISM_STALE / 2
    least, largest = MIN_EXPECTATION, 1 - MIN_EXPECTATION
    order = []
    for n, (candidate, known) in enumerate(zip(candidates, standings, strict=True)):
        # `outlook` written out: a call for each candidate would be a tenth of the whole decision.
        strength = known.strength
        expectation = mean + slope * (known.prior - mean)
        expectation = least if expectation < least else largest if expectation > largest else expectation
        number, ahead = strength + known.outcomes, candidate.ahead
        if ahead:
            half = usual_optimism * known.variation / (number + ahead)
            number += ahead * doubt * strength / number
        else:
            half = (stale_optimism if known.stale else usual_optimism) * known.variation / number
        expected = (strength * expectation + known.rewards) / number
        score = (expected + half + sqrt(half * (2 * expected * (1 - expected) + half))) / (1 + 2 * half)
        if totals[n] > fastest:
            score -= per_time * count_doublings(totals[n], fastest, DURATION_OFFSET_MS)
        if costs[n] > cheapest:
            score -= per_cost * count_doublings(costs[n], cheapest, COST_OFFSET_USD)
        if beta:
            score = keep * score + beta * (NEUTRAL_TRUST if candidate.trust is None else candidate.trust)
        order.append((not candidate.online, -score, n))
    order.sort()
    _settle(order, candidates, len(order) if limit is None else limit)
    ranking = RankingResult([], mean, slope, fastest, cheapest, usual)
    for _, negative, n in order[:limit]:
        ranking.candidates.append(_ranked(candidates[n], ranking, totals[n], costs[n], -negative, prefer))
    return ranking


def _settle(order: list[tuple[bool, float, int]], candidates: Sequence[RankableCandidate], most: int) -> None:
    """Brings those with the same score into their order, among the first `most`. Longer keys for all would cost each
    decision a tenth of its time.
    """
    start = 0
    while start < most and start < len(order):
        (offline, score, _), end = order[start], start + 1
        while end < len(order) and order[end][1] == score and order[end][0] == offline:
            end += 1
        if end - start > 1:
            order[start:end] = sorted(order[start:end], key=lambda row: _precedence(candidates[row[2]].agent))
        start = end


def _precedence(agent: RankedSubject) -> tuple[float, str, str]:
    return -agent.composite, agent.name, agent.agent_id


def calibrate_priors(standings: Sequence[TrackRecord]) -> tuple[float, float]:
    """How far the priors hold: the mean prior of those with outcomes, and the slope of what they showed over it.

    1 as long as little is known; below 0 where those who say little of themselves do better.
    """
    total = priors = shown = 0.0
    known = []
    for each in standings:
        if share := each.share:
            known.append((share, each.prior, each.mean))
            total += share
            priors += share * each.prior
            shown += share * each.mean
    if len(known) < 2:
        return (known[0][1] if known else 0.0), 1.0
    mean, result = priors / total, shown / total
    variance = covariance = 0.0
    for share, prior, each_mean in known:
        weighted = share * (prior - mean)
        variance += weighted * (prior - mean)
        covariance += weighted * (each_mean - result)
    return mean, (SLOPE_REGULARIZATION + covariance) / (SLOPE_REGULARIZATION + variance)


def estimate_reward(standing: TrackRecord, mean: float, slope: float, ahead: int) -> tuple[float, float]:
    """The expected reward of the next outcome, and how much more the agent may be worth."""
    strength = standing.strength
    expectation = mean + slope * (standing.prior - mean)
    if expectation < MIN_EXPECTATION:
        expectation = MIN_EXPECTATION
    elif expectation > 1 - MIN_EXPECTATION:
        expectation = 1 - MIN_EXPECTATION
    number = strength + standing.outcomes
    expected = (strength * expectation + standing.rewards) / (number + ahead * OPEN_TASK_PENALTY * strength / number)
    optimism = OPTIMISM_STALE if standing.stale and not ahead else OPTIMISM
    half = optimism / 2 * standing.variation / (number + ahead)
    possible = (expected + half + sqrt(half * (2 * expected * (1 - expected) + half))) / (1 + 2 * half)
    return expected, possible - expected


def count_doublings(value: float, best: float, floor: float) -> float:
    """How often `best` must be doubled to reach `value`, both counted above `floor`."""
    return 0.0 if value <= best else log2((value + floor) / (best + floor))


def _filled(values: list[float | None], unknown: float) -> list[float]:
    """What is unknown is as good as the mean of what is known, so nobody gains or loses by being new."""
    if None not in values:
        return values  # type: ignore[return-value]
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else unknown
    return [mean if value is None else value for value in values]


def _ranked(
    candidate: RankableCandidate, ranking: RankingResult, total: float, price: float, blended: float, prefer: Preference
) -> RankedCandidate:
    agent, known = candidate.agent, candidate.track_record
    expected, uncertainty = estimate_reward(known, ranking.mean, ranking.slope, candidate.ahead)
    per_time, per_cost = PENALTIES_BY_PREFERENCE[prefer]
    return RankedCandidate(
        agent.agent_id,
        agent.name,
        agent.composite,
        known.elsewhere,
        known.elsewhere_outcomes,
        known.prior,
        known.strength,
        known.rewards,
        known.outcomes,
        known.weight,
        expected,
        known.variation,
        known.stale,
        candidate.ahead,
        uncertainty,
        total,
        per_time * count_doublings(total, ranking.fastest_ms, DURATION_OFFSET_MS),
        known.cost,
        per_cost * count_doublings(price, ranking.cheapest, COST_OFFSET_USD),
        NEUTRAL_TRUST if candidate.trust is None else candidate.trust,
        candidate.online,
        blended,
    )
