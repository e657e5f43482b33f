"""Ranks models for a request by the rule that ranks agents (routing/ranking.py). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.domains.learning.service import LearningView
from stentor.domains.routing import explain
from stentor.domains.routing.model import MAX_RECORDED_CANDIDATES, DeniedCandidate, RoutingDecision
from stentor.domains.routing.ranking import RULE_VERSION, Preference, TrackRecord, rank_candidates
from stentor.domains.routing.service import track_record_from_weight

NEUTRAL = 0.5
"""The prior of every model: nobody declares how good one is."""
LANES = 1_000_000
"""A provider answers many requests at a time, so those under way make nobody wait."""
MISSING, NO_MODEL, NO_TOOLS = "MODEL_NOT_FOUND", "AGENT_IS_NO_MODEL", "TEXT_ONLY"
"""Why a model of a group is no candidate."""


class Named(msgspec.Struct, frozen=True):
    """A model as the ranking sees it; its id is its name, `provider/model`."""

    name: str
    composite: float = NEUTRAL

    @property
    def agent_id(self) -> str:
        return self.name


class Candidate(msgspec.Struct, frozen=True):
    """`ahead` are the requests to `auto` that the model has now; not `online` while it is not to be called."""

    agent: Named
    track_record: TrackRecord
    ahead: int = 0
    online: bool = True
    trust: float | None = None
    concurrency: int = LANES


class Entry(msgspec.Struct, frozen=True):
    """A model that may be chosen. `cost` in US dollars is what the request would probably cost, None if unknown."""

    name: str
    cost: float | None = None
    ahead: int = 0
    online: bool = True


class Answer(msgspec.Struct, frozen=True):
    """An answer that may be graded. `sample` is its number among the model's outcomes at this kind, None when nothing
    was learned from it; times in microseconds.
    """

    answer_id: str
    model: str
    kind: str
    key_name: str
    decision_id: str
    sample: int | None
    answered_at: int
    grade: float | None = None
    comment: str | None = None
    graded_by: str | None = None
    graded_at: int | None = None

    @property
    def learned(self) -> bool:
        return self.sample is not None


def candidates(
    entries: Sequence[Entry], view: LearningView, tenant: str, kind: str, alpha: float, now: int
) -> list[Candidate]:
    """The entries with what their records say; what a model costs here is its mean once it is known."""
    records = view.records(tenant, kind)
    found = []
    for entry in entries:
        record = records.weights_by_agent.get(entry.name)
        age = 0 if record is None else records.progress.tick - record.tick
        stale = records.progress.has_changed_since(record)
        sums = view.sums_by_agent.get(entry.name)
        known = track_record_from_weight(NEUTRAL, alpha, record, sums, age, now, stale=stale)
        if known.cost is None:
            known = msgspec.structs.replace(known, cost=entry.cost)
        found.append(Candidate(Named(entry.name), known, entry.ahead, entry.online))
    return found


def decide(
    ranked: Sequence[Candidate], kind: str, prefer: Preference, alpha: float, denied: Sequence[DeniedCandidate] = ()
) -> RoutingDecision:
    """Choose among at least one candidate. A decision has the form of a task's, so that it is explained alike."""
    ranking = rank_candidates(ranked, 0.0, prefer, MAX_RECORDED_CANDIDATES)
    best = ranking.candidates[0]
    return RoutingDecision(
        agent_id=best.agent_id,
        agent_name=best.name,
        capability=(kind,),
        alpha=alpha,
        beta=0.0,
        trust_floor=0.0,
        trust_available=True,
        rule=RULE_VERSION,
        prefer=prefer,
        mean=ranking.mean,
        slope=ranking.slope,
        fastest_ms=ranking.fastest_ms,
        cheapest=ranking.cheapest,
        candidates=tuple(ranking.candidates),
        candidates_total=len(ranked),
        denied=tuple(denied),
        denied_total=len(denied),
        preferred=False,
        online=best.online,
    )


def sentence(record: dict[str, Any], answered_by: str = "") -> str:
    """Which model was chosen and why, in plain English, and which one answered instead of it."""
    chosen = record.get("agent_name")
    if record.get("candidates_total") == 1:
        return f"{chosen} was the only model to choose from."
    why = explain.explain_decision(record | {"online": True})  # no model is waited for, whatever its provider does now
    return why if answered_by in ("", chosen) else f"{why} It failed, and {answered_by} answered."
