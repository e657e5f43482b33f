"""Explains a recorded routing decision, and computes it again from its own recorded inputs. Pure.

`ranking` beside it has the formula. What follows from candidates that a decision does not list is taken from it as it
stands, and said so: mean, slope, the best time and cost, and the cost that stands in for an unknown one. Two values
that it shows decide nothing, so nothing can be said of them: the weight, and trust where its share is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from typing import Any, Literal

import msgspec

from stentor.domains.routing.model import RoutingDecision
from stentor.domains.routing.ranking import (
    COST_OFFSET_USD,
    DURATION_OFFSET_MS,
    PENALTIES_BY_PREFERENCE,
    RULE_VERSION,
    RankedCandidate,
    TrackRecord,
    build_track_record,
    calibrate_priors,
    count_doublings,
    estimate_reward,
)

TOLERANCE = 1e-9
"""Relative difference up to which two numbers are the same."""


_SHARED = frozenset(
    (
        *("agent_id", "agent_name", "alpha", "beta", "trust_floor", "trust_available", "duration_us"),
        *("candidates_total", "denied", "denied_total"),
    )
)
_SHARES = frozenset(("agent_id", "name", "composite", "hebbian", "trust", "blended"))


class DecisionDifference(msgspec.Struct, frozen=True):
    """A recorded value that the formula does not lead to; without `name` it belongs to the whole decision."""

    field: str
    recorded: Any
    recomputed: Any
    agent_id: str | None = None
    name: str | None = None


class DecisionCheck(msgspec.Struct, frozen=True):
    """`recomputed` is False for a decision by another rule, with the reason. `assumed` says in sentences what was taken
    from the decision without a check.
    """

    recomputed: bool
    reason: str | None = None
    differences: tuple[DecisionDifference, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def is_reproduced(self) -> bool:
        return self.recomputed and not self.differences


def check_decision(record: Any) -> DecisionCheck:
    """Compute a decision again, as it stands in the run log (`routing` in the event's metadata). A record that names
    this rule and cannot be read, or has inputs that the formula does not allow, is a difference.
    """
    rule = record.get("rule") if isinstance(record, dict) else None
    if rule != RULE_VERSION:
        name = "an earlier rule, which left no name" if rule is None else f"the rule {rule!r}"
        return DecisionCheck(False, f"The decision was made by {name}; this version computes {RULE_VERSION!r}.")
    try:
        decision = msgspec.convert(record, RoutingDecision)
    except msgspec.ValidationError as error:
        return DecisionCheck(True, differences=(DecisionDifference("record", str(error), None),))
    if not decision.candidates:
        return DecisionCheck(True, differences=(DecisionDifference("candidates", [], None),))
    try:
        return _Recomputation(decision).check()
    except (ArithmeticError, ValueError):
        return DecisionCheck(True, differences=(DecisionDifference("inputs", "out of range", None),))


class _Recomputation:
    def __init__(self, decision: RoutingDecision) -> None:
        self._decision = decision
        self._complete = len(decision.candidates) == decision.candidates_total
        self._standings = [_standing(decision.alpha, each) for each in decision.candidates]
        self._differences: list[DecisionDifference] = []
        self._assumed: list[str] = []

    def check(self) -> DecisionCheck:
        decision = self._decision
        mean, slope, fastest, prices = self._common()
        scores = []
        for each, known, price in zip(decision.candidates, self._standings, prices, strict=True):
            values = self._values(each, known, mean, slope, fastest, price)
            for field, value in values.items():
                self._compare(field, getattr(each, field), value, each)
            # The recorded score where it is right, so that rounding cannot turn a tie around.
            score = values["blended"]
            scores.append(each.blended if _close(each.blended, score) else score)
        self._compare_order(scores)
        return DecisionCheck(True, None, tuple(self._differences), tuple(self._assumed))

    def _common(self) -> tuple[float, float, float, list[float | None]]:
        """What holds for all candidates: computed if all are listed, else as recorded. The prices have None where
        neither is possible, which is so in decisions of a version before.
        """
        decision, listed = self._decision, self._decision.candidates
        if not self._complete:
            others = decision.candidates_total - len(listed)
            self._assumed.append(
                f"Mean, slope, shortest time, lowest and usual cost depend on {others} candidates that are not listed."
            )
            prices = [decision.usual_cost if each.cost is None else each.cost for each in listed]
            self._compare_best("fastest_ms", decision.fastest_ms, [each.ready_ms for each in listed])
            self._compare_best("cheapest", decision.cheapest, prices)
            return decision.mean, decision.slope, decision.fastest_ms, prices
        mean, slope = calibrate_priors(self._standings)
        known = [each.cost for each in listed if each.cost is not None]
        usual = sum(known) / len(known) if known else 0.0
        prices = [usual if each.cost is None else each.cost for each in listed]
        if decision.usual_cost is not None:
            self._compare("usual_cost", decision.usual_cost, usual)
        fastest = min(each.ready_ms for each in listed)
        self._compare("mean", decision.mean, mean)
        self._compare("slope", decision.slope, slope)
        self._compare("fastest_ms", decision.fastest_ms, fastest)
        self._compare("cheapest", decision.cheapest, min(price for price in prices if price is not None))
        return mean, slope, fastest, prices

    def _values(
        self, each: RankedCandidate, known: TrackRecord, mean: float, slope: float, fastest: float, price: float | None
    ) -> dict[str, float]:
        decision = self._decision
        per_time, per_cost = PENALTIES_BY_PREFERENCE[decision.prefer]
        expected, uncertainty = estimate_reward(known, mean, slope, each.ahead)
        time = per_time * count_doublings(each.ready_ms, fastest, DURATION_OFFSET_MS)
        if price is None:
            cost = each.cost_penalty
            self._assume_cost()
        else:
            cost = per_cost * count_doublings(price, decision.cheapest, COST_OFFSET_USD)
        score = (1 - decision.beta) * (expected + uncertainty - time - cost) + decision.beta * each.trust
        return {
            "elsewhere": known.elsewhere,
            "elsewhere_outcomes": known.elsewhere_outcomes,
            "rewards": known.rewards,
            "outcomes": known.outcomes,
            "variation": known.variation,
            "prior": known.prior,
            "strength": known.strength,
            "expected": expected,
            "uncertainty": uncertainty,
            "time_penalty": time,
            "cost_penalty": cost,
            "blended": score,
        }

    def _assume_cost(self) -> None:
        sentence = "The cost that stands in for an unknown one is the mean of all candidates; it is not recorded."
        if sentence not in self._assumed:
            self._assumed.append(sentence)

    def _compare_best(self, field: str, best: float, listed: Sequence[float | None]) -> None:
        """The best of all is no worse than any that is listed."""
        least = min((value for value in listed if value is not None), default=best)
        if least < best:
            self._compare(field, best, least)

    def _compare_order(self, scores: Sequence[float]) -> None:
        decision, listed = self._decision, self._decision.candidates
        keys = [
            (not each.online, -score, -each.composite, each.name, each.agent_id)
            for each, score in zip(listed, scores, strict=True)
        ]
        order = [each for _, each in sorted(zip(keys, listed, strict=True), key=lambda pair: pair[0])]
        if [each.agent_id for each in order] != [each.agent_id for each in listed]:
            recorded, recomputed = [each.name for each in listed], [each.name for each in order]
            self._differences.append(DecisionDifference("order", recorded, recomputed))
        best = order[0]
        chosen = {"agent_id": best.agent_id, "agent_name": best.name, "online": best.online}
        for field, value in chosen.items():
            if getattr(decision, field) != value:
                self._differences.append(DecisionDifference(field, getattr(decision, field), value))

    def _compare(self, field: str, recorded: float, recomputed: float, each: RankedCandidate | None = None) -> None:
        if not _close(recorded, recomputed):
            who = (each.agent_id, each.name) if each else (None, None)
            self._differences.append(DecisionDifference(field, recorded, recomputed, *who))


def _standing(alpha: float, each: RankedCandidate) -> TrackRecord:
    """From the recorded parts: the evidence is recorded as it counted, after it faded."""
    elsewhere = (each.elsewhere * each.elsewhere_outcomes, each.elsewhere_outcomes)
    shown = each.rewards, each.outcomes, elsewhere
    return build_track_record(each.composite, alpha, *shown, variation=each.variation, stale=each.stale)


def _close(one: float, other: float) -> bool:
    # Near 0 a relative difference says nothing: a penalty of 1e-17 is none.
    return isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12)


def classify_terms(record: dict[str, Any]) -> Literal["evidence", "shares"] | None:
    """Which terms the candidates of a decision can be shown with: those of this formula, or the fixed shares of an
    earlier one. None for a record that has neither, so that a damaged log is shown as such.
    """
    listed = record.get("candidates")
    if not isinstance(listed, list | tuple) or not all(isinstance(each, dict) for each in listed):
        return None
    if record.get("rule") == RULE_VERSION:
        return "evidence" if _readable(record) else None
    fits = record.keys() >= _SHARED and all(each.keys() >= _SHARES for each in listed)
    return "shares" if fits else None


def _readable(record: dict[str, Any]) -> bool:
    try:
        return bool(msgspec.convert(record, RoutingDecision).candidates)
    except msgspec.ValidationError:
        return False


def explain_decision(record: dict[str, Any]) -> str:
    """Who was chosen and why, in plain English; of any rule's decision."""
    if classify_terms(record) is None:
        return "The recorded decision cannot be read."
    name, listed, total = record["agent_name"], record["candidates"], record["candidates_total"]
    waits = "" if record.get("online", True) else f" No worker is online, so the task waits for {name}."
    if record.get("preferred"):
        return f"{name} was chosen because the task asked for it.{waits}"
    if total == 1:
        return f"{name} was chosen as the only agent that was admitted.{waits}"
    if len(listed) < 2:
        return f"{name} was chosen among {total} candidates.{waits}"
    first, second = listed[0], listed[1]
    scores = f"{first['blended']:.3f} against {second['blended']:.3f} of {second['name']}"
    if first["blended"] < second["blended"] and not second.get("online", True):
        return f"{name} was chosen because {second['name']}, whose score is higher, is offline ({scores})."
    if first["blended"] == second["blended"]:
        rest = f"the same score as {second['name']} ({first['blended']:.3f}); {_tie(first, second)}"
        return f"{name} was chosen among {total} candidates with {rest}.{waits}"
    why = _advantage(record, first, second) if record.get("rule") == RULE_VERSION else ""
    return f"{name} was chosen among {total} candidates with the highest score, {scores}{why}.{waits}"


def _tie(first: dict[str, Any], second: dict[str, Any]) -> str:
    if first["composite"] != second["composite"]:
        return "the higher composite score decides"
    return "the name decides"


def _advantage(record: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> str:
    """The part of the score in which the first is furthest ahead of the second."""
    beta = record["beta"]
    worth = {
        "expected": ("a better result is expected of it", 1 - beta),
        "uncertainty": ("less is known of it, so that it gets a chance", 1 - beta),
        "time_penalty": ("it is ready sooner", beta - 1),
        "cost_penalty": ("it costs less", beta - 1),
        "trust": ("it is trusted more", beta),
    }
    if first["stale"]:
        worth["uncertainty"] = ("it was not tried since results changed here, so that it gets a chance", 1 - beta)
    field = max(worth, key=lambda name: worth[name][1] * (first[name] - second[name]))
    label = field.replace("_", " ")
    return f", mainly because {worth[field][0]} ({label} {first[field]:.3f} against {second[field]:.3f})"
