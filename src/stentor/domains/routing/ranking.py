"""Ranks the admitted candidates of a task. Pure.

What an agent declares gives its prior, and the results of its tasks are evidence: the more there are, the more they
count. The less is known of an agent, the more is added for its uncertainty, so that it is tried. Then time and cost are
subtracted.

    prior       = (4 (0.3 + 0.5 composite) + e elsewhere) / (4 + e)
    expectation = mean + slope (prior - mean)
    strength    = (1 - alpha) / alpha + e / 4                      how many results the prior is worth
    open        = ahead strength / (4 (strength + outcomes))
    expected    = (strength expectation + rewards) / (strength + outcomes + open)
    optimism    = 4 + 2 ln(1 + seen / (20 (strength + outcomes)))  or 400, see "stale"
    q           = optimism variation / (strength + outcomes + ahead + unlearned)
    possible    = (expected + q / 2 + sqrt(q expected (1 - expected) + q^2 / 4)) / (1 + q)
    uncertainty = possible - expected
    left        = possible (1 - failing) (1 - overload)
    time + cost = min(t + c, left (1 - 0.7 / (1 + t + c)))         shared out as t is to c
    blended     = (1 - beta) (left - time - cost) + beta trust

Results of the agent (`track_record`):

- `rewards`, `outcomes`: sum and number of its rewards at this task type. Both shrink by 0.1 % with each later result of
  another agent. Where the length of the input matters, only a share of them counts (learning/length.py).
- `elsewhere`, `e`: mean reward and number of its results at other task types; the number is at most 16.
- `variation`: 1, or less if the results are graded and the grades are alike, because few of those say enough.
- `seen`: number of results of all agents at this task type, at most 1,000. The fewer of them are the agent's own, the
  greater is its uncertainty. So a new agent is tried now and then even where another one is good.
- stale: the results of some agent at this task type have changed since this agent's last one. Its own may have changed
  too, so it is tried once more: `optimism` is 400 as long as `ahead` and `unlearned` are 0.

Tasks of the agent (`candidates`):

- `ahead`: tasks that it has now. Each counts as up to a quarter of a failure, so that not all of many tasks go to the
  same unknown agent.
- `unlearned`: tasks since its last counted result that taught nothing: cancelled, failed by its provider, degraded, or
  above the daily limit. Otherwise an agent whose results never count would be explored for ever. Tasks that wait for
  their start or an approval are included only where the new task will wait for one, too.
- `failing`: share of its latest tasks that its provider failed or that were degraded.
- `overload`: share of its successes that it loses by the tasks that it has. 0 unless results at this task type are
  significantly worse at higher loads (learning/load.py); then `outcomes` are as of an idle agent.

All candidates: `mean` and `slope` say how well priors predict rewards here (`calibrate_priors`); `t` and `c` grow with
each doubling of time and cost over the best candidate (`penalties`).

`possible` is the upper end of Wilson's interval at sqrt(`optimism`) standard deviations. It never exceeds 1, so no
agent is explored for a result that none can reach.

Online candidates come first, and among them those that do not rest after failures of their provider.

Reasons and measurements: docs/decisions/0036-routing-that-learns.md. `explain` checks recorded decisions.
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
"""An unfinished task of an agent without any evidence counts as this part of a failure."""
OPTIMISM_STALE = 400.0
"""Exploration of an idle, stale agent: the square of twenty standard deviations."""
SLOPE_REGULARIZATION = 0.05
"""Regularization toward a slope of 1. If the priors have this variance, measured and assumed slope count the same."""
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
