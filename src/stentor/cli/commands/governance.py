"""`stentor governance ...`: propose, review, approve and reject updates of agents; checkpoints and rollbacks."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, report_errors, strip_controls
from stentor.cli.responses import Response, read_fields
from stentor.core import json_diff
from stentor.core.jsontext import JsonObject

app = typer.Typer(help="Propose, review and roll back updates of agents.", no_args_is_help=True)

UpdateId = Annotated[str, typer.Argument(metavar="ID", help="The update's id.")]
Status = Literal["submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
Tier = Literal["auto", "monitored", "human"]
TIERS = {1: "auto", 2: "monitored", 3: "human"}
BASE = "/governance"
STYLES: dict[str, str] = {"-": "red", "+": "green"}
ROLLBACK_TIMEOUT_SECONDS = 300.0
"""How long a command waits for a rollback, which usually takes less than a second."""


class RejectedUpdate(msgspec.Struct, frozen=True):
    update_id: str


class UpdateStatus(msgspec.Struct, frozen=True):
    update_id: str
    status: str
    tier: int


class ApprovedUpdate(msgspec.Struct, frozen=True):
    update_id: str
    deployment_scheduled: bool


class UpdateRow(UpdateStatus, frozen=True):
    agent_id: str
    update_type: str
    submitted_at: str


class UpdatePage(msgspec.Struct, frozen=True):
    updates: list[UpdateRow]


class ChangeSummary(msgspec.Struct, frozen=True):
    """The size of a change; `lines_total` is the length of the changed files, None if unknown."""

    files_modified: list[str]
    lines_added: int
    lines_deleted: int
    lines_total: int | None


class AgentChange(msgspec.Struct, frozen=True):
    """What the patch changes at one path of the agent's configuration."""

    path: str
    before: Any
    after: Any


class UpdateReview(msgspec.Struct, frozen=True):
    """The fields of an update that are printed below its table."""

    tier: int
    reasons: list[str]
    risks: list[str]
    changes: ChangeSummary
    diff: list[AgentChange]


class CheckpointRow(msgspec.Struct, frozen=True):
    checkpoint_id: str
    agent_id: str
    cause: str
    taken_by: str
    taken_at: str
    intact: bool


class CheckpointPage(msgspec.Struct, frozen=True):
    checkpoints: list[CheckpointRow]


class StartedRollback(msgspec.Struct, frozen=True):
    rollback_id: str


class Rollback(msgspec.Struct, frozen=True):
    """A rollback; `completed_at` is set once it has succeeded or failed."""

    rollback_id: str
    status: str
    completed_at: str | None
    verified: bool
    notes: str | None


