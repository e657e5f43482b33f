"""`stentor agent ...`: register agents, list them, suspend and reactivate them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from stentor.cli import output
from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import console

app = typer.Typer(help="Register, list, suspend and reactivate agents.", no_args_is_help=True)

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent's id.")]
Score = Annotated[float | None, typer.Option(min=0, max=1, help="From 0 to 1; default: 0.5.")]
Tier = Literal["auto", "monitored", "human"]
Status = Literal["active", "suspended", "quarantined"]
BASE = "/registry/agents"


@app.command()
def register(
    name: Annotated[str, typer.Argument(help="Name of the agent.")],
    capability: Annotated[list[str], typer.Option(help="A capability of the agent; repeatable.")] = [],  # noqa: B006
    alignment: Score = None,
    accuracy: Score = None,
    efficiency: Score = None,
    tier: Annotated[Tier | None, typer.Option(help="How much it is trusted; default: monitored.")] = None,
    runtime: Annotated[
        Literal["worker", "builtin", "http"],
        typer.Option(help="worker: pulls tasks; builtin: runs in the service; http: is called."),
    ] = "worker",
    builtin_name: Annotated[str | None, typer.Option(help="Name of the built-in agent, for --runtime builtin.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL of the agent, for --runtime http.")] = None,
    key_name: Annotated[str | None, typer.Option(help="Name of the API key that may act for it.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Register an agent; it is active immediately."""
    runtime_fields = {"kind": runtime, "name": builtin_name, "endpoint": endpoint}
    optional = {
        "alignment_score": alignment,
        "accuracy_score": accuracy,
        "efficiency_score": efficiency,
        "trust_tier": tier,
        "key_name": key_name,
    }
    body = {
        "name": name,
        "capabilities": list(capability),
        "runtime": _without_none(runtime_fields),
        **_without_none(optional),
    }

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(BASE, body))

    def show_registered(response: dict[str, Any]) -> None:
        output.print_line(
            f"Registered agent {response['name']} with id {response['agent_id']}, status {response['status']}."
        )

    run_command(ServiceTarget(data_dir, url, key), work, show_registered, as_json=as_json, access="create")


@app.command("list")
def list_agents(
    capability: Annotated[str | None, typer.Option(help="Only agents with this capability.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only agents with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of agents.")] = 100,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List agents, oldest first."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get(BASE, capability=capability, status=status, limit=limit))

    run_command(ServiceTarget(data_dir, url, key), work, _show_list, as_json=as_json)


@app.command()
def show(
    agent_id: AgentId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Show one agent."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get(_path(agent_id)))

    run_command(ServiceTarget(data_dir, url, key), work, _show, as_json=as_json)


@app.command()
def suspend(
    agent_id: AgentId,
    reason: Annotated[str, typer.Option(help="Reason, stored with the agent.")],
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Suspend an active agent, so that it gets no new tasks."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path(agent_id)}/suspend", {"reason": reason}))

    run_command(ServiceTarget(data_dir, url, key), work, _show_status, as_json=as_json, access="change")


@app.command()
def activate(
    agent_id: AgentId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Reactivate a suspended agent."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(f"{_path(agent_id)}/activate"))

    run_command(ServiceTarget(data_dir, url, key), work, _show_status, as_json=as_json, access="change")


def _path(agent_id: str) -> str:
    return f"{BASE}/{quote_segment(agent_id)}"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _trust(score: float | None) -> str:
    return "unscored" if score is None else f"{score:.3f}"


def _presence(agent: dict[str, Any]) -> str:
    """Return `online` or `offline`, and when a worker was last seen; `-` if an older service does not report it."""
    if "online" not in agent:
        return "-"
    word = "online" if agent["online"] else "offline"
    return f"{word}, seen {output.format_age(agent['last_seen'])}" if agent["last_seen"] else word


def _show_list(page: dict[str, Any]) -> None:
    rows = [
        (a["agent_id"], a["name"], ", ".join(a["capabilities"]), _trust(a["trust_score"]), a["status"], _presence(a))
        for a in page["agents"]
    ]
    console.print(output.render_table(("id", "name", "capabilities", "trust", "status", "presence"), rows))
    if page["total"] > len(rows):
        console.print(f"Showing {len(rows)} of {page['total']}; use --limit for more.", style="dim")


def _show(agent: dict[str, Any]) -> None:
    formatted = {"trust_score": _trust(agent["trust_score"]), "online": _presence(agent)}
    console.print(output.render_record(agent | formatted))


def _show_status(response: dict[str, Any]) -> None:
    output.print_line(f"Agent {response['agent_id']} is {response['status']}.")
