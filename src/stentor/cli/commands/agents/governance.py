"""`stentor governance ...`: propose, review, approve and reject updates of agents, and roll back to a checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client.client import ServiceClient, quote_segment
from stentor.cli.client.responses import Response, read_fields
from stentor.cli.command import Access, ServiceTarget, current_user, with_service
from stentor.cli.input_files import parse_json, read_file_or_stdin
from stentor.cli.output import EXIT_REFUSED, EXIT_USAGE, CommandFailed, console, report_errors, strip_controls
from stentor.cli.record_lookup import find_agent, on_record, resolve_id
from stentor.core.formats import json_diff
from stentor.core.jsontext import JsonObject

app = typer.Typer(help="Propose, review and roll back updates of agents.", no_args_is_help=True)

UpdateId = Annotated[str, typer.Argument(metavar="ID", help="The update's id, or the beginning or end of the id.")]
Status = Literal["submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
Tier = Literal["auto", "monitored", "human"]
TIERS = {1: "auto", 2: "monitored", 3: "human"}
BASE = "/governance/updates"
STYLES: dict[str, str] = {"-": "red", "+": "green"}
CHECKPOINTS, ROLLBACKS = "/governance/checkpoints", "/governance/rollbacks"
ROLLBACK_TIMEOUT_SECONDS = 300.0
"""How long the command waits for a rollback to end; it usually ends at once."""


class RejectedUpdate(msgspec.Struct, frozen=True):
    update_id: str


class ProposedUpdate(msgspec.Struct, frozen=True):
    """`notice` is what will not work after the update."""

    update_id: str
    status: str
    tier: int
    notice: str | None = None


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
    agent_name: str | None


class UpdateList(msgspec.Struct, frozen=True):
    updates: list[UpdateRow]

    @property
    def labels(self) -> dict[str, str]:
        return {update.update_id: f"{update.update_type}, {update.status}" for update in self.updates}


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
    ratio: float | None = None


@app.command("list")
@with_service
def list_updates(
    service: ServiceTarget,
    status: Annotated[Status | None, typer.Option(help="Only updates with this status.")] = None,
    tier: Annotated[Tier | None, typer.Option(help="Only updates of this review tier.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only updates of this agent: its name or id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of updates.")] = 100,
) -> None:
    """List updates, newest first."""

    async def work(api: ServiceClient) -> Response[UpdateList]:
        agent_id = None if agent is None else await find_agent(api, agent)
        return await api.get(BASE, UpdateList, status=status, tier=tier, agent_id=agent_id, limit=limit)

    service.call(work, _show_list)


@app.command()
@with_service
def show(service: ServiceTarget, update_id: UpdateId) -> None:
    """Show one update, with the reasons for its review tier and the diff of its patch."""
    _show_update(service, update_id)


@app.command()
@with_service
def propose(
    service: ServiceTarget,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON file with the body of POST /governance/updates; - for stdin.")
    ],
    agent: Annotated[
        str | None, typer.Option(help="The agent, by name or id, in place of the file's `agent_id`.")
    ] = None,
) -> None:
    """Propose an update of the agent of --agent, or of the file's `agent_id`, which may also be its name."""
    with report_errors(as_json=service.as_json):
        body = parse_json(read_file_or_stdin(file), file)

    def show_proposed(update: ProposedUpdate) -> None:
        output.print_line(f"Update {update.update_id} is {update.status}; its review tier is {TIERS[update.tier]}.")
        if update.notice:
            output.print_notice(f"Notice: {update.notice}", "yellow")

    async def work(api: ServiceClient) -> Response[ProposedUpdate]:
        ref = agent or (body.get("agent_id") if isinstance(body, dict) else None)
        named = (
            {"agent_id": await find_agent(api, ref)} if isinstance(body, dict) and isinstance(ref, str) and ref else {}
        )
        return await api.post(BASE, ProposedUpdate, body | named if named else body)

    service.call(work, show_proposed, access="change")


