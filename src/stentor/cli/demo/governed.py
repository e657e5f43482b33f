"""The demo's fourth part: an agent that is caught, and an update that is approved, deployed and rolled back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.output import CommandFailed

PATIENCE_SECONDS = 30
TOUCHES = ("notes/today.md", "/etc/passwd", "notes/../keys/receipts.key", "../../root/.ssh/id_rsa")
"""What the agent tries to read: the first lies within its allowlist, the third of the others is one too many."""
Call = Callable[..., Any]


def caught(call: Call) -> dict[str, Any]:
    """An agent reads what it may not, is quarantined, and cleared by an admin."""
    files = {"name": "files", "paths": ["notes/**"], "operations": ["read"]}
    fields = {"name": "intern", "capabilities": ["tidy"], "sandbox_whitelist": {"tools": [files]}}
    agent = f"/registry/agents/{call('POST', '/registry/agents', fields)['agent_id']}"
    tries = []
    for path in TOUCHES:
        asked = {"tool": "files", "operation": "read", "path": path}
        allowed = call("POST", f"{agent}/authorize", asked)["allowed"]
        tries.append({"path": path, "allowed": allowed, "status": call("GET", agent)["status"]})
    rationale = {"override_tier": "human", "rationale": "It was a test of the allowlist."}
    cleared = call("POST", f"{agent}/clear-violations", rationale)
    return {"tries": tries, "cleared_by": cleared["overridden_by"], "status": call("GET", agent)["status"]}


def updated(call: Call, second: Call, agent_id: str) -> dict[str, Any]:
    """A patch of an agent: proposed with one key, approved with another, deployed, and rolled back."""
    patch = {"runtime": {"options": {"method": "salience"}}}
    flags = dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False)
    lines = {"files_modified": [], "lines_added": 1, "lines_deleted": 1, "lines_total": 400}
    wanted = {
        "agent_id": agent_id,
        "update_type": "runtime",
        "description": "Look at all sentences, not at the first ones.",
        "changes": {**lines, **flags, "agent_patch": patch},
    }
    proposed = call("POST", "/governance/updates", wanted)
    path = f"/governance/updates/{proposed['update_id']}"
    second(
        "POST", f"{path}/approve", {"approved_by": "bert", "rationale": "Summaries were thin.", "override_risk": False}
    )
    deployed = _until(call, path, "status", ("deployed", "rolled_back"))
    during = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    taken = call("GET", f"/governance/checkpoints?agent_id={agent_id}")["checkpoints"][0]["checkpoint_id"]
    said = {"initiated_by": "anna", "reason": "It was a demonstration.", "details": ""}
    back = call("POST", "/governance/rollbacks", {"checkpoint_id": taken, **said})
    rollback = _until(call, f"/governance/rollbacks/{back['rollback_id']}", "status", ("completed", "failed"))
    after = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    shown = {"tier": proposed["tier"], "reasons": deployed["reasons"], "status": deployed["status"]}
    return shown | {"during": during, "after": after, "verified": rollback["verified"]}


def _until(call: Call, path: str, field: str, ends: tuple[str, ...]) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        found: dict[str, Any] = call("GET", path)
        if found[field] in ends:
            return found
        time.sleep(0.02)
    raise CommandFailed(f"{path} did not come to an end within {PATIENCE_SECONDS} s.")


def show(found: dict[str, Any], update: dict[str, Any]) -> Panel:
    lines = [
        Text.assemble(
            f"{'allowed' if one['allowed'] else 'denied ':<8}",
            (f"read {one['path']:<28}", "cyan"),
            (one["status"], "bold red" if one["status"] == "quarantined" else "dim"),
        )
        for one in found["tries"]
    ]
    lines.append(Text(f"Cleared by the key {found['cleared_by']!r}: {found['status']} again.\n", style="dim"))
    lines += [
        Text.assemble("An update of ", ("quick", "bold"), f", tier {update['tier']}: {'; '.join(update['reasons'])}."),
        Text(f"Approved by a second key, then {update['status']}: options {update['during']}."),
        Text(f"Rolled back: options {update['after']}, verified {update['verified']}."),
    ]
    return Panel(Group(*lines), title="Governed: an agent is caught, an update approved and undone", title_align="left")
