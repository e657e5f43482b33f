"""What `stentor task explain` finds out of a task's trail."""

from __future__ import annotations

from typing import Any


def explained(trail: dict[str, Any]) -> dict[str, Any]:
    """The newest decision, why it fell so, and whether it is recomputed the same."""
    # Comes with the routing domain: not for `stentor --help`.
    import msgspec

    from stentor.domains.routing import explain

    decision, denial = trail["routing"], _newest_denial(trail["events"])
    if decision is None:
        return _denied(trail, denial)
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


def _denied(trail: dict[str, Any], denial: dict[str, Any] | None) -> dict[str, Any]:
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