@app.command()
@with_service
def approve(
    service: ServiceTarget,
    update_id: UpdateId,
    rationale: Annotated[str, typer.Option(help="Reason, stored with the update.")],
    override_risk: Annotated[bool, typer.Option("--override-risk", help="Accept the risks of the update.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Show an update, ask for confirmation, and approve it. An agent patch is deployed immediately."""
    # With --json there may be nobody at the terminal to ask.
    if not yes and not service.as_json:
        _show_update(service, update_id, _require_approvable)
        typer.confirm("Approve this update?", abort=True)
    body = {"approved_by": current_user(), "rationale": rationale, "override_risk": override_risk}

    def show_approved(update: ApprovedUpdate) -> None:
        next_step = "it is being deployed" if update.deployment_scheduled else "deploy it and report the deployment"
        output.print_line(f"Update {update.update_id} is approved; {next_step}.")

    service.call(
        on_record(BASE, UpdateList, update_id, lambda api, path: api.post(f"{path}/approve", ApprovedUpdate, body)),
        show_approved,
        access="change",
    )


@app.command()
@with_service
def reject(
    service: ServiceTarget,
    update_id: UpdateId,
    reason: Annotated[str, typer.Option(help="Reason, shown to the proposer.")],
    feedback: Annotated[str | None, typer.Option(help="What to change to make it acceptable.")] = None,
) -> None:
    """Reject an update."""
    body = {"rejected_by": current_user(), "reason": reason, "feedback": feedback or ""}
    service.call(
        on_record(BASE, UpdateList, update_id, lambda api, path: api.post(f"{path}/reject", RejectedUpdate, body)),
        lambda update: output.print_line(f"Update {update.update_id} is rejected."),
        access="change",
    )


@app.command()
@with_service
def checkpoints(
    service: ServiceTarget,
    agent: Annotated[str | None, typer.Option(help="Only checkpoints of this agent: its name or id.")] = None,
    take: Annotated[bool, typer.Option("--take", help="Create a checkpoint of --agent first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of checkpoints.")] = 100,
) -> None:
    """List checkpoints, newest first; with --take create one first."""
    if take and agent is None:
        with report_errors(as_json=service.as_json):
            raise CommandFailed("--take needs --agent.", EXIT_USAGE)

    async def work(api: ServiceClient) -> Response[CheckpointList]:
        agent_id = None if agent is None else await find_agent(api, agent)
        if take:
            await api.post(CHECKPOINTS, JsonObject, {"agent_id": agent_id})
        return await api.get(CHECKPOINTS, CheckpointList, agent_id=agent_id, limit=limit)

    access: Access = "change" if take else "read"
    service.call(work, _show_checkpoints, access=access)


@app.command()
@with_service
def rollback(
    service: ServiceTarget,
    checkpoint_id: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's id, or the beginning or end of the id.")
    ],
    reason: Annotated[str, typer.Option(help="Reason, stored with the rollback.")],
    details: Annotated[str | None, typer.Option(help="Further details.")] = None,
) -> None:
    """Roll an agent back to a checkpoint, and wait until the rollback is verified."""
    body = {"initiated_by": current_user(), "reason": reason, "details": details or ""}

    async def work(api: ServiceClient) -> Response[RollbackState]:
        found_id = await resolve_id(api, CHECKPOINTS, CheckpointList, checkpoint_id)
        started = await api.post(ROLLBACKS, StartedRollback, body | {"checkpoint_id": found_id})
        return await wait_for_rollback(api, started.value.rollback_id)

    service.call(work, _show_rollback, access="change", is_success=lambda rollback: rollback.status != "failed")


def _show_update(service: ServiceTarget, update_id: str, show: Callable[[JsonObject], None] | None = None) -> None:
    work = on_record(BASE, UpdateList, update_id, lambda api, path: api.get(path, JsonObject))
    service.call(work, show or _show)


def _require_approvable(record: JsonObject) -> None:
    """Show an update. Raises CommandFailed if the caller could not approve it, so that nobody is asked in vain."""
    problem = record.pop("approval_problem", None)
    _show(record)
    if problem:
        raise CommandFailed(problem, EXIT_REFUSED)


def _show_list(page: UpdateList) -> None:
    rows = [
        (
            output.shorten_id(u.update_id),
            output.shorten_name(u.agent_name or output.shorten_id(u.agent_id)),
            u.update_type,
            TIERS[u.tier],
            u.status,
            output.format_age(u.submitted_at),
        )
        for u in page.updates
    ]
    console.print(output.render_table(("id", "agent", "type", "review tier", "status", "proposed"), rows))


def _show(record: JsonObject) -> None:
    update = read_fields(record, UpdateReview)
    hidden = ("diff", "changes", "reasons", "risks")
    shown = {name: value for name, value in record.items() if name not in hidden and not output.is_empty(value)}
    if update.ratio is not None:
        shown["ratio"] = f"{update.ratio:.1%} of the lines"
    console.print(output.render_record(shown | {"tier": TIERS[update.tier]}))
    for title, lines in (
        ("Reasons for the review tier", update.reasons),
        ("Risks, which an approval must accept with --override-risk", update.risks),
    ):
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
        console.print(f"\n{strip_controls(json_diff.escape_invisible(change.path))}", style="bold", markup=False)
        lines = json_diff.diff_lines(change.before, change.after)
        if not lines:
            console.print(json_diff.ONLY_NULL[1])
        for sign, line in lines:
            if sign in STYLES:
                console.print(f"{sign} {strip_controls(line)}", style=STYLES[sign], markup=False, soft_wrap=True)


class CheckpointRow(msgspec.Struct, frozen=True):
    checkpoint_id: str
    agent_id: str
    cause: str
    taken_by: str
    taken_at: str
    intact: bool


class CheckpointList(msgspec.Struct, frozen=True):
    checkpoints: list[CheckpointRow]

    @property
    def labels(self) -> dict[str, str]:
        return {row.checkpoint_id: f"{row.cause}, {output.format_age(row.taken_at)}" for row in self.checkpoints}


class StartedRollback(msgspec.Struct, frozen=True):
    rollback_id: str


class RollbackState(msgspec.Struct, frozen=True):
    """A rollback; `completed_at` is set once it has succeeded or failed."""

    rollback_id: str
    status: str
    completed_at: str | None
    verified: bool
    notes: str | None


async def wait_for_rollback(
    api: ServiceClient, rollback_id: str, timeout_seconds: float = ROLLBACK_TIMEOUT_SECONDS
) -> Response[RollbackState]:
    """Return the rollback once it has succeeded or failed. Raises CommandFailed if it is still running after a time."""
    deadline, pause = time.monotonic() + timeout_seconds, 0.1
    while True:
        response = await api.get(f"{ROLLBACKS}/{quote_segment(rollback_id)}", RollbackState)
        if response.value.completed_at is not None:
            return response
        if time.monotonic() + pause > deadline:
            raise CommandFailed(
                f"Rollback {rollback_id} is still {response.value.status} after {timeout_seconds:g} s. It continues in "
                f"the service. Check it with: stentor call rollbacks.get rollback_id={rollback_id}"
            )
        await asyncio.sleep(pause)
        # A slow rollback must not use up the key's rate limit.
        pause = min(1.0, pause * 1.5)


def _show_checkpoints(page: CheckpointList) -> None:
    rows = [
        (
            output.shorten_id(c.checkpoint_id),
            output.shorten_id(c.agent_id),
            c.cause,
            c.taken_by,
            output.format_age(c.taken_at),
            "yes" if c.intact else "no",
        )
        for c in page.checkpoints
    ]
    console.print(output.render_table(("id", "agent", "cause", "by", "created", "intact"), rows))


def _show_rollback(rollback: RollbackState) -> None:
    verified = " and verified" if rollback.verified else ""
    output.print_line(
        f"Rollback {rollback.rollback_id} is {rollback.status}{verified}. {rollback.notes or ''}".rstrip()
    )
