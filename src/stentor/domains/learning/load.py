"""How an agent's results depend on its load: the number of other tasks that it works on when it begins one. Pure.

Loads are grouped (`LOAD_GROUPS`). The model: an agent's rate of success is its rate when idle, times a factor of the
group; a higher group never has a greater factor. `measure_effect` estimates the factors from all agents of a task type,
if results are significantly worse at higher loads. `own_factors` adjusts them to the outcomes of one agent, or drops
them if these outcomes contradict them.

How the constants were chosen: docs/decisions/0036-routing-that-learns.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log, sqrt

MAX_LOADS = 250
"""Number of outcomes whose loads are stored, newest last."""
LOAD_GROUPS = 5
"""0, 1, 2 to 3, 4 to 7, 8 and more tasks."""
UNKNOWN = "-"
"""Stands for an outcome whose load this process did not see."""
SUCCESSES, FAILURES = "ABCDE", "abcde"
"""The letters of the groups in the stored text. A reward of at least one half counts as a success."""
SIGNIFICANCE = -3.0
"""Results depend on the load if its correlation with the reward is below this many standard deviations."""
POOLED_WEIGHT = 2.0
"""The estimate of a group starts from the factor of the next lower one, which counts as this many outcomes."""
OWN_WEIGHT = 4.0
"""The factors of one agent start from those of all agents, which count as this many outcomes."""
MIN_GAIN = -0.5
"""The factors of all agents do not apply to an agent whose outcomes they make less likely by more than this (log)."""
MAX_RATE = 0.995
"""Rates of success in a likelihood are between 1 less this and this."""
MIN_FACTOR = 0.02
LoadCounts = tuple[tuple[int, ...], tuple[int, ...]]
"""Number of outcomes and of successes, by group."""
Factors = tuple[float, ...]
"""A factor for each group; 1 for the lowest group."""
_NO_EFFECT: Factors = (1.0,) * LOAD_GROUPS
ROUNDS = 4
"""Iterations of the estimate, after which it hardly changes."""


def load_group(load: int) -> int:
    """Return the group of a number of tasks."""
    return min(LOAD_GROUPS - 1, load.bit_length())


def append_load(loads: str, load: int | None, reward: float) -> str:
    """Append an outcome. Nothing is stored as long as the agent had one task at a time."""
    if not loads and not load:
        return loads
    letter = UNKNOWN if load is None else (SUCCESSES if reward >= 0.5 else FAILURES)[load_group(load)]
    return (loads + letter)[-MAX_LOADS:]


def replace_load(loads: str, age: int, reward: float) -> str:
    """Correct the outcome `age` outcomes ago by its grade, if it is stored."""
    at = len(loads) - 1 - age
    if age < 0 or at < 0:
        return loads
    return loads[:at] + (loads[at].upper() if reward >= 0.5 else loads[at].lower()) + loads[at + 1 :]


def count_loads(loads: str) -> LoadCounts:
    """Return the number of outcomes and of successes by group."""
    successes = tuple(loads.count(letter) for letter in SUCCESSES)
    failures = (loads.count(letter) for letter in FAILURES)
    return tuple(good + bad for good, bad in zip(successes, failures, strict=True)), successes


def measure_effect(counts: Iterable[LoadCounts]) -> Factors | None:
    """Return the factors over all agents of a task type; None if results do not depend on the load significantly."""
    known = [each for each in counts if sum(each[0]) > 1]
    if _correlation(known) >= SIGNIFICANCE:
        return None
    factors = _NO_EFFECT
    for _ in range(ROUNDS):
        successes, expected = [0.0] * LOAD_GROUPS, [0.0] * LOAD_GROUPS
        for numbers, good in known:
            rate = _idle_rate(numbers, good, factors)
            for group in range(LOAD_GROUPS):
                successes[group] += good[group]
                expected[group] += rate * numbers[group]
        factors = _falling(successes, expected, _NO_EFFECT, POOLED_WEIGHT)
    return factors


def own_factors(pooled: Factors, counts: LoadCounts) -> Factors:
    """Return the factors of one agent; `pooled` are those over all agents."""
    numbers, successes = counts
    if _log_likelihood(pooled, counts) - _log_likelihood(_NO_EFFECT, counts) < MIN_GAIN:
        return _NO_EFFECT
    rate = max(MIN_FACTOR, _idle_rate(numbers, successes, pooled))
    return _falling([good / rate for good in successes], numbers, pooled, OWN_WEIGHT)


def mean_factor(factors: Factors, loads: str, outcomes: int) -> float:
    """Return the mean factor of the last `outcomes` outcomes; 1 for those whose load is not stored."""
    if not loads:
        return 1.0
    stored = loads[-outcomes:].upper()
    return 1.0 - sum((1.0 - factors[n]) * stored.count(letter) for n, letter in enumerate(SUCCESSES)) / outcomes


def _correlation(counts: Sequence[LoadCounts]) -> float:
    """Return by how many standard deviations rewards grow with the group of the load, within agents."""
    covariance = variance = 0.0
    for numbers, successes in counts:
        total = sum(numbers)
        mean, rate = sum(g * n for g, n in enumerate(numbers)) / total, sum(successes) / total
        covariance += sum((g - mean) * s for g, s in enumerate(successes))
        variance += rate * (1 - rate) * sum((g - mean) ** 2 * n for g, n in enumerate(numbers))
    return covariance / sqrt(variance) if variance > 0 else 0.0


def _idle_rate(numbers: Sequence[int], successes: Sequence[int], factors: Factors) -> float:
    """Return the rate of success of an agent when it is idle, given the factors."""
    expected = sum(factor * n for factor, n in zip(factors, numbers, strict=True))
    return min(1.0, sum(successes) / expected) if expected > 0 else 0.0


def _log_likelihood(factors: Factors, counts: LoadCounts) -> float:
    """Return the log likelihood of an agent's outcomes, at the rate of success that makes them most likely."""
    numbers, successes = counts
    idle_rate, total = _idle_rate(numbers, successes, factors), 0.0
    for factor, number, good in zip(factors, numbers, successes, strict=True):
        rate = min(MAX_RATE, max(1 - MAX_RATE, idle_rate * factor))
        total += good * log(rate) + (number - good) * log(1 - rate)
    return total


def _falling(successes: Sequence[float], expected: Sequence[float], prior: Factors, weight: float) -> Factors:
    """Return factors that never grow; each group borrows `weight` outcomes from the next lower one, as in `prior`.

    Neighbours that would grow are taken together: the lowest rate so far would be one of bad luck.
    """
    merged: list[tuple[float, float, int]] = []  # successes, outcomes, groups
    factor = 1.0
    for group in range(LOAD_GROUPS):
        borrowed = factor * (prior[group] / prior[group - 1] if group else prior[group])
        good, total, groups = successes[group] + weight * borrowed, expected[group] + weight, 1
        while merged and good * merged[-1][1] > merged[-1][0] * total:
            lower = merged.pop()
            good, total, groups = good + lower[0], total + lower[1], groups + lower[2]
        merged.append((good, total, groups))
        factor = good / total
    factors = [good / total for good, total, groups in merged for _ in range(groups)]
    return tuple(max(MIN_FACTOR, factor / factors[0]) for factor in factors)
