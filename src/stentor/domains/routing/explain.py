"""Explains a recorded routing decision and recomputes it from its own recorded inputs. Pure.

The formula is in `ranking`. Values that depend on candidates which the decision does not list (mean, slope, best time
and cost, the substitute for an unknown cost) are taken as recorded, and the check says so. The Hebbian weight, and
trust with a share of 0, do not enter the score and so cannot be checked.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import isclose
from typing import Any

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.routing.candidates import RankedCandidate, preference_tier
from stentor.domains.routing.model import RoutingDecision
from stentor.domains.routing.penalties import compute_penalties, is_promising, replace_unknown_costs
from stentor.domains.routing.ranking import RULE_VERSION, calibrate_priors, estimate_reward
from stentor.domains.routing.track_record import TrackRecord, build_track_record

TOLERANCE = 1e-9
"""Relative difference up to which two numbers are equal."""


class DecisionDifference(msgspec.Struct, frozen=True):
    """A recorded value that differs from the recomputed one; without `agent_id` it belongs to the whole decision."""

    field: str
    recorded: Any
    recomputed: Any
    agent_id: str | None = None
    name: str | None = None


class DecisionCheck(msgspec.Struct, frozen=True):
    """The result of a recomputation.

    `recomputed` is False, with a `reason`, for a decision by another rule. `assumed` are sentences about what was taken
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
    """Recompute a decision as recorded in the run log (`routing` in the event's metadata).

    Never raises: a record of this rule that is malformed, or has inputs out of range, is reported as a difference.
    """
    rule = record.get("rule") if isinstance(record, dict) else None
    if rule != RULE_VERSION:
        name = "an earlier rule without a name" if rule is None else f"the rule {rule!r}"
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
        self._track_records = [_track_record(decision.alpha, each) for each in decision.candidates]
        self._differences: list[DecisionDifference] = []
        self._assumed: list[str] = []

    def check(self) -> DecisionCheck:
        decision = self._decision
        mean, slope, fastest, costs = self._common_values()
        scores = []
        for each, track_record, cost in zip(decision.candidates, self._track_records, costs, strict=True):
            values = self._values(each, track_record, mean, slope, fastest, cost)
            for field, value in values.items():
                self._compare(field, getattr(each, field), value, each)
            # Order by the recorded score where it is right: rounding must not break a tie differently.
            score = values["blended"]
            scores.append(each.blended if _close(each.blended, score) else score)
        self._compare_order(scores)
        return DecisionCheck(True, None, tuple(self._differences), tuple(self._assumed))

    def _common_values(self) -> tuple[float, float, float, list[float]]:
        """Return mean, slope, shortest time and the costs: computed if all candidates are listed, else as recorded."""
        decision, listed = self._decision, self._decision.candidates
        if not self._complete:
            others = decision.candidates_total - len(listed)
            self._assumed.append(
                f"Mean, slope, shortest time, lowest and usual cost depend on {others} candidates that are not listed."
            )
            costs = [decision.usual_cost or 0.0 if each.cost is None else each.cost for each in listed]
            costs = _assume_costs(listed, costs, decision.mean)
            self._compare_best("fastest_ms", decision.fastest_ms, [each.ready_ms for each in listed])
            self._compare_best("cheapest", decision.cheapest, costs)
            return decision.mean, decision.slope, decision.fastest_ms, costs
        mean, slope = calibrate_priors(self._track_records)
        known_costs = [each.cost for each in listed]
        costs = replace_unknown_costs(known_costs)
        if decision.usual_cost is not None and None in known_costs:
            self._compare("usual_cost", decision.usual_cost, costs[known_costs.index(None)])
        costs = _assume_costs(listed, costs, mean)
        fastest = min(each.ready_ms for each in listed)
        self._compare("mean", decision.mean, mean)
        self._compare("slope", decision.slope, slope)
        self._compare("fastest_ms", decision.fastest_ms, fastest)
        self._compare("cheapest", decision.cheapest, min(costs))
        return mean, slope, fastest, costs

    def _values(
        self,
        candidate: RankedCandidate,
        track_record: TrackRecord,
        mean: float,
        slope: float,
        fastest: float,
        cost: float,
    ) -> dict[str, float]:
        """Return the recomputed fields of a candidate by name."""
        decision = self._decision
        expected, uncertainty = estimate_reward(track_record, mean, slope, candidate.ahead, candidate.unlearned)
        left = (expected + uncertainty) * (1 - candidate.failing) * (1 - candidate.overload)
        time_penalty, cost_penalty = compute_penalties(
            left, decision.prefer, candidate.ready_ms, fastest, cost, decision.cheapest
        )
        quality = left - time_penalty - cost_penalty
        score = (1 - decision.beta) * quality + decision.beta * candidate.trust
        return {
            "elsewhere": track_record.elsewhere,
            "elsewhere_outcomes": track_record.elsewhere_outcomes,
            "rewards": track_record.rewards,
            "outcomes": track_record.outcomes,
            "variation": track_record.variation,
            "prior": track_record.prior,
            "strength": track_record.strength,
            "expected": expected,
            "uncertainty": uncertainty,
            "time_penalty": time_penalty,
            "cost_penalty": cost_penalty,
            "blended": score,
        }

    def _compare_best(self, field: str, best: float, listed: Sequence[float]) -> None:
        """Check that no listed value is below the recorded best of all candidates."""
        if (least := min(listed)) < best:
            self._compare(field, best, least)

    def _compare_order(self, scores: Sequence[float]) -> None:
        """Compare the recorded order and choice with the order by score, as `ranking` sorts."""
        decision, listed = self._decision, self._decision.candidates
        keys = [
            (preference_tier(each), -score, -each.composite, each.name, each.agent_id)
            for each, score in zip(listed, scores, strict=True)
        ]
        order = [each for _, each in sorted(zip(keys, listed, strict=True), key=lambda pair: pair[0])]
        if [each.agent_id for each in order] != [each.agent_id for each in listed]:
            recorded, recomputed = [each.name for each in listed], [each.name for each in order]
            self._differences.append(DecisionDifference("order", recorded, recomputed))
        best = order[0]
        choice = {"agent_id": best.agent_id, "agent_name": best.name, "online": best.online}
        for field, value in choice.items():
            if getattr(decision, field) != value:
                self._differences.append(DecisionDifference(field, getattr(decision, field), value))

    def _compare(self, field: str, recorded: float, recomputed: float, each: RankedCandidate | None = None) -> None:
        if not _close(recorded, recomputed):
            candidate = (each.agent_id, each.name) if each else (None, None)
            self._differences.append(DecisionDifference(field, recorded, recomputed, *candidate))