@app.command("list")
def list_updates(
    status: Annotated[Status | None, typer.Option(help="Only updates with this status.")] = None,
    tier: Annotated[Tier | None, typer.Option(help="Only updates of this tier.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only updates of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of updates.")] = 100,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List updates, newest first."""
    params = {"status": status, "tier": tier, "agent_id": agent, "limit": limit}
    run_command(
        ServiceTarget(data_dir, url, key),
        lambda api: api.get(f"{BASE}/updates", UpdatePage, **params),
        _show_list,
        as_json=as_json,
    )


@app.command()
def show(
    update_id: UpdateId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Show one update, with the reasons for its tier and the diff of its patch."""
    run_command(
        ServiceTarget(data_dir, url, key),
        lambda api: api.get(_path("updates", update_id), JsonObject),
        _show,
        as_json=as_json,
    )


@app.command()
def propose(
    file: Annotated[Path, typer.Argument(help="JSON file with the body of POST /governance/updates; - for stdin.")],
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Propose an update."""
    body = _read_json(file, as_json=as_json)
    run_command(
        ServiceTarget(data_dir, url, key),
        lambda api: api.post(f"{BASE}/updates", UpdateStatus, body),
        lambda update: output.print_line(
            f"Update {update.update_id} is {update.status}; its tier is {TIERS[update.tier]}."
        ),
        as_json=as_json,
        access="change",
    )


@app.command()
def approve(
    update_id: UpdateId,
    rationale: Annotated[str, typer.Option(help="Reason, stored with the update.")],
    override_risk: Annotated[bool, typer.Option("--override-risk", help="Accept the risks of the update.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show an update, ask for confirmation, and approve it. An agent patch is deployed immediately."""
    target = ServiceTarget(data_dir, url, key)
    # With --json there may be nobody at the terminal to ask.
    if not yes and not as_json:
        show(update_id, data_dir, url, key)
        typer.confirm("Approve this update?", abort=True)
    body = {"approved_by": _current_user(), "rationale": rationale, "override_risk": override_risk}

    def show_approved(update: ApprovedUpdate) -> None:
        next_step = "it is being deployed" if update.deployment_scheduled else "deploy it and report the deployment"
        output.print_line(f"Update {update.update_id} is approved; {next_step}.")

    run_command(
        target,
        lambda api: api.post(f"{_path('updates', update_id)}/approve", ApprovedUpdate, body),
        show_approved,
        as_json=as_json,
        access="change",
    )


@app.command()
def reject(
    update_id: UpdateId,
    reason: Annotated[str, typer.Option(help="Reason, shown to the proposer.")],
    feedback: Annotated[str | None, typer.Option(help="What to change to make it acceptable.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Reject an update."""
    body = {"rejected_by": _current_user(), "reason": reason, "feedback": feedback or ""}
    run_command(
        ServiceTarget(data_dir, url, key),
        lambda api: api.post(f"{_path('updates', update_id)}/reject", RejectedUpdate, body),
        lambda update: output.print_line(f"Update {update.update_id} is rejected."),
        as_json=as_json,
        access="change",
    )


@app.command()
def checkpoints(
    agent: Annotated[str | None, typer.Option(help="Only checkpoints of this agent.")] = None,
    take: Annotated[bool, typer.Option("--take", help="Create a checkpoint of --agent first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of checkpoints.")] = 100,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List checkpoints, newest first; with --take create one first."""
    if take and agent is None:
        with report_errors(as_json=as_json):
            raise CommandFailed("--take needs --agent.", EXIT_USAGE)

    async def work(api: ServiceClient) -> Response[CheckpointPage]:
        if take:
            await api.post(f"{BASE}/checkpoints", JsonObject, {"agent_id": agent})
        return await api.get(f"{BASE}/checkpoints", CheckpointPage, agent_id=agent, limit=limit)

    access: Literal["change", "read"] = "change" if take else "read"
    run_command(ServiceTarget(data_dir, url, key), work, _show_checkpoints, as_json=as_json, access=access)


@app.command()
def rollback(
    checkpoint_id: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's id.")],
    reason: Annotated[str, typer.Option(help="Reason, stored with the rollback.")],
    details: Annotated[str | None, typer.Option(help="Further details.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Roll an agent back to a checkpoint, and wait until the rollback is verified."""

    body = {"checkpoint_id": checkpoint_id, "initiated_by": _current_user(), "reason": reason, "details": details or ""}

    async def work(api: ServiceClient) -> Response[Rollback]:
        started = await api.post(f"{BASE}/rollbacks", StartedRollback, body)
        return await wait_for_rollback(api, started.value.rollback_id)

    run_command(
        ServiceTarget(data_dir, url, key),
        work,
        _show_rollback,
        as_json=as_json,
        access="change",
        is_success=lambda rollback: rollback.status != "failed",
    )


def _current_user() -> str:
    """Return the user of this machine, marked as such: no name of an API key has this form."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return f"{name[:200]} (command line)"


async def wait_for_rollback(
    api: ServiceClient, rollback_id: str, timeout_seconds: float = ROLLBACK_TIMEOUT_SECONDS
) -> Response[Rollback]:
    """Return the rollback once it has succeeded or failed. Raises CommandFailed if it is still running after a time."""
    deadline, pause = time.monotonic() + timeout_seconds, 0.1
    while True:
        response = await api.get(_path("rollbacks", rollback_id), Rollback)
        if response.value.completed_at is not None:
            return response
        if time.monotonic() + pause > deadline:
            raise CommandFailed(
                f"Rollback {rollback_id} is still {response.value.status} after {timeout_seconds:g} s. It continues in "
                f"the service. Check it with: stentor call rollbacks.get rollback_id={rollback_id}"
            )
        await asyncio.sleep(pause)
        # A rollback that takes longer must not use up the rate limit of the key.
        pause = min(1.0, pause * 1.5)


def _read_json(file: Path, *, as_json: bool) -> Any:
    with report_errors(as_json=as_json):
        try:
            return json.loads(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
        except OSError as error:
            raise CommandFailed(f"{file} cannot be read: {error.strerror}.", EXIT_USAGE) from None
        except ValueError as error:
            raise CommandFailed(f"{file} is not valid JSON: {error}.", EXIT_USAGE) from None


def _path(kind: str, record_id: str) -> str:
    return f"{BASE}/{kind}/{quote_segment(record_id)}"


def _show_list(page: UpdatePage) -> None:
    rows = [
        (u.update_id, u.agent_id, u.update_type, TIERS[u.tier], u.status, output.format_age(u.submitted_at))
        for u in page.updates
    ]
    console.print(output.render_table(("id", "agent", "type", "tier", "status", "proposed"), rows))


def _show(record: JsonObject) -> None:
    update = read_fields(record, UpdateReview)
    hidden = ("diff", "changes", "reasons", "risks")
    shown = {name: value for name, value in record.items() if name not in hidden}
    console.print(output.render_record(shown | {"tier": TIERS[update.tier]}))
    for title, lines in (("Reasons for the tier", update.reasons), ("Risks to override", update.risks)):
        if lines:
            console.print(f"\n{title}", style="bold")
            for line in lines:
                console.print(f"  {strip_controls(line)}", markup=False)
    _show_changes(update.changes)
    _show_diff(update.diff)


def _show_changes(changes: ChangeSummary) -> None:
    total_text = f" of {changes.lines_total}" if changes.lines_total is not None else ""
    console.print(f"\n+{changes.lines_added} -{changes.lines_deleted} lines{total_text}", style="bold")
    for name in changes.files_modified:
        console.print(f"  {strip_controls(name)}", markup=False)


def _show_diff(diff: list[AgentChange]) -> None:
    """Print what the patch changes in the agent, line by line."""
    for change in diff:
        console.print(f"\n{strip_controls(change.path)}", style="bold", markup=False)
        for sign, line in json_diff.diff_lines(change.before, change.after):
            if sign in STYLES:
                console.print(f"{sign} {strip_controls(line)}", style=STYLES[sign], markup=False, soft_wrap=True)


def _show_checkpoints(page: CheckpointPage) -> None:
    rows = [
        (c.checkpoint_id, c.agent_id, c.cause, c.taken_by, output.format_age(c.taken_at), "yes" if c.intact else "no")
        for c in page.checkpoints
    ]
    console.print(output.render_table(("id", "agent", "cause", "by", "created", "intact"), rows))


def _show_rollback(rollback: Rollback) -> None:
    verified = " and verified" if rollback.verified else ""
    output.print_line(
        f"Rollback {rollback.rollback_id} is {rollback.status}{verified}. {rollback.notes or ''}".rstrip()
    )
