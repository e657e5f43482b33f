"""Agents as values, for the tests of pure rules."""

from __future__ import annotations

from typing import Any

from stentor.domains.registry.model import Agent, Runtime, SandboxWhitelist

DEFAULTS: dict[str, Any] = {
    "tenant": "default",
    "capabilities": ("echo",),
    "alignment_score": 0.5,
    "accuracy_score": 0.5,
    "efficiency_score": 0.5,
    "trust_tier": "monitored",
    "status": "active",
    "runtime": Runtime(),
    "sandbox_whitelist": SandboxWhitelist(),
    "key_name": None,
    "violation_count": 0,
    "status_reason": None,
    "created_at": 0,
    "updated_at": 0,
}


def agent(name: str = "ann", **fields: Any) -> Agent:
    """An active worker that can echo; its id is its name unless one is given."""
    return Agent(**DEFAULTS | {"agent_id": name, "name": name} | fields)
