"""`stentor governance ...`: propose, review, approve and reject updates of agents; checkpoints and rollbacks."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stentor.cli import output
from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, report_errors, strip_controls
from stentor.core import json_diff

app = typer.Typer(help="Propose, review and roll back updates of agents.", no_args_is_help=True)

UpdateId = Annotated[str, typer.Argument(metavar="ID", help="The update's id.")]
Status = Literal["submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
Tier = Literal["auto", "monitored", "human"]
TIERS = {1: "auto", 2: "monitored", 3: "human"}
BASE = "/governance"
STYLES: dict[str, str] = {"-": "red", "+": "green"}


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

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get(f"{BASE}/updates", status=status, tier=tier, agent_id=agent, limit=limit))

    run_command(ServiceTarget(data_dir, url, key), work, _show_list, as_json=as_json)


@app.command()
def show(
    update_id: UpdateId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Show one update, with the reasons for its tier and the diff of its patch."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get(_path("updates", update_id)))

    run_command(ServiceTarget(data_dir, url, key), work, _show, as_json=as_json)


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

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{BASE}/updates", body))

    def show_proposed(answer: dict[str, Any]) -> None:
        tier = TIERS[answer["tier"]]
        output.print_line(f"Update {answer['update_id']} is {answer['status']}; its tier is {tier}.")

    run_command(ServiceTarget(data_dir, url, key), work, show_proposed, as_json=as_json, access="change")


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

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path('updates', update_id)}/approve", body))

    def show_approved(answer: dict[str, Any]) -> None:
        next_step = "it is being deployed" if answer["deployment_scheduled"] else "deploy it and report the deployment"
        output.print_line(f"Update {answer['update_id']} is approved; {next_step}.")

    run_command(target, work, show_approved, as_json=as_json, access="change")


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

    async def work(api: ServiceClient) -> dict[str, Any]:
        body = {"rejected_by": _current_user(), "reason": reason, "feedback": feedback or ""}
        return dict(await api.post(f"{_path('updates', update_id)}/reject", body))

    def show_rejected(answer: dict[str, Any]) -> None:
        output.print_line(f"Update {answer['update_id']} is rejected.")

    run_command(ServiceTarget(data_dir, url, key), work, show_rejected, as_json=as_json, access="change")


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

    async def work(api: ServiceClient) -> dict[str, Any]:
        if take:
            await api.post(f"{BASE}/checkpoints", {"agent_id": agent})
        return dict(await api.get(f"{BASE}/checkpoints", agent_id=agent, limit=limit))

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

    async def work(api: ServiceClient) -> dict[str, Any]:
        origin = {"checkpoint_id": checkpoint_id, "initiated_by": _current_user()}
        body = {**origin, "reason": reason, "details": details or ""}
        started = await api.post(f"{BASE}/rollbacks", body)
        return await _wait_for_rollback(api, started["rollback_id"])

    result = run_command(ServiceTarget(data_dir, url, key), work, _show_rollback, as_json=as_json, access="change")
    if result["status"] == "failed":
        raise typer.Exit(1)


def _current_user() -> str:
    """Return the user of this machine, marked as such: no name of an API key has this form."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return f"{name[:200]} (command line)"


async def _wait_for_rollback(api: ServiceClient, rollback_id: str) -> dict[str, Any]:
    for _ in range(100):
        record = dict(await api.get(_path("rollbacks", rollback_id)))
        if record["completed_at"] is not None:
            break
        await asyncio.sleep(0.1)
    return record


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


def _show_list(page: dict[str, Any]) -> None:
    rows = [
        (
            u["update_id"],
            u["agent_id"],
            u["update_type"],
            TIERS[u["tier"]],
            u["status"],
            output.format_age(u["submitted_at"]),
        )
        for u in page["updates"]
    ]
    console.print(output.render_table(("id", "agent", "type", "tier", "status", "proposed"), rows))


def _show(update: dict[str, Any]) -> None:
    hidden = ("diff", "changes", "reasons", "risks")
    record = {name: value for name, value in update.items() if name not in hidden}
    console.print(output.render_record(record | {"tier": TIERS[update["tier"]]}))
    for title, lines in (("Reasons for the tier", update["reasons"]), ("Risks to override", update["risks"])):
        if lines:
            console.print(f"\n{title}", style="bold")
            for line in lines:
                console.print(f"  {strip_controls(line)}", markup=False)
    _show_changes(update["changes"])
    _show_diff(update["diff"])


def _show_changes(changes: dict[str, Any]) -> None:
    total = changes["lines_total"]
    total_text = f" of {total}" if total is not None else ""
    console.print(f"\n+{changes['lines_added']} -{changes['lines_deleted']} lines{total_text}", style="bold")
    for name in changes["files_modified"]:
        console.print(f"  {strip_controls(name)}", markup=False)


def _show_diff(diff: list[dict[str, Any]]) -> None:
    """Print what the patch changes in the agent, line by line."""
    for change in diff:
        console.print(f"\n{strip_controls(change['path'])}", style="bold", markup=False)
        for sign, line in json_diff.diff_lines(change["before"], change["after"]):
            if sign in STYLES:
                console.print(f"{sign} {strip_controls(line)}", style=STYLES[sign], markup=False, soft_wrap=True)


def _show_checkpoints(page: dict[str, Any]) -> None:
    rows = [
        (
            c["checkpoint_id"],
            c["agent_id"],
            c["cause"],
            c["taken_by"],
            output.format_age(c["taken_at"]),
            "yes" if c["intact"] else "no",
        )
        for c in page["checkpoints"]
    ]
    console.print(output.render_table(("id", "agent", "cause", "by", "created", "intact"), rows))


def _show_rollback(record: dict[str, Any]) -> None:
    verified = " and verified" if record["verified"] else ""
    output.print_line(
        f"Rollback {record['rollback_id']} is {record['status']}{verified}. {record['notes'] or ''}".rstrip()
    )
