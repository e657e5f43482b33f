"""The last parts of the demo: an agent in quarantine, an update that is rolled back, and a tampered run log.

Built like those in `scenarios`.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.demo.scenarios import ApiCall
from stentor.cli.output import CommandFailed
from stentor.core.jsontext import JsonObject

UPDATE_TIMEOUT_SECONDS = 30
ATTEMPTED_PATHS = ("notes/today.md", "/etc/passwd", "notes/../keys/receipts.key", "../../root/.ssh/id_rsa")
"""What the agent tries to read: only the first is on its allow-list; the third violation quarantines the agent."""


class ReadAttempt(msgspec.Struct, frozen=True):
    """An attempt to read, and the status of the agent after it."""

    path: str
    allowed: bool
    status: str


class Quarantine(msgspec.Struct, frozen=True):
    """The attempts of the agent, the key that released it, and its status afterwards."""

    tries: list[ReadAttempt]
    cleared_by: str
    status: str


class UndoneUpdate(msgspec.Struct, frozen=True):
    """An update with the options of the agent while it was deployed and after its rollback."""

    tier: int
    reasons: list[str]
    status: str
    during: JsonObject
    after: JsonObject
    verified: bool


def quarantine_agent(call: ApiCall) -> JsonObject:
    """Make an agent attempt forbidden reads until it is quarantined, and have an admin release it."""
    files = {"name": "files", "paths": ["notes/**"], "operations": ["read"]}
    fields = {"name": "intern", "capabilities": ["tidy"], "sandbox_whitelist": {"tools": [files]}}
    agent = f"/registry/agents/{call('POST', '/registry/agents', fields)['agent_id']}"
    attempts = []
    for path in ATTEMPTED_PATHS:
        request = {"tool": "files", "operation": "read", "path": path}
        allowed = call("POST", f"{agent}/authorize", request)["allowed"]
        attempts.append({"path": path, "allowed": allowed, "status": call("GET", agent)["status"]})
    rationale = {"override_tier": "human", "rationale": "Test of the allow-list."}
    release = call("POST", f"{agent}/clear-violations", rationale)
    return {"tries": attempts, "cleared_by": release["overridden_by"], "status": call("GET", agent)["status"]}


def update_agent(call: ApiCall, second: ApiCall, agent_id: str) -> JsonObject:
    """Propose a patch of an agent with one key, approve it with another, deploy it and roll it back."""
    patch = {"runtime": {"options": {"method": "salience"}}}
    flags = dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False)
    lines = {"files_modified": ["agents/quick"], "lines_added": 1, "lines_deleted": 1, "lines_total": 400}
    proposal = {
        "agent_id": agent_id,
        "update_type": "runtime",
        "description": "Consider all sentences, not only the first ones.",
        "changes": {**lines, **flags, "agent_patch": patch},
    }
    proposed = call("POST", "/governance/updates", proposal)
    path = f"/governance/updates/{proposed['update_id']}"
    second(
        "POST",
        f"{path}/approve",
        {"approved_by": "bert", "rationale": "Summaries were thin.", "override_risk": False},
    )
    deployed = _wait_for_status(call, path, ("deployed", "rolled_back"))
    during = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    checkpoint_id = call("GET", f"/governance/checkpoints?agent_id={agent_id}")["checkpoints"][0]["checkpoint_id"]
    origin = {"initiated_by": "anna", "reason": "End of the demonstration.", "details": ""}
    started = call("POST", "/governance/rollbacks", {"checkpoint_id": checkpoint_id, **origin})
    rollback = _wait_for_status(call, f"/governance/rollbacks/{started['rollback_id']}", ("completed", "failed"))
    after = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    summary = {"tier": proposed["tier"], "reasons": deployed["reasons"], "status": deployed["status"]}
    return summary | {"during": during, "after": after, "verified": rollback["verified"]}


def _wait_for_status(call: ApiCall, path: str, ends: tuple[str, ...]) -> JsonObject:
    deadline = time.monotonic() + UPDATE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        record: JsonObject = call("GET", path)
        if record["status"] in ends:
            return record
        time.sleep(0.02)
    raise CommandFailed(f"{path} did not end within {UPDATE_TIMEOUT_SECONDS} s.")


def render_governance(quarantine: Quarantine, update: UndoneUpdate) -> Panel:
    """Render the attempts of the quarantined agent and the steps of the update."""
    lines = [Text(f"{'':<8}{'what intern tries':<33}its status then", style="dim")]
    lines += [
        Text.assemble(
            f"{'allowed' if attempt.allowed else 'denied ':<8}",
            (f"read {attempt.path:<28}", "cyan"),
            (attempt.status, "bold red" if attempt.status == "quarantined" else "dim"),
        )
        for attempt in quarantine.tries
    ]
    lines.append(Text(f"Released with the key {quarantine.cleared_by!r}: {quarantine.status} again.\n", style="dim"))
    lines += [
        Text.assemble("Update of ", ("quick", "bold"), f", review tier {update.tier}: {'; '.join(update.reasons)}."),
        Text(f"Approved with a second key, then {update.status}: options {update.during}."),
        Text(f"Rolled back: options {update.after}, {'verified' if update.verified else 'not verified'}."),
    ]
    return Panel(
        Group(*lines),
        title="Governance: an agent is quarantined, an update approved and rolled back",
        title_align="left",
    )


TAMPER_SQL = "update events set message = 'Nothing happened.' where event_id = ?"
VICTIM_SQL = "select event_id from events where event_type = 'violation_recorded' order by event_id limit 1"


class ReportedFinding(msgspec.Struct, frozen=True):
    kind: str
    number: int | None
    event_id: str | None


class RunLogReport(msgspec.Struct, frozen=True):
    """The output and exit code of `stentor provenance verify --json`."""

    exit_code: int
    findings: list[ReportedFinding]


class TamperProof(msgspec.Struct, frozen=True):
    """The verification of `events` events before and after one of them was edited."""

    events: int
    before: RunLogReport
    after: RunLogReport


def tamper_with_run_log(folder: Path) -> JsonObject:
    """Verify the run log of the stopped service, edit a row, and verify again. Raises CommandFailed."""
    before = _verify_run_log(folder)
    with closing(sqlite3.connect(folder / "stentor.db")) as database:
        (event_id,) = database.execute(VICTIM_SQL).fetchone()
        database.execute(TAMPER_SQL, (event_id,))
        database.commit()
    after = _verify_run_log(folder)
    if not before["intact"] or after["intact"]:
        raise CommandFailed(f"The run log was verified as {before['intact']}, and after an edit as {after['intact']}.")
    return {"events": before["events"], "before": before, "after": after, "edited": event_id}


def _verify_run_log(folder: Path) -> JsonObject:
    command = [sys.executable, "-m", "stentor", "provenance", "verify", "--json", "--data-dir", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    try:
        report: JsonObject = json.loads(process.stdout)
    except ValueError:
        raise CommandFailed(f"The verification printed no result: {process.stderr.strip()}") from None
    return report | {"exit_code": process.returncode}


def render_tampering(proof: TamperProof) -> Panel:
    """Render both verifications and the edit between them."""
    first = proof.after.findings[0]
    lines = [
        Text("$ stentor provenance verify", style="cyan"),
        Text(f"{proof.events} events, intact (exit code {proof.before.exit_code})", style="green"),
        Text("$ sqlite3 stentor.db \"update events set message = 'Nothing happened.' where ...\"", style="cyan"),
        Text("$ stentor provenance verify", style="cyan"),
        Text(
            f"{first.kind}: number {first.number}, event {first.event_id} (exit code {proof.after.exit_code})",
            style="bold red",
        ),
    ]
    return Panel(Group(*lines), title="A tamper-evident run log", title_align="left")
