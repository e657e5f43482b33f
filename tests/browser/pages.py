"""Every page: a name, its address, and what must be seen on it."""

from __future__ import annotations

from typing import NamedTuple

from tests.browser.seed import Seeded


class Shown(NamedTuple):
    name: str
    path: str
    sees: str


def pages(made: Seeded) -> list[Shown]:
    scribe = made.agents["scribe"]
    return [
        Shown("overview", "/", "Needs your attention"),
        Shown("alerts", "/alerts", "Open alerts"),
        Shown("tasks", "/tasks", "New task"),
        Shown("task", f"/tasks/{made.done}", "Why this agent"),
        Shown("task-failed", f"/tasks/{made.failed}", "SOURCE_UNREADABLE"),
        Shown("task-asking", f"/tasks/{made.asking}", "Book Sol for 240 EUR?"),
        Shown("steps", f"/tasks/{made.asking}/steps", "plan"),
        Shown("decisions", "/decisions", "Pay the hotel"),
        Shown("schedules", "/schedules", "weekly-review"),
        Shown("schedule", "/schedules/morning-report", "At 06:30 on Monday through Friday"),
        Shown("sessions", "/sessions", "Lost parcel"),
        Shown("session", "/sessions/session?id=support%2F4711", "It is in Lisbon."),
        Shown("task-of-session", f"/tasks/{made.talking}", "support/4711"),
        Shown("replay", f"/tasks/{made.asking}/replay", "stentor-worker replay"),
        Shown("people", "/people", "People"),
        Shown("compare", f"/tasks/{made.done}/compare?with={made.failed}", "Compare runs"),
        Shown("console", "/console", "New task"),
        Shown("console-run", f"/console/{made.done}", "Next task"),
        Shown("agents", "/agents", "translator"),
        Shown(
            "agents-compared",
            "/agents/compare?" + "&".join(f"agent={id}" for id in list(made.agents.values())[:4]),
            "Duration, p95",
        ),
        Shown("agent-new", "/agents/new", "How it works"),
        Shown("agent-edit", f"/agents/{scribe}/edit", "What changes, and why"),
        Shown("weights", "/agents/weights", "Weights by task type"),
        Shown("agent", f"/agents/{scribe}", "Take a checkpoint"),
        Shown("card", f"/agents/{scribe}/card", "scribe"),
        Shown("governance", "/governance", "Let the scribe write files"),
        Shown("update", f"/governance/updates/{made.update}", "write_file"),
        Shown("checkpoints", "/governance/checkpoints", "scribe"),
        Shown("checkpoint", f"/governance/checkpoints/{made.checkpoint}", "scribe"),
        Shown("rollbacks", "/governance/rollbacks", "Rollbacks"),
        Shown("rollback", f"/governance/rollbacks/{made.rollback}", "It answers without sources."),
        Shown("memory", "/memory?q=deploy&mode=keyword", "Plan"),
        Shown("memory-list", "/memory", "Recently changed"),
        Shown("note-edit", "/memory/edit?path=Projects%2Fplan.md", "Deploying happens every night"),
        Shown("note-invalid", "/memory/note?path=Notes%2Fbudget.md", "The vendor withdrew it"),
        Shown("note", "/memory/note?path=Projects%2Fplan.md", "Deploying happens every night"),
        Shown("messages", "/messages", "registry"),
        Shown("message", f"/messages/{made.message}", "trace-0001"),
        Shown("new-message", "/messages/new", "Validate"),
        Shown("models", "/models", "Models & cost"),
        Shown("calls", "/models/calls", "Model calls"),
        Shown("budgets", "/models/budgets", "Budgets"),
        Shown("providers", "/models/providers", "Groups and fallbacks"),
        Shown("playground", "/models/playground", "Playground"),
        Shown("provenance", "/provenance", "Verify everything"),
        Shown("run", f"/provenance/{made.root}", "task completed"),
        Shown("keys", "/keys", "Create a key"),
        Shown("key", "/keys/dana", "Support"),
        Shown("audit", "/audit", "signed in"),
        Shown("webhooks", "/webhooks", "hooks.example.com"),
        Shown("webhook", f"/webhooks/{made.webhook}", "Deliveries"),
        Shown("delivery", f"/webhooks/{made.webhook}/deliveries/{made.delivery}", "ping"),
    ]
