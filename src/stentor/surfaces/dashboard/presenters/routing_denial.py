"""Why no agent got a task, in words. Pure."""

from __future__ import annotations

from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.filters import explain_denial


def present_denial(task: JsonObject | None) -> JsonObject | None:
    """Return the reasons why a task was not routed; None for a task that was. The error is what routing recorded."""
    error = task["error"] if task and task["outcome_class"] == "routing_failed" else None
    if not isinstance(error, dict):
        return None
    details = error.get("details") or {}
    denied = [{**row, "reason": explain_denial(row.get("code"))} for row in details.get("denied") or []]
    return {
        "message": error.get("message", "No agent could take this task."),
        "reason": explain_denial(details["reason"]) if details.get("reason") else "",
        "denied": denied,
    }
