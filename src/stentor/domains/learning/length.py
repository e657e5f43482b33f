"""How an agent's results depend on the length of the input. Pure.

Lengths are grouped by powers of two. Outcomes, rewards and durations are counted by agent, task type and group. An
agent may have a split: from some group on, its rate of success is different. `measure_effect` estimates from all agents
of a task type how probable each split is. `share_evidence` then returns which share of an agent's evidence counts for
an input: little of the evidence on the other side of a probable split.

How the constants were chosen: docs/decisions/0078-routing-by-length-of-input.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import exp, lgamma

GROUPS = 14
"""Number of groups: up to 255 bytes, up to 511, and so on by powers of two, up to 1,048,576 and more."""
FIRST_BITS = 8
"""Lengths of at most this many bits are in the first group."""
MAX_GROUP_OUTCOMES = 12.0
"""Maximum weight of all outcomes of a group together: each further outcome reduces the weight of the older ones."""
SMOOTHING_FACTOR = 0.2
"""Weight of the newest duration in the moving average; higher for the first ones."""
SPLIT_CHANCE = 0.05
"""Probability, before any outcome, that the results of an agent have a split."""
CHANCE_WEIGHT = 1.0
"""Weight of SPLIT_CHANCE in the estimate, as a number of agents with known outcomes."""
MIN_CHANCE = 0.5
"""The length counts at a task type if some agent has a split with at least this probability."""
ROUNDS = 3
"""Iterations of the estimate, after which it hardly changes."""
MAX_LOG_FACTOR = 600.0
"""Near the logarithm of the largest float."""
MAX_GROUP_DISTANCE = 1
"""The duration of an input is estimated from its own group and the groups at most this far away."""
MIN_TIMED_SUCCESSES = 0.5
"""With fewer successes in these groups the duration is unknown."""

LengthCounts = dict[int, tuple[float, float, float]]
"""By group: outcomes, sum of their rewards, and mean duration of the successes in milliseconds, 0 without one."""
Splits = Sequence[float]
"""A value for each group but the first: for the split before this group."""


def length_group(length: int) -> int:
    """Return the group of a length in bytes."""
    return min(GROUPS - 1, max(0, length.bit_length() - FIRST_BITS))


def decode_counts(lengths: str) -> LengthCounts:
    """Decode stored counts."""
    counts = {}
    for part in lengths.split():
        group, outcomes, rewards, mean_ms = part.split(":")
        counts[int(group)] = float(outcomes), float(rewards), float(mean_ms)
    return counts


def _replace_part(lengths: str, prefix: str, outcomes: float, rewards: float, mean_ms: float) -> str:
    """Put the counts of a group in the place of those that are stored, if any. Decoding all would take longer."""
    parts = [part for part in lengths.split() if not part.startswith(prefix)]
    parts.append(f"{prefix}{outcomes:.4g}:{rewards:.4g}:{mean_ms:.0f}")
    return " ".join(parts)


def _find_part(lengths: str, prefix: str) -> tuple[float, float, float] | None:
    for part in lengths.split():
        if part.startswith(prefix):
            _, outcomes, rewards, mean_ms = part.split(":")
            return float(outcomes), float(rewards), float(mean_ms)
    return None


def add_outcome(lengths: str, length: int | None, reward: float, duration_ms: float) -> str:
    """Add an outcome to stored counts; None is an unknown length."""
    if length is None:
        return lengths
    prefix = f"{length_group(length)}:"
    outcomes, rewards, mean_ms = _find_part(lengths, prefix) or (0.0, 0.0, 0.0)
    if outcomes + 1 > MAX_GROUP_OUTCOMES:
        share = (MAX_GROUP_OUTCOMES - 1) / outcomes
        outcomes, rewards = outcomes * share, rewards * share
    if reward > 0:
        newest = max(1.0, duration_ms)
        mean_ms = mean_ms + max(SMOOTHING_FACTOR, 1 / (1 + rewards)) * (newest - mean_ms) if mean_ms else newest
    return _replace_part(lengths, prefix, outcomes + 1, rewards + reward, mean_ms)


def replace_reward(lengths: str, length: int | None, was: float, grade: float) -> str:
    """Replace the reward `was` of an outcome by its grade in stored counts."""
    if length is None:
        return lengths
    prefix = f"{length_group(length)}:"
    if (counts := _find_part(lengths, prefix)) is None:
        return lengths
    outcomes, rewards, mean_ms = counts
    return _replace_part(lengths, prefix, outcomes, min(outcomes, max(0.0, rewards + grade - was)), mean_ms)


def split_factors(counts: LengthCounts) -> Splits | None:
    """Return by which factor an agent's outcomes make each split more probable; None if they are of one group or none.

    The ratio of two probabilities of the outcomes, each over all rates of success: of two rates and of one.
    """
    if len(counts) < 2:
        return None
    total = sum(outcomes for outcomes, _, _ in counts.values())
    good = sum(rewards for _, rewards, _ in counts.values())
    without_split = _log_probability(good, total)
    factors, outcomes, rewards, factor = [], 0.0, 0.0, 1.0
    for group in range(1, GROUPS):
        if (below := counts.get(group - 1)) is not None:
            outcomes, rewards = outcomes + below[0], rewards + below[1]
            log_factor = _log_probability(rewards, outcomes) + _log_probability(good - rewards, total - outcomes)
            factor = exp(min(MAX_LOG_FACTOR, log_factor - without_split))
        factors.append(factor)
    return array("d", factors)


def measure_effect(factors: Iterable[Splits | None]) -> Splits | None:
    """Return the odds of each split against none at a task type; None if no agent's results depend on the length."""
    known = [each for each in factors if each is not None]
    assumed = SPLIT_CHANCE / (GROUPS - 1)
    odds: Splits = (assumed / (1 - SPLIT_CHANCE),) * (GROUPS - 1)
    highest = 0.0
    for _ in range(ROUNDS):
        sums, highest = [CHANCE_WEIGHT * assumed] * (GROUPS - 1), 0.0
        for each in known:
            own = [chance * factor for chance, factor in zip(odds, each, strict=True)]
            total = 1 + sum(own)
            highest = max(highest, 1 - 1 / total)
            for n, value in enumerate(own):
                sums[n] += value / total
        without = CHANCE_WEIGHT + len(known) - sum(sums)
        odds = tuple(value / without for value in sums)
    return odds if highest >= MIN_CHANCE else None


