"""Routing decisions as `stentor task` and `stentor llm` explain and print them.

The explanation recomputes a recorded decision with `domains.routing.explain`; nothing here chooses an agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.cli import output
from stentor.cli.client.responses import RunEvent, TaskActivity, read_fields
from stentor.cli.output import console
from stentor.core.jsontext import JsonObject
from stentor.domains.routing import explain
from stentor.domains.routing.candidates import RankedCandidate
from stentor.domains.routing.explain import DecisionCheck
from stentor.domains.routing.model import DeniedCandidate, RoutingDecision, describe_denial


class Explanation(msgspec.Struct, frozen=True):
    """Why an agent or a model was chosen.

    `decision` stays as recorded, since a damaged one cannot be read; `terms` says how to read it (None: not at all).
    """

    why: str
    decision: JsonObject | None
    terms: str | None
    denied: Any
    later_denial: str | None
    recomputation: DecisionCheck | None

    def is_reproduced(self) -> bool:
        """Return False if a recomputation had another result; True as well if nothing could be recomputed."""
        return self.recomputation is None or not self.recomputation.differences


def explain_task(activity: TaskActivity) -> JsonObject:
    """Return the newest decision of a task, why this agent was chosen, and whether recomputation reproduces it."""
    denial = _newest_denial(activity.events)
    later_denial = denial.message if denial else None
    if activity.routing is not None:
        why = explain.explain_decision(activity.routing)
        return {"task_id": activity.task_id, "why": why} | describe_decision(activity.routing, later_denial)
    why = f"No agent was chosen: {denial.message}" if denial else "No routing decision is recorded."
    details = denial.metadata.get("details") or {} if denial else {}
    denied = details.get("denied", [])
    return {"task_id": activity.task_id, "why": why} | NO_DECISION | {"denied": denied}


def _newest_denial(events: list[RunEvent]) -> RunEvent | None:
    """Return the newest denial unless a decision followed it."""
    newest = next((e for e in reversed(events) if e.event_type in ("routing_decision", "dispatch_denied")), None)
    return newest if newest and newest.event_type == "dispatch_denied" else None


NO_DECISION: JsonObject = {
    "decision": None,
    "terms": None,
    "denied": [],
    "later_denial": None,
    "recomputation": None,
}
"""The fields of an explanation besides `why`, if no decision is recorded."""


def describe_decision(decision: JsonObject, later_denial: str | None = None) -> JsonObject:
    """Return the fields of an explanation besides `why`."""
    check = explain.check_decision(decision)
    return {
        "decision": decision,
        "terms": "evidence" if explain.is_readable(decision) else None,
        "denied": decision.get("denied", []),
        "later_denial": later_denial,
        "recomputation": msgspec.to_builtins(check) | {"same": check.is_reproduced},
    }


SUMMARY_COLUMNS = ("expected", "uncertainty", "failing", "overload", "time", "cost", "trust", "score")
"""The terms that make the score; `stentor task explain` has all."""
RARE_TERMS = ("failing", "overload")
"""Terms that are not shown where they are 0 for every candidate."""
TERMS = {
    "declared": "what it declares about itself, 0 to 1",
    "elsewhere": "mean and number of its results at other task types",
    "prior": "expected result before its first task of this type",
    "outcomes": "sum and number of its results at this task type",
    "expected": "expected result, from prior and outcomes",
    "uncertainty": "exploration bonus for little evidence",
    "tries": "its tasks since its last result that counted, and that taught nothing",
    "failing": "share of its latest tasks that its provider failed or that were degraded",
    "overload": "share of its successes that its present tasks cost",
    "ahead": "tasks ahead of this one in its queue",
    "ready": "estimated time until this task is done",
    "time": "penalty for being slower than the fastest",
    "cost in $": "expected cost of a task of this type",
    "cost": "penalty for being more expensive than the cheapest",
    "trust": "trust score, weighted by beta",
    "score": "",
    "online": "whether it can accept work now; `rests`: not after failures of its provider",
}
"""Every term of a score, with its meaning. For the score itself its formula is printed."""
MAX_COMPARED = 4
"""Candidates whose terms fit side by side into a terminal."""


def show_decision(record: JsonObject) -> None:
    """Print the candidates with the terms of their scores, the parameters, and the denied agents."""
    output.print_line(explain.explain_decision(record))
    if not explain.is_readable(record):
        return
    decision = read_fields(record, RoutingDecision)
    shown = _shown_terms(decision.candidates)
    title = f"Why: score = {_formula(shown)}, with trust weighted by beta"
    _show_candidates(decision, [term for term in SUMMARY_COLUMNS if term in shown], title)
    _show_rest(decision)


def show_explanation(explanation: Explanation) -> None:
    """Print a decision in full, and whether recomputation reproduces it."""
    output.print_line(explanation.why)
    if explanation.decision is None:
        _show_denied(read_fields(explanation.denied, tuple[DeniedCandidate, ...]))
        return
    if explanation.terms == "evidence":
        decision = read_fields(explanation.decision, RoutingDecision)
        _show_terms(decision)
        _show_rest(decision)
    if explanation.later_denial:
        output.print_line(f"A later attempt found no eligible agent: {explanation.later_denial}")
    if explanation.recomputation is not None:
        _show_recomputation(explanation.recomputation)


def _show_candidates(decision: RoutingDecision, columns: list[str], title: str) -> None:
    candidates = decision.candidates
    cells = [_cells(candidate) for candidate in candidates]
    rows = [
        (_mark(candidate, decision), *(texts[column] for column in columns))
        for candidate, texts in zip(candidates, cells, strict=True)
    ]
    console.print(output.render_table(("candidate", *columns), rows, title))
    if decision.candidates_total > len(candidates):
        console.print(f"Showing the best {len(candidates)} of {decision.candidates_total}.", style="dim")


def _show_terms(decision: RoutingDecision) -> None:
    """Print a row for each term, and a column for each of the best candidates: so many columns fit no terminal."""
    best = decision.candidates[:MAX_COMPARED]
    cells, shown = [_cells(candidate) for candidate in best], _shown_terms(best)
    meanings = TERMS | {"score": _formula(shown)}
    rows = [(term, *(texts[term] for texts in cells), meanings[term]) for term in shown]
    names = [_mark(candidate, decision) for candidate in best]
    console.print(output.render_table(("", *names, "meaning"), rows, "Candidates, best first"))
    if decision.candidates_total > len(best):
        console.print(f"The best {len(best)} of {decision.candidates_total}; `--json` has all.", style="dim")


def _shown_terms(candidates: Sequence[RankedCandidate]) -> list[str]:
    return [term for term in TERMS if term not in RARE_TERMS or any(getattr(each, term) for each in candidates)]


def _formula(shown: list[str]) -> str:
    """Return how the score is made of the terms that are shown, without trust."""
    factors = "".join(f" (1 - {term})" for term in RARE_TERMS if term in shown)
    return f"{'(expected + uncertainty)' if factors else 'expected + uncertainty'}{factors} - time - cost"


def _mark(candidate: RankedCandidate, decision: RoutingDecision) -> str:
    return f"{candidate.name} (chosen)" if candidate.agent_id == decision.agent_id else candidate.name


def _cells(candidate: RankedCandidate) -> dict[str, str]:
    elsewhere, outcomes = candidate.elsewhere_outcomes, candidate.outcomes
    age = ", before its failures" if candidate.retry else ", stale" if candidate.stale else ""
    return {
        "declared": _score(candidate.composite),
        "elsewhere": f"{_score(candidate.elsewhere)} of {elsewhere:.1f}" if elsewhere else "-",
        "prior": _score(candidate.prior),
        "outcomes": f"{candidate.rewards:.1f} of {outcomes:.1f}{age}" if outcomes else "-",
        "expected": _score(candidate.expected),
        "uncertainty": _score(candidate.uncertainty),
        "tries": str(candidate.unlearned),
        "failing": _score(candidate.failing),
        "overload": _score(candidate.overload),
        "ahead": str(candidate.ahead),
        "ready": f"{candidate.ready_ms / 1000:.1f} s",
        "time": _score(candidate.time_penalty),
        "cost in $": "-" if candidate.cost is None else f"{candidate.cost:.4g}",
        "cost": _score(candidate.cost_penalty),
        "trust": _score(candidate.trust),
        "score": _score(candidate.blended),
        "online": ("rests" if candidate.resting else "yes") if candidate.online else "no",
    }


def _score(value: float) -> str:
    return f"{value:.3f}"


def _show_rest(decision: RoutingDecision) -> None:
    trust = "" if decision.trust_available else "; trust was unavailable, so beta and the trust floor were 0"
    console.print(
        f"alpha {decision.alpha:g}, beta {decision.beta:g}, prefer {decision.prefer}, "
        f"trust floor {decision.trust_floor:g}; decided in {decision.duration_us} µs{trust}",
        style="dim",
    )
    _show_denied(decision.denied)
    if decision.denied_total > len(decision.denied):
        console.print(f"Showing {len(decision.denied)} of {decision.denied_total} denied agents.", style="dim")


def _show_denied(denied: tuple[DeniedCandidate, ...]) -> None:
    if denied:
        rows = [(agent.name, f"{describe_denial(agent.code)} ({agent.code})") for agent in denied]
        console.print(output.render_table(("not eligible", "because it"), rows))


def _show_recomputation(check: DecisionCheck) -> None:
    if not check.recomputed:
        output.print_line(f"Not recomputed: {check.reason}")
        return
    for assumption in check.assumed:
        output.print_line(f"Assumed as recorded: {assumption}")
    if check.is_reproduced:
        output.print_line("Recomputation from the run log: identical.")
        return
    rows = [(row.name or "all", row.field, row.recorded, row.recomputed) for row in check.differences]
    title = "Recomputation from the run log: different"
    console.print(output.render_table(("candidate", "value", "recorded", "recomputed"), rows, title))
