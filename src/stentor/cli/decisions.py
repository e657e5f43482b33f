"""Routing decisions as `stentor task` and `stentor llm` explain and print them.

The explanation recomputes a recorded decision with `domains.routing.explain`; nothing here chooses an agent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.cli import output
from stentor.cli.output import console, render_cell
from stentor.domains.routing import explain


def explain_task(trail: dict[str, Any]) -> dict[str, Any]:
    """Return the newest decision of a task, why this agent was chosen, and whether recomputation reproduces it."""

    decision, denial = trail["routing"], _newest_denial(trail["events"])
    if decision is None:
        return _explain_denial(trail, denial)
    check = explain.check_decision(decision)
    return {
        "task_id": trail["task_id"],
        "why": explain.explain_decision(decision),
        "decision": decision,
        "terms": explain.classify_terms(decision),
        "denied": decision.get("denied", []),
        "later_denial": denial["message"] if denial else None,
        "recomputation": msgspec.to_builtins(check) | {"same": check.is_reproduced},
    }


def _explain_denial(trail: dict[str, Any], denial: dict[str, Any] | None) -> dict[str, Any]:
    why = f"No agent was chosen: {denial['message']}" if denial else "No routing decision is recorded."
    details = denial["metadata"].get("details") or {} if denial else {}
    return {
        "task_id": trail["task_id"],
        "why": why,
        "decision": None,
        "terms": None,
        "denied": details.get("denied", []),
        "later_denial": None,
        "recomputation": None,
    }


def _newest_denial(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the newest denial unless a decision followed it."""
    newest = next((e for e in reversed(events) if e["event_type"] in ("routing_decision", "dispatch_denied")), None)
    return newest if newest and newest["event_type"] == "dispatch_denied" else None


LEGACY_COLUMNS = ("composite", "hebbian", "trust", "blended")
"""For decisions that were made with the older formula, whose terms are `shares`."""
SUMMARY_COLUMNS = ("declared", "outcomes", "expected", "uncertainty", "time", "cost", "trust", "score")
ALL_COLUMNS = (
    *("declared", "elsewhere", "prior", "outcomes", "expected", "uncertainty"),
    *("ahead", "ready", "time", "cost in $", "cost", "trust", "score", "online"),
)


def show_decision(decision: dict[str, Any]) -> None:
    """Print the candidates with the terms of their scores, the parameters, and the denied agents."""
    terms = explain.classify_terms(decision)
    if terms is None:
        output.print_line(explain.explain_decision(decision))
        return
    title = "Why: score = expected + uncertainty - time - cost, with trust weighted by beta"
    _show_candidates(decision, terms, SUMMARY_COLUMNS, title)
    _show_rest(decision)


def show_explanation(explained: dict[str, Any]) -> None:
    """Print a decision in full, and whether recomputation reproduces it."""
    decision = explained["decision"]
    output.print_line(explained["why"])
    if decision is None:
        _show_denied(explained["denied"])
        return
    if explained["terms"]:
        _show_candidates(decision, explained["terms"], ALL_COLUMNS, "Candidates, best first")
        _show_rest(decision)
    if explained["later_denial"]:
        output.print_line(f"A later attempt found no eligible agent: {explained['later_denial']}")
    _show_recomputation(explained["recomputation"])


def _show_candidates(decision: dict[str, Any], terms: str, columns: tuple[str, ...], title: str) -> None:
    candidates = decision["candidates"]
    if terms == "shares":
        columns, title = LEGACY_COLUMNS, "Why: blended = (1-a-b) composite + a hebbian + b trust"
        cells = [{term: _score(candidate[term]) for term in columns} for candidate in candidates]
    else:
        cells = [_cells(candidate) for candidate in candidates]
    rows = [
        (
            "chosen" if candidate["agent_id"] == decision["agent_id"] else "",
            candidate["name"],
            *(texts[column] for column in columns),
        )
        for candidate, texts in zip(candidates, cells, strict=True)
    ]
    console.print(output.render_table(("", "candidate", *columns), rows, title))
    if decision["candidates_total"] > len(candidates):
        console.print(f"Showing the best {len(candidates)} of {decision['candidates_total']}.", style="dim")


def _cells(candidate: dict[str, Any]) -> dict[str, str]:
    elsewhere, outcomes = candidate["elsewhere_outcomes"], candidate["outcomes"]
    age = ", stale" if candidate["stale"] else ""
    return {
        "declared": _score(candidate["composite"]),
        "elsewhere": f"{_score(candidate['elsewhere'])} of {elsewhere:.1f}" if elsewhere else "-",
        "prior": _score(candidate["prior"]),
        "outcomes": f"{candidate['rewards']:.1f} of {outcomes:.1f}{age}" if outcomes else "-",
        "expected": _score(candidate["expected"]),
        "uncertainty": _score(candidate["uncertainty"]),
        "ahead": str(candidate["ahead"]),
        "ready": f"{candidate['ready_ms'] / 1000:.1f} s",
        "time": _score(candidate["time_penalty"]),
        "cost in $": "-" if candidate["cost"] is None else f"{candidate['cost']:.4g}",
        "cost": _score(candidate["cost_penalty"]),
        "trust": _score(candidate["trust"]),
        "score": _score(candidate["blended"]),
        "online": "yes" if candidate["online"] else "no",
    }


def _score(value: float) -> str:
    return f"{value:.3f}"


def _show_rest(decision: dict[str, Any]) -> None:
    trust = "" if decision["trust_available"] else "; trust was unavailable, so beta and the trust floor were 0"
    prefer = f"prefer {decision['prefer']}, " if "prefer" in decision else ""
    console.print(
        f"alpha {decision['alpha']:g}, beta {decision['beta']:g}, {prefer}trust floor {decision['trust_floor']:g}; "
        f"decided in {decision['duration_us']} µs{trust}",
        style="dim",
    )
    _show_denied(decision["denied"])
    if decision["denied_total"] > len(decision["denied"]):
        console.print(f"Showing {len(decision['denied'])} of {decision['denied_total']} denied agents.", style="dim")


def _show_denied(denied: list[dict[str, Any]]) -> None:
    if denied:
        rows = [(render_cell(agent["name"]), agent["code"]) for agent in denied]
        console.print(output.render_table(("denied", "reason"), rows))


def _show_recomputation(check: dict[str, Any]) -> None:
    if not check["recomputed"]:
        output.print_line(f"Not recomputed: {check['reason']}")
        return
    for assumption in check["assumed"]:
        output.print_line(f"Assumed as recorded: {assumption}")
    if check["same"]:
        output.print_line("Recomputation from the run log: identical.")
        return
    rows = [(row["name"] or "all", row["field"], row["recorded"], row["recomputed"]) for row in check["differences"]]
    title = "Recomputation from the run log: different"
    console.print(output.render_table(("candidate", "value", "recorded", "recomputed"), rows, title))
