"""`stentor governance ...`: propose, review, approve and reject updates of agents.

Its commands `checkpoints` and `rollback` are in `rollback`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client import ServiceClient
from stentor.cli.command import ServiceTarget, current_user, with_service
from stentor.cli.commands.rollback import checkpoints, rollback
from stentor.cli.governance_reference import find_agent, on_part_of_id
from stentor.cli.input_files import parse_json, read_file_or_stdin
from stentor.cli.output import console, report_errors, strip_controls
from stentor.cli.responses import Response, read_fields
from stentor.core import json_diff
from stentor.core.jsontext import JsonObject

app = typer.Typer(help="Propose, review and roll back updates of agents.", no_args_is_help=True)

UpdateId = Annotated[str, typer.Argument(metavar="ID", help="The update's id, or the beginning or end of the id.")]
Status = Literal["submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
Tier = Literal["auto", "monitored", "human"]
TIERS = {1: "auto", 2: "monitored", 3: "human"}
BASE = "/governance/updates"
STYLES: dict[str, str] = {"-": "red", "+": "green"}


class RejectedUpdate(msgspec.Struct, frozen=True):
    update_id: str


class ProposedUpdate(msgspec.Struct, frozen=True):
    """`notice` is what will not work after the update; an older service does not say it."""

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
    """An older service does not send `agent_name`."""

    agent_id: str
    update_type: str
    submitted_at: str
    agent_name: str | None = None


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
        _show_update(service, update_id)
        typer.confirm("Approve this update?", abort=True)
    body = {"approved_by": current_user(), "rationale": rationale, "override_risk": override_risk}

    def show_approved(update: ApprovedUpdate) -> None:
        next_step = "it is being deployed" if update.deployment_scheduled else "deploy it and report the deployment"
        output.print_line(f"Update {update.update_id} is approved; {next_step}.")

    service.call(
        on_part_of_id(BASE, UpdateList, update_id, lambda api, path: api.post(f"{path}/approve", ApprovedUpdate, body)),
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
        on_part_of_id(BASE, UpdateList, update_id, lambda api, path: api.post(f"{path}/reject", RejectedUpdate, body)),
        lambda update: output.print_line(f"Update {update.update_id} is rejected."),
        access="change",
    )


# Registered after the commands of this file: the help lists them in this order.
app.command()(checkpoints)
app.command()(rollback)


def _show_update(service: ServiceTarget, update_id: str) -> None:
    service.call(on_part_of_id(BASE, UpdateList, update_id, lambda api, path: api.get(path, JsonObject)), _show)


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
        for sign, line in json_diff.diff_lines(change.before, change.after):
            if sign in STYLES:
                console.print(f"{sign} {strip_controls(line)}", style=STYLES[sign], markup=False, soft_wrap=True)