def _assume_costs(listed: Sequence[RankedCandidate], costs: list[float], mean: float) -> list[float]:
    """Replace the unknown costs by 0 where the ranking does."""
    return [
        0.0 if each.cost is None and mean > 0 and is_promising(each, each, mean) else cost
        for each, cost in zip(listed, costs, strict=True)
    ]


def _track_record(alpha: float, candidate: RankedCandidate) -> TrackRecord:
    """Rebuild a track record. The evidence is recorded after its decay, so no age is needed."""
    return build_track_record(
        candidate.composite,
        alpha,
        candidate.rewards,
        candidate.outcomes,
        (candidate.elsewhere * candidate.elsewhere_outcomes, candidate.elsewhere_outcomes),
        variation=candidate.variation,
        stale=candidate.stale,
        seen=candidate.seen,
    )


def _close(a: float, b: float) -> bool:
    # The absolute tolerance is for penalties near 0, where rounding makes any relative difference.
    return isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12)


def is_readable(record: JsonObject) -> bool:
    """Return whether the fields of a decision are those of this version, by whichever rule it was made."""
    try:
        return bool(msgspec.convert(record, RoutingDecision).candidates)
    except msgspec.ValidationError:
        return False


def explain_decision(record: JsonObject) -> str:
    """Return in one or two sentences who was chosen and why, for a decision by any rule."""
    if not is_readable(record):
        return "The recorded decision cannot be read."
    name, listed, total = record["agent_name"], record["candidates"], record["candidates_total"]
    offline_note = "" if record.get("online", True) else _describe_offline(name, record.get("runtime_kind"))
    if record.get("preferred"):
        return f"{name} was chosen because the task requested it.{offline_note}"
    if total == 1:
        return f"{name} was chosen as the only eligible agent.{offline_note}"
    if len(listed) < 2:
        return f"{name} was chosen among {total} candidates.{offline_note}"
    first, second = listed[0], listed[1]
    scores = f"{first['blended']:.3f} against {second['blended']:.3f} for {second['name']}"
    if first["blended"] < second["blended"] and second.get("resting"):
        why = "whose score is higher, rests because its provider failed repeatedly"
        return f"{name} was chosen because {second['name']}, {why} ({scores}).{offline_note}"
    if first["blended"] < second["blended"] and not second.get("online", True):
        return f"{name} was chosen because {second['name']}, whose score is higher, is offline ({scores})."
    if first["blended"] == second["blended"]:
        tie = f"the same score as {second['name']} ({first['blended']:.3f}); {_tie_breaker(first, second)}"
        return f"{name} was chosen among {total} candidates with {tie}.{offline_note}"
    advantage = _advantage(record, first, second)
    return f"{name} was chosen among {total} candidates with the highest score, {scores}{advantage}.{offline_note}"


