"""Penalties for time and cost, and what is assumed where these are unknown. Pure.

Each doubling of time or cost over the best candidate reduces the score. A part of the score always remains, so an agent
that succeeds is better than one that always fails, however slow or expensive it is.

Time: how long one task takes, times the rounds of tasks before it at the agent's concurrency. If an agent with all the
tasks that it can do has been silent for longer than one of them takes, that time counts in its place.

Unknown values:

- An unknown time counts as the shortest known one. A known time counts in proportion to the evidence for it.
- An unknown cost counts as the geometric mean of the known costs.
- Before its first task of this type, an online agent counts as fast (one second at most) and free: otherwise a faster
  or cheaper agent would never be found beside one that always succeeds. Not if it is worse at other task types.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any, Literal

from stentor.domains.routing.candidates import Candidate, RankedCandidate, preference_tier
from stentor.domains.routing.track_record import TrackRecord

Preference = Literal["quality", "balanced", "fast", "cheap"]


DURATION_OFFSET_MS = 1_000.0
COST_OFFSET_USD = 0.001
"""Added before durations and costs are compared, so that a doubling of much smaller values does not matter."""
DEFAULT_DURATION_MS = 1_000.0
"""Assumed if no candidate has a known duration, so that the length of the queues still counts."""
WORSE_PRIOR = 0.05
"""An agent is worse at other task types if its prior is more than this below the mean prior."""

PENALTIES_BY_PREFERENCE: dict[Preference, tuple[float, float]] = {
    "quality": (0.0, 0.0),
    "balanced": (0.03, 0.02),
    "fast": (0.15, 0.02),
    "cheap": (0.02, 0.15),
}
"""`t` for each doubling of the time, `c` for each doubling of the cost."""
MIN_SHARE = 0.7
"""Penalties leave at least this share, divided by 1 + t + c, of the possible reward."""

_Evidence = TrackRecord | RankedCandidate


def compute_penalties(
    possible: float, prefer: Preference, ready_ms: float, fastest_ms: float, cost: float, cheapest: float
) -> tuple[float, float]:
    """Return what the time and the cost take off from the possible reward (`time_penalty`, `cost_penalty`)."""
    per_time, per_cost = PENALTIES_BY_PREFERENCE[prefer]
    late = per_time * count_doublings(ready_ms, fastest_ms, DURATION_OFFSET_MS)
    dear = per_cost * count_doublings(cost, cheapest, COST_OFFSET_USD)
    if not (total := late + dear):
        return 0.0, 0.0
    taken = min(total, possible * (1 - MIN_SHARE / (1 + total)))
    return taken * late / total, taken * dear / total


def count_doublings(value: float, best: float, offset: float) -> float:
    """Return how often `best` must be doubled to reach `value`, after `offset` is added to both."""
    return 0.0 if value <= best else log2((value + offset) / (best + offset))


def estimate_durations(records: Sequence[TrackRecord]) -> list[float]:
    """Return how long a task is expected to take, in milliseconds: between the least known mean and the agent's own.

    The less evidence there is, the nearer to the least one: the first outcome may have been a cold start.
    """
    least = min((each.duration_ms for each in records if each.duration_ms is not None), default=DEFAULT_DURATION_MS)
    base = least + DURATION_OFFSET_MS
    return [
        least
        if (known := record.duration_ms) is None or known <= least
        else base * ((known + DURATION_OFFSET_MS) / base) ** record.share - DURATION_OFFSET_MS
        for record in records
    ]


def estimate_times(candidates: Sequence[Candidate[Any]], mean: float) -> list[float]:
    """Return when each candidate would have done the task, in milliseconds from now."""
    ready_ms = estimate_durations([candidate.track_record for candidate in candidates])
    for n, candidate in enumerate(candidates):
        if candidate.ahead:
            rounds = 1 + candidate.ahead // max(1, candidate.concurrency)
            ready_ms[n] = max(ready_ms[n], candidate.stalled_ms) * rounds
        elif (record := candidate.track_record).duration_ms is None and is_promising(candidate, record, mean):
            ready_ms[n] = min(ready_ms[n], DEFAULT_DURATION_MS)
    return ready_ms


def estimate_costs(candidates: Sequence[Candidate[Any]], mean: float) -> tuple[list[float], float | None]:
    """Return the cost of each candidate, and what replaces an unknown one; None if all are known."""
    known = [candidate.track_record.cost for candidate in candidates]
    costs = replace_unknown_costs(known)
    if None not in known:
        return costs, None
    usual_cost = costs[known.index(None)]
    for n, candidate in enumerate(candidates):
        # While no agent has outcomes, the mean is 0: known costs are then prices of models, and there is no better
        # estimate.
        if known[n] is None and mean > 0 and is_promising(candidate, candidate.track_record, mean):
            costs[n] = 0.0
    return costs, usual_cost


def is_promising(candidate: Candidate[Any] | RankedCandidate, record: _Evidence, mean: float) -> bool:
    """Return whether an agent could begin its first task of the type now, and is not known to be worse at other types.

    Nobody knows its time and cost, so it is assumed to be quick and free: otherwise an agent that always succeeds would
    keep all tasks, however slow and expensive it is. Offline agents are not: others would be compared with them for
    ever.
    """
    if record.outcomes or candidate.ahead or candidate.unlearned or preference_tier(candidate):
        return False
    return not record.elsewhere_outcomes or record.prior >= mean - WORSE_PRIOR


def replace_unknown_costs(costs: list[float | None]) -> list[float]:
    """Replace None by the geometric mean of the known costs, or by 0: an agent without a cost gains and loses nothing.
    Not by the arithmetic mean, which is near the highest cost, while penalties count doublings.
    """
    if None not in costs:
        return costs  # pyrefly: ignore[bad-return] - none is None; a copy would cost time at each ranking
    known = [log2(cost + COST_OFFSET_USD) for cost in costs if cost is not None]
    usual = 2 ** (sum(known) / len(known)) - COST_OFFSET_USD if known else 0.0
    return [usual if cost is None else cost for cost in costs]
