"""Track records: what is known of one agent at one task type before it is compared with others. Pure.

The formula is in `ranking`, whose terms `prior`, `strength`, `rewards` and `outcomes` are computed here.
"""

from __future__ import annotations

from math import log

import msgspec

MIN_DECLARED_PRIOR, DECLARED_PRIOR_SPAN = 0.3, 0.5
"""Expected reward for a composite score of 0, and how much more for 1. Away from 0 and 1, because a declared score
alone promises neither success nor failure: an agent that fails is avoided soon, whatever it declared.
"""
DECLARED_PRIOR_WEIGHT = 4.0
"""The composite score counts as much as this many outcomes at other task types."""
MAX_OTHER_OUTCOMES = 16.0
"""Maximum number of outcomes at other task types that count."""
MAX_OTHER_WEIGHT = 4.0
"""All outcomes at other task types count together as at most this many at this one."""
EVIDENCE_DECAY = 0.999
"""Each later outcome of another agent at the task type multiplies the evidence by this."""
MIN_OUTCOMES = 1e-9
"""Fewer outcomes than this, after the decay, are none."""
MIN_STRENGTH, MAX_STRENGTH = 0.5, 1e9
"""Strength of the prior for an alpha of 1 and of 0."""
MIN_OPTIMISM = 4.0
"""Exploration at a task type without outcomes: the square of two standard deviations."""
OPTIMISM_GROWTH = 2.0
"""Factor of the logarithm by which exploration grows when other agents have most outcomes of the task type: so an agent
that is rarely tried is tried again, at growing intervals.
"""
UNEXPLORED_RATIO = 20.0
"""Exploration grows noticeably once all agents have this many times more outcomes than the agent's record is worth."""
MAX_SEEN = 1_000
"""Maximum number of outcomes of all agents that count for exploration, because evidence lasts about as long."""


class TrackRecord(msgspec.Struct, frozen=True):
    """The terms of the formula that depend on one agent only.

    `share` is the share of the evidence against the prior, `mean` its mean reward. `duration_ms` and `cost` (US
    dollars) are None if unknown. `stale`: no outcome since the results of any agent changed at the task type. `seen`
    are the outcomes of all agents there, on which `optimism` depends. `retry`: the evidence is from before the agent's
    failures in a row, because it is to be tried again. `any_length`: rewards and outcomes of inputs
    of any length, if only those count that say something about an input of this length.
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
    seen: int = 0
    optimism: float = MIN_OPTIMISM
    retry: bool = False
    any_length: tuple[float, float] | None = None


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
    seen: int = 0,
    any_length: tuple[float, float] | None = None,
) -> TrackRecord:
    """Compute a track record.

    `rewards` is the sum over `outcomes` at this task type, `elsewhere` the sum and number at all other types, `age` the
    number of outcomes of other agents since the agent's last one, `seen` that of all agents so far. With
    `any_length`, the rewards and outcomes of inputs of any length, the others are those that count for this input.
    """
    strength = min(MAX_STRENGTH, max(MIN_STRENGTH, (1 - alpha) / alpha)) if alpha > 0 else MAX_STRENGTH
    declared = MIN_DECLARED_PRIOR + DECLARED_PRIOR_SPAN * composite
    prior, other_mean, others = declared, 0.0, min(MAX_OTHER_OUTCOMES, elsewhere[1])
    if others > 0:
        other_mean = elsewhere[0] / elsewhere[1]
        prior = (DECLARED_PRIOR_WEIGHT * declared + others * other_mean) / (DECLARED_PRIOR_WEIGHT + others)
        strength += MAX_OTHER_WEIGHT * others / MAX_OTHER_OUTCOMES
    decay = EVIDENCE_DECAY**age
    rewards, outcomes = rewards * decay, outcomes * decay
    if outcomes < MIN_OUTCOMES:
        rewards = outcomes = share = mean = 0.0
        variation = 1.0
    else:
        share, mean = outcomes / (outcomes + strength), rewards / outcomes
    optimism = MIN_OPTIMISM
    if seen:
        optimism += OPTIMISM_GROWTH * log(1 + min(MAX_SEEN, seen) / (UNEXPLORED_RATIO * (strength + outcomes)))
    return TrackRecord(
        prior,
        strength,
        rewards,
        outcomes,
        other_mean,
        others,
        share,
        mean,
        variation,
        weight,
        duration_ms,
        cost,
        stale,
        seen,
        optimism,
        any_length=None if any_length is None else (any_length[0] * decay, any_length[1] * decay),
    )