def _describe_offline(name: str, runtime_kind: str | None) -> str:
    """Return why the chosen agent could not work, and what follows; older records do not know the runtime."""
    if runtime_kind == "llm":
        return f" No provider serves its model, so {name} fails the task: `stentor agent show {shlex.quote(name)}`."
    if runtime_kind == "http":
        return f" Its endpoint does not answer, so the task waits until {name} is tried again."
    return f" No worker is online, so the task waits for {name}."


def _tie_breaker(first: JsonObject, second: JsonObject) -> str:
    if first["composite"] != second["composite"]:
        return "the higher composite score decides"
    return "the name decides"


def _advantage(record: JsonObject, first: JsonObject, second: JsonObject) -> str:
    """Name the term of the score in which the first is furthest ahead of the second, or that it is tried again."""
    if first.get("retry"):
        return ", because after failures in a row it is tried again, ranked by its results from before them"
    beta = record["beta"]
    reasons = {
        "expected": ("its expected result is better", 1 - beta),
        "uncertainty": ("it has fewer results so far, so routing tries it", 1 - beta),
        "failing": ("fewer of its results fail by its provider or are degraded", beta - 1),
        "overload": ("it has fewer tasks, and results are worse with many at once", beta - 1),
        "time_penalty": (_describe_time(first), beta - 1),
        "cost_penalty": (_describe_cost(first, second), beta - 1),
        "trust": ("it has more trust", beta),
    }
    if first["outcomes"] >= second["outcomes"]:
        # As when another agent has open tasks, or its latest tasks taught nothing.
        reasons["uncertainty"] = ("its results so far are less certain, so routing tries it", 1 - beta)
    if first["stale"]:
        reasons["uncertainty"] = ("it has no outcome since results changed here, so it is explored", 1 - beta)
    field = max(reasons, key=lambda name: reasons[name][1] * (first.get(name, 0.0) - second.get(name, 0.0)))
    label, reason = field.replace("_", " "), reasons[field][0]
    if field == "expected" and not _is_better_at_any_length(record, first, second):
        reason = "its expected result is better for inputs of this length"
    return f", mainly because {reason} ({label} {first[field]:.3f} against {second[field]:.3f})"


def _is_better_at_any_length(record: JsonObject, first: JsonObject, second: JsonObject) -> bool:
    """Return whether the first has the better expected result also by its outcomes of inputs of any length."""
    if first.get("any_length") is None and second.get("any_length") is None:
        return True
    expected = []
    for each in (first, second):
        if (evidence := each.get("any_length")) is not None:
            each = each | {"rewards": evidence[0], "outcomes": evidence[1]}
        candidate = msgspec.convert(each, RankedCandidate)
        track_record = _track_record(record["alpha"], candidate)
        expected.append(
            estimate_reward(track_record, record["mean"], record["slope"], candidate.ahead, candidate.unlearned)[0]
        )
    return expected[0] > expected[1]


def _describe_time(first: JsonObject) -> str:
    if not first["outcomes"] and not first["ahead"]:
        return "nobody knows yet how long it takes, so routing tries it"
    if first.get("any_length") is not None and not first.get("time_known", True) and not first["ahead"]:
        return "nobody knows yet how long it takes with inputs of this length, so routing tries it"
    return "it is ready sooner"


def _describe_cost(first: JsonObject, second: JsonObject) -> str:
    if first["cost"] is not None:
        return "it costs less" if second["cost"] is not None else f"it costs less than is assumed of {second['name']}"
    if not first["outcomes"] and not first["cost_penalty"]:
        return "nobody knows yet what it costs, so routing tries it"
    return "its cost is unknown and counts as the usual one"
