"""Routing decisions for people: the candidates with their terms, who was denied, the shares, the recomputation."""

from __future__ import annotations

from typing import Any

from stentor.cli import display
from stentor.cli.display import cell
from stentor.cli.output import out

EARLIER_TERMS = ("composite", "hebbian", "trust", "blended")
"""Of decisions that name no rule."""
SHORT = ("declared", "outcomes", "expected", "uncertainty", "time", "cost", "trust", "score")
FULL = (
    *("declared", "elsewhere", "prior", "outcomes", "expected", "uncertainty"),
    *("waits", "ready", "time", "cost in $", "cost", "trust", "score", "online"),
)


def show_short(decision: dict[str, Any]) -> None:
    """The candidates with what made their scores, the shares, and who was denied."""
    # Comes with the routing domain: not for `stentor --help`.
    from stentor.domains.routing import explain

    terms = explain.classify_terms(decision)
    if terms is None:
        display.say(explain.explain_decision(decision))
        return
    title = "Why: score = expected + uncertainty - time - cost, trust by its share"
    _show_candidates(decision, terms, SHORT, title)
    _show_rest(decision)


def show_explained(explained: dict[str, Any]) -> None:
    """A decision in full, and whether it was recomputed the same."""
    decision = explained["decision"]
    display.say(explained["why"])
    if decision is None:
        _show_denied(explained["denied"])
        return
    if explained["terms"]:
        _show_candidates(decision, explained["terms"], FULL, "Candidates, best first")
        _show_rest(decision)
    if explained["later_denial"]:
        display.say(f"Later no agent was admitted: {explained['later_denial']}")
    _show_recomputation(explained["recomputation"])


def _show_candidates(decision: dict[str, Any], terms: str, columns: tuple[str, ...], title: str) -> None:
    listed = decision["candidates"]
    if terms == "shares":
        columns, title = EARLIER_TERMS, "Why: blended = (1-a-b) composite + a hebbian + b trust"
        cells = [{term: _score(each[term]) for term in columns} for each in listed]
    else:
        cells = [_cells(each) for each in listed]
    rows = [
        ("chosen" if each["agent_id"] == decision["agent_id"] else "", each["name"], *(texts[c] for c in columns))
        for each, texts in zip(listed, cells, strict=True)
    ]
    out.print(display.table(("", "candidate", *columns), rows, title))
    if decision["candidates_total"] > len(listed):
        out.print(f"The best {len(listed)} of {decision['candidates_total']}.", style="dim")


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
    out.print(
        f"alpha {decision['alpha']:g}, beta {decision['beta']:g}, {prefer}trust floor {decision['trust_floor']:g}; "
        f"decided in {decision['duration_us']} µs{trust}",
        style="dim",
    )
    _show_denied(decision["denied"])
    if decision["denied_total"] > len(decision["denied"]):
        out.print(f"{len(decision['denied'])} of {decision['denied_total']} denied.", style="dim")


def _show_denied(denied: list[dict[str, Any]]) -> None:
    if denied:
        out.print(display.table(("denied", "why"), [(cell(each["name"]), each["code"]) for each in denied]))


def _show_recomputation(found: dict[str, Any]) -> None:
    if not found["recomputed"]:
        display.say(f"Not recomputed: {found['reason']}")
        return
    for sentence in found["assumed"]:
        display.say(f"Taken as recorded: {sentence}")
    if found["same"]:
        display.say("Recomputed from the run log: the same.")
        return
    rows = [
        (each["name"] or "all", each["field"], each["recorded"], each["recomputed"]) for each in found["differences"]
    ]
    title = "Recomputed from the run log: not the same"
    out.print(display.table(("candidate", "value", "recorded", "recomputed"), rows, title))
