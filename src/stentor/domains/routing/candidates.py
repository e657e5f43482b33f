"""The candidates of a decision: what is known of each before the ranking, and the terms of its score afterwards. Pure.

The formula is in `ranking`; `penalties` compares times and costs.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import msgspec

from stentor.domains.registry.model import Agent
from stentor.domains.routing.track_record import TrackRecord

NEUTRAL_TRUST = 0.5
"""Assumed trust of an agent without a trust score."""


class RankedSubject(Protocol):
    """What is ranked: an agent, or a model of a provider (domains/modelrouting)."""

    @property
    def agent_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def composite(self) -> float: ...


Subject = TypeVar("Subject", bound=RankedSubject)


class Candidate(msgspec.Struct, Generic[Subject], frozen=True):
    """An agent, or a model, with its load: `ahead` tasks are queued or running, and it runs `concurrency` at a time.

    `resting`: its last attempts ended because of its provider. `unlearned`: tasks since its last outcome that counted.
    `stalled_ms`: how long it has neither taken nor ended a task, if it runs all it can. `failing`: the share of its
    last tasks that its provider failed or that were degraded. `overload`: the share of successes that its load costs.
    """

    agent: Subject
    track_record: TrackRecord
    trust: float | None = None
    ahead: int = 0
    concurrency: int = 1
    online: bool = True
    resting: bool = False
    unlearned: int = 0
    stalled_ms: float = 0.0
    failing: float = 0.0
    overload: float = 0.0


AgentCandidate = Candidate[Agent]


class RankedCandidate(msgspec.Struct, frozen=True):
    """A candidate with the terms of its score, in the order of the formula.

    `hebbian` is the weight as the API shows it, None without an outcome. The highest `blended` is chosen among the
    candidates that are online, and of those among the ones that do not rest. `retry`: after failures in a row the agent
    is tried again, with its results from before them. `any_length` are rewards and outcomes of inputs of any length,
    None if all of them count for this input. `time_known`: it is known how long such an input takes.
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
    resting: bool = False
    unlearned: int = 0
    failing: float = 0.0
    seen: int = 0
    overload: float = 0.0
    retry: bool = False
    any_length: tuple[float, float] | None = None
    time_known: bool = True


def preference_tier(candidate: Candidate[Any] | RankedCandidate) -> int:
    """Return 0 for an online candidate, 1 for one that rests, 2 for an offline one; the lowest are chosen first."""
    return int(candidate.resting) if candidate.online else 2