def share_evidence(
    counts: LengthCounts, factors: Splits | None, odds: Splits, group: int
) -> tuple[float, float, float | None]:
    """Return which shares of an agent's outcomes and rewards count for an input of a group, and how long that takes.

    The duration is in milliseconds, None if it is unknown. `odds` are those of the task type.
    """
    own = odds if factors is None else [chance * factor for chance, factor in zip(odds, factors, strict=True)]
    total = 1 + sum(own)
    outcomes = rewards = all_outcomes = all_rewards = timed = duration = 0.0
    for each, (number, reward, mean_ms) in counts.items():
        low, high = (each, group) if each < group else (group, each)
        # The probability that there is no split between the two groups.
        share = 1 - sum(own[low:high]) / total
        outcomes += share * number
        rewards += share * reward
        all_outcomes += number
        all_rewards += reward
        if high - low <= MAX_GROUP_DISTANCE and mean_ms:
            timed += share * reward
            duration += share * reward * mean_ms
    if not all_outcomes:
        return 1.0, 1.0, None
    return (
        outcomes / all_outcomes,
        # The record may have successes of an earlier version, whose lengths are unknown.
        rewards / all_rewards if all_rewards else outcomes / all_outcomes,
        duration / timed if timed >= MIN_TIMED_SUCCESSES else None,
    )


def _log_probability(rewards: float, outcomes: float) -> float:
    """Return the logarithm of the probability of some outcomes, over all rates of success."""
    # Rounding must not make a number of failures or successes negative.
    return lgamma(1 + max(0.0, rewards)) + lgamma(1 + max(0.0, outcomes - rewards)) - lgamma(2 + outcomes)
