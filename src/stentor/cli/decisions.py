"""What `stentor task explain` finds out of a task's trail.

Routing decisions for people: the candidates with their terms, who was denied, the shares, the recomputation.
"""

from __future__ import annotations

from typing import Any

from stentor.cli import output
from stentor.cli.output import console, render_cell


def explain_task(trail: dict[str, Any]) -> dict[str, Any]:
    """The newest decision, why it fell so, and whether it is recomputed the same."""
    # Comes with the routing domain: not for `stentor --help`.
    import msgspec

    from stentor.domains.routing import explain

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
    why = f"Nobody was chosen: {denial['message']}" if denial else "No routing decision is recorded."
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
    """The denial that no decision came after, or None."""
    newest = next((e for e in reversed(events) if e["event_type"] in ("routing_decision", "dispatch_denied")), None)
    return newest if newest and newest["event_type"] == "dispatch_denied" else None


LEGACY_COLUMNS = ("composite", "hebbian", "trust", "blended")
"""Of decisions that name no rule."""
SUMMARY_COLUMNS = ("declared", "outcomes", "expected", "uncertainty", "time", "cost", "trust", "score")
ALL_COLUMNS = (
    *("declared", "elsewhere", "prior", "outcomes", "expected", "uncertainty"),
    *("waits", "ready", "time", "cost in $", "cost", "trust", "score", "online"),
)


def show_decision(decision: dict[str, Any]) -> None:
    """The candidates with what made their scores, the shares, and who was denied."""
    # Comes with the routing domain: not for `stentor --help`.
    from stentor.domains.routing import explain

    terms = explain.classify_terms(decision)
    if terms is None:
        output.print_line(explain.explain_decision(decision))
        return
    title = "Why: score = expected + uncertainty - time - cost, trust by its share"
    _show_candidates(decision, terms, SUMMARY_COLUMNS, title)
    _show_rest(decision)


def show_explanation(explained: dict[str, Any]) -> None:
    """A decision in full, and whether it was recomputed the same."""
    decision = explained["decision"]
    output.print_line(explained["why"])
    if decision is None:
        _show_denied(explained["denied"])
        return
    if explained["terms"]:
        _show_candidates(decision, explained["terms"], ALL_COLUMNS, "Candidates, best first")
        _show_rest(decision)
    if explained["later_denial"]:
        output.print_line(f"Later no agent was admitted: {explained['later_denial']}")
    _show_recomputation(explained["recomputation"])


def _show_candidates(decision: dict[str, Any], terms: str, columns: tuple[str, ...], title: str) -> None:
    listed = decision["candidates"]
    if terms == "shares":
        columns, title = LEGACY_COLUMNS, "Why: blended = (1-a-b) composite + a hebbian + b trust"
        cells = [{term: _score(each[term]) for term in columns} for each in listed]
    else:
        cells = [_cells(each) for each in listed]
    rows = [
        ("chosen" if each["agent_id"] == decision["agent_id"] else "", each["name"], *(texts[c] for c in columns))
        for each, texts in zip(listed, cells, strict=True)
    ]
    console.print(output.render_table(("", "candidate", *columns), rows, title))
    if decision["candidates_total"] > len(listed):
        console.print(f"The best {len(listed)} of {decision['candidates_total']}.", style="dim")


def _cells(each: dict[str, Any]) -> dict[str, str]:
    elsewhere, outcomes = each["elsewhere_outcomes"], each["outcomes"]
    age = ", old" if each["stale"] else ""
    return {
        "declared": _score(each["composite"]),
        "elsewhere": f"{_score(each['elsewhere'])} of {elsewhere:.1f}" if elsewhere else "-",
        "prior": _score(each["prior"]),
        "outcomes": f"{each['rewards']:.1f} of {outcomes:.1f}{age}" if outcomes else "-",
        "expected": _score(each["expected"]),
        "uncertainty": _score(each["uncertainty"]),
        "waits": str(each["ahead"]),
        "ready": f"{each['ready_ms'] / 1000:.1f} s",
        "time": _score(each["time_penalty"]),
        "cost in $": "-" if each["cost"] is None else f"{each['cost']:.4g}",
        "cost": _score(each["cost_penalty"]),
        "trust": _score(each["trust"]),
        "score": _score(each["blended"]),
        "online": "yes" if each["online"] else "no",
    }


def _score(value: float) -> str:
    return f"{value:.3f}"


def _show_rest(decision: dict[str, Any]) -> None:
    trust = "" if decision["trust_available"] else "; trust could not be read, so beta and the floor were 0"
    prefer = f"prefer {decision['prefer']}, " if "prefer" in decision else ""
    console.print(
        f"alpha {decision['alpha']:g}, beta {decision['beta']:g}, {prefer}trust floor {decision['trust_floor']:g}; "
        f"decided in {decision['duration_us']} µs{trust}",
        style="dim",
    )
    _show_denied(decision["denied"])
    if decision["denied_total"] > len(decision["denied"]):
        console.print(f"{len(decision['denied'])} of {decision['denied_total']} denied.", style="dim")


def _show_denied(denied: list[dict[str, Any]]) -> None:
    if denied:
        console.print(
            output.render_table(("denied", "why"), [(render_cell(each["name"]), each["code"]) for each in denied])
        )


def _show_recomputation(found: dict[str, Any]) -> None:
    if not found["recomputed"]:
        output.print_line(f"Not recomputed: {found['reason']}")
        return
    for sentence in found["assumed"]:
        output.print_line(f"Taken as recorded: {sentence}")
    if found["same"]:
        output.print_line("Recomputed from the run log: the same.")
        return
    rows = [
        (each["name"] or "all", each["field"], each["recorded"], each["recomputed"]) for each in found["differences"]
    ]
    title = "Recomputed from the run log: not the same"
    console.print(output.render_table(("candidate", "value", "recorded", "recomputed"), rows, title))
