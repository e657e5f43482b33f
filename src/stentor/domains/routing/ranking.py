"""Ranks the admitted candidates: the declared scores of an agent are a prior, its track record is evidence. Pure.

    prior       = (4 (0.3 + 0.5 composite) + e elsewhere) / (4 + e)  before any outcome at this task type
    expectation = mean + slope (prior - mean)                        as far as priors hold for the others
    strength    = (1 - alpha) / alpha + e / 4                        outcomes that the prior is worth
    open        = ahead strength / (4 (strength + outcomes))         failures that its unfinished tasks count as
    expected    = (strength expectation + rewards) / (strength + outcomes + open)
    optimism    = 4 + 2 ln(1 + seen / (20 (strength + outcomes)))      400 if it is stale and idle
    q           = optimism variation / (strength + outcomes + ahead + unlearned)
    possible    = (expected + q / 2 + sqrt(q expected (1 - expected) + q^2 / 4)) / (1 + q)
    uncertainty = possible - expected                                the exploration bonus
    left        = possible (1 - failing) (1 - overload)            failing: provider failed or degraded, as a share
    time + cost = min(t + c, left (1 - 0.7 / (1 + t + c)))        each in proportion to t and c
    blended     = (1 - beta) (left - time - cost) + beta trust

- `possible` is the upper end of Wilson's interval at sqrt(`optimism`) standard deviations. It never exceeds
  1, so no agent is explored for a result that none could reach.
- `seen` are the outcomes of all agents at the task type, at most 1,000. The interval of an agent that has few of them
  widens with their logarithm: a new agent, or one that was poor and may have improved, is tried now and then although
  there is a good one.
- An agent is stale if it has no outcome since the results of any agent changed at the task type. Whatever changed may
  have changed for it too, so while it is idle the interval has twenty standard deviations, and it is tried once more.
- `rewards` and `outcomes` are the agent's at this task type (learning/evidence.py). They decay by one part in 1,000
  with each later outcome of another agent. `variation` is 1 unless outcomes are graded and alike.
- Where results depend on the length of the input, `rewards` and `outcomes` are the share that counts for an input of
  this length (learning/length.py).
- `elsewhere` is the mean reward at the agent's other task types, `e` the number of those outcomes, at most 16.
- `unlearned` are the tasks that it got since its last outcome counted and that it has no more, because they taught
  nothing: cancelled, failed by a provider, degraded, or above the daily limit. They are tries all the same, so an agent
  is not explored for ever for outcomes that never count. For a task that will wait for its start or an approval itself
  those that wait so are tries too.
- `overload` is the share of its successes that the agent loses by the tasks that it has already, 0 unless results at
  the task type are significantly worse at higher loads (learning/load.py). Then `outcomes` are those of an idle agent.
- `ahead` are the tasks that the agent has already. Each counts as up to a quarter of a failure, less the more is known
  about the agent, so that many tasks at once do not all explore the same one.
- `t` and `c` are so much for each doubling of time and cost over the best candidate (`penalties`).
- Online candidates come first. Among them, one that rests after failures of its provider comes after the others.

Reasons and measurements: docs/decisions/0036-routing-that-learns.md. The record is checked again in `explain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import msgspec

from stentor.domains.routing.candidates import (
    NEUTRAL_TRUST,
    Candidate,
    RankedCandidate,
    RankedSubject,
    preference_tier,
)
from stentor.domains.routing.penalties import (
    COST_OFFSET_USD,
    DURATION_OFFSET_MS,
    MIN_SHARE,
    PENALTIES_BY_PREFERENCE,
    Preference,
    compute_penalties,
    count_doublings,
    estimate_costs,
    estimate_times,
)
from stentor.domains.routing.track_record import TrackRecord

RULE_VERSION = "evidence-13"
"""Names the formula in each recorded decision; another version must not recompute it."""
OPEN_TASK_PENALTY = 0.25
"""Failures that an unfinished task counts as, for an agent without any evidence."""
OPTIMISM_STALE = 400.0
"""Exploration of an idle, stale agent: the square of twenty standard deviations."""
SLOPE_REGULARIZATION = 0.05
"""Regularization toward a slope of 1: the variance of the priors at which measurement and assumption weigh the same."""
MIN_EXPECTATION = 0.02
"""Expectations are clamped to [this, 1 - this]: without evidence nothing is certain."""


class RankingResult(msgspec.Struct, frozen=True):
    """The listed candidates, best first, and the values that are common to all candidates.

    `usual_cost`, in US dollars, replaces an unknown cost that does not count as nothing; None if all costs are known.
    """

    candidates: list[RankedCandidate]
    mean: float
    slope: float
    fastest_ms: float
    cheapest: float
    usual_cost: float | None = None


def rank_candidates(
    candidates: Sequence[Candidate[Any]], beta: float, prefer: Preference = "balanced", limit: int | None = None
) -> RankingResult:
    """Rank by `preference_tier`, then by blended score, composite, name and id. List at most `limit` of them."""
    records = [candidate.track_record for candidate in candidates]
    mean, slope = calibrate_priors(records)
    costs, usual_cost = estimate_costs(candidates, mean)
    ready_ms = estimate_times(candidates, mean)
    fastest, cheapest = min(ready_ms, default=0.0), min(costs, default=0.0)
    per_time, per_cost = PENALTIES_BY_PREFERENCE[prefer]
    quality_share, open_penalty = 1 - beta, OPEN_TASK_PENALTY
    half_optimism_stale = OPTIMISM_STALE / 2
    lowest, highest = MIN_EXPECTATION, 1 - MIN_EXPECTATION
    order = []
    for n, (candidate, record) in enumerate(zip(candidates, records, strict=True)):
        # `estimate_reward` inlined: a call for each candidate would take a tenth of the whole decision.
        strength = record.strength
        expectation = mean + slope * (record.prior - mean)
        expectation = lowest if expectation < lowest else highest if expectation > highest else expectation
        weight, ahead, unlearned = strength + record.outcomes, candidate.ahead, candidate.unlearned
        if ahead or unlearned:
            half_q = record.optimism / 2 * record.variation / (weight + ahead + unlearned)
            weight += ahead * open_penalty * strength / weight
        else:
            half_q = (half_optimism_stale if record.stale else record.optimism / 2) * record.variation / weight
        expected = (strength * expectation + record.rewards) / weight
        # The formula above, with q = 2 half_q taken out of the root.
        score = (expected + half_q + sqrt(half_q * (2 * expected * (1 - expected) + half_q))) / (1 + 2 * half_q)
        if candidate.failing:
            score *= 1 - candidate.failing
        if candidate.overload:
            score *= 1 - candidate.overload
        if ready_ms[n] > fastest or costs[n] > cheapest:  # as `compute_penalties`
            penalty = per_time * count_doublings(ready_ms[n], fastest, DURATION_OFFSET_MS)
            penalty += per_cost * count_doublings(costs[n], cheapest, COST_OFFSET_USD)
            least = MIN_SHARE * score / (1 + penalty)
            score = least if score - penalty < least else score - penalty
        if beta:
            score = quality_share * score + beta * (NEUTRAL_TRUST if candidate.trust is None else candidate.trust)
        # Negated, so that one ascending sort puts the online ones and the highest scores first.
        order.append((preference_tier(candidate), -score, n))
    order.sort()
    _break_ties(order, candidates, len(order) if limit is None else limit)
    ranking = RankingResult([], mean, slope, fastest, cheapest, usual_cost)
    for _, negative_score, n in order[:limit]:
        ranked = _ranked_candidate(candidates[n], ranking, ready_ms[n], costs[n], -negative_score, prefer)
        ranking.candidates.append(ranked)
    return ranking


def _break_ties(order: list[tuple[int, float, int]], candidates: Sequence[Candidate[Any]], limit: int) -> None:
    """Sort candidates with equal scores among the first `limit`, in place.

    Sorting all by the longer key would take a tenth of the time of each decision.
    """
    start = 0
    while start < limit and start < len(order):
        (tier, score, _), end = order[start], start + 1
        while end < len(order) and order[end][1] == score and order[end][0] == tier:
            end += 1
        if end - start > 1:
            order[start:end] = sorted(order[start:end], key=lambda row: _precedence(candidates[row[2]].agent))
        start = end


def _precedence(agent: RankedSubject) -> tuple[float, str, str]:
    return -agent.composite, agent.name, agent.agent_id


def calibrate_priors(records: Sequence[TrackRecord]) -> tuple[float, float]:
    """Measure how well priors predict rewards: return the mean prior and the slope of the mean reward over the prior.

    Only agents with outcomes count, each with the share of its evidence. The slope is near 1 with little evidence, and
    below 0 if agents with a low prior do better.
    """
    total = prior_sum = reward_sum = 0.0
    points = []
    for record in records:
        if share := record.share:
            points.append((share, record.prior, record.mean))
            total += share
            prior_sum += share * record.prior
            reward_sum += share * record.mean
    if len(points) < 2:
        return (points[0][1] if points else 0.0), 1.0
    mean_prior, mean_reward = prior_sum / total, reward_sum / total
    variance = covariance = 0.0
    for share, prior, reward in points:
        weighted = share * (prior - mean_prior)
        variance += weighted * (prior - mean_prior)
        covariance += weighted * (reward - mean_reward)
    return mean_prior, (SLOPE_REGULARIZATION + covariance) / (SLOPE_REGULARIZATION + variance)


def estimate_reward(
    record: TrackRecord, mean: float, slope: float, ahead: int, unlearned: int = 0
) -> tuple[float, float]:
    """Return the expected reward of the next outcome and the exploration bonus (`expected`, `uncertainty`)."""
    strength = record.strength
    expectation = mean + slope * (record.prior - mean)
    if expectation < MIN_EXPECTATION:
        expectation = MIN_EXPECTATION
    elif expectation > 1 - MIN_EXPECTATION:
        expectation = 1 - MIN_EXPECTATION
    weight = strength + record.outcomes
    expected = (strength * expectation + record.rewards) / (weight + ahead * OPEN_TASK_PENALTY * strength / weight)
    optimism = OPTIMISM_STALE if record.stale and not ahead and not unlearned else record.optimism
    half_q = optimism / 2 * record.variation / (weight + ahead + unlearned)
    possible = (expected + half_q + sqrt(half_q * (2 * expected * (1 - expected) + half_q))) / (1 + 2 * half_q)
    return expected, possible - expected


def _ranked_candidate(
    candidate: Candidate[Any],
    ranking: RankingResult,
    ready_ms: float,
    cost: float,
    blended: float,
    prefer: Preference,
) -> RankedCandidate:
    """Return a candidate with the terms of its score; `cost` may be the substitute for an unknown one."""
    agent, record = candidate.agent, candidate.track_record
    expected, uncertainty = estimate_reward(record, ranking.mean, ranking.slope, candidate.ahead, candidate.unlearned)
    time_penalty, cost_penalty = compute_penalties(
        (expected + uncertainty) * (1 - candidate.failing) * (1 - candidate.overload),
        prefer,
        ready_ms,
        ranking.fastest_ms,
        cost,
        ranking.cheapest,
    )
    return RankedCandidate(
        agent.agent_id,
        agent.name,
        agent.composite,
        record.elsewhere,
        record.elsewhere_outcomes,
        record.prior,
        record.strength,
        record.rewards,
        record.outcomes,
        record.weight,
        expected,
        record.variation,
        record.stale,
        candidate.ahead,
        uncertainty,
        ready_ms,
        time_penalty,
        record.cost,
        cost_penalty,
        NEUTRAL_TRUST if candidate.trust is None else candidate.trust,
        candidate.online,
        blended,
        candidate.resting,
        candidate.unlearned,
        candidate.failing,
        record.seen,
        candidate.overload,
        record.retry,
        record.any_length,
        record.duration_ms is not None,
    )
