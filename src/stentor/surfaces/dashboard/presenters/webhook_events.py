"""What each webhook event means, grouped for the form. A test compares the names with those of the domain."""

from __future__ import annotations

EVENT_GROUPS = {
    "task": {
        "task.submitted": "accepted and routed",
        "task.started": "an agent works on it",
        "task.completed": "done, with its result",
        "task.failed": "the agent or the routing failed",
        "task.aborted": "rejected, or out of time",
        "task.cancelled": "somebody cancelled it",
        "task.pending_approval": "waits for a person",
    },
    "agent": {
        "agent.registered": "a new agent",
        "agent.suspended": "a person stopped it",
        "agent.quarantined": "stopped after violations",
        "agent.cleared": "its violations were cleared",
    },
    "update": {
        "update.submitted": "a change of an agent was proposed",
        "update.approved": "a person approved it",
        "update.rejected": "a person rejected it",
        "update.deployed": "it is in effect",
        "update.rolled_back": "it was undone",
    },
    "rollback": {
        "rollback.completed": "an agent was set back and verified",
        "rollback.failed": "an agent could not be set back",
    },
    "alert": {
        "alert.opened": "something needs attention",
        "alert.resolved": "it no longer does",
    },
    "memory": {
        "memory.written": "a note was changed",
        "memory.conflict": "two changes could not be merged",
    },
    "sentinel": {"sentinel.alert": "routing weights oscillate"},
    "trust": {"trust.level_changed": "an agent's trust level changed"},
    "webhook": {"webhook.ping": "a test, sent on request"},
}
