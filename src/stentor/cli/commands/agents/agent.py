"""`stentor agent ...`: register agents, list and edit them, suspend, archive and restore them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from stentor.cli import output
from stentor.cli.agents import AGENTS_PATH, AgentList, show_agent, show_agents
from stentor.cli.client.client import omit_none, on_record
from stentor.cli.command import ServiceTarget, split_commas, with_service
from stentor.cli.input_files import reading
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

app = typer.Typer(help="Register, list, edit, suspend and archive agents.", no_args_is_help=True)

AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="Its name, its id, or the beginning or end of the id.")]
Score = Annotated[float | None, typer.Option(min=0, max=1, help="Declared score from 0 to 1; default: 0.5.")]
NewScore = Annotated[float | None, typer.Option(min=0, max=1, help="New declared score, from 0 to 1.")]
Tier = Literal["auto", "monitored", "human"]
Status = Literal["active", "suspended", "quarantined"]


class AgentStatus(msgspec.Struct, frozen=True):
    agent_id: str
    status: str


class ArchivedAgent(AgentStatus, frozen=True):
    """An archived agent with the number of its tasks that have not ended."""

    open_tasks: int


class RegisteredAgent(AgentStatus, frozen=True):
    """A new agent; `notice` names another agent of the same name, or a model that no provider serves."""

    name: str
    notice: str | None = None


@app.command()
@with_service
def register(
    service: ServiceTarget,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")],
    capability: Annotated[
        list[str], typer.Option(callback=split_commas, help="A capability of the agent; repeatable, or with commas.")
    ] = [],  # noqa: B006
    alignment: Score = None,
    accuracy: Score = None,
    efficiency: Score = None,
    tier: Annotated[
        Tier | None,
        typer.Option(help="Trust tier; human: each of its tasks waits for a person's approval. Default: monitored."),
    ] = None,
    runtime: Annotated[
        Literal["worker", "builtin", "http", "llm", "command", "ray", "kubernetes"],
        typer.Option(
            help="worker: pulls tasks; builtin: runs in the service; http: is called; llm: a model with a prompt; "
            "command: a program in a sandbox; ray: a function on a Ray cluster; kubernetes: a Job."
        ),
    ] = "worker",
    builtin_name: Annotated[str | None, typer.Option(help="Name of the built-in agent, for --runtime builtin.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL of the agent, for --runtime http.")] = None,
    repeat: Annotated[
        Literal["send", "hold"] | None,
        typer.Option(
            help="What to do if it is not known whether the agent did a task, for --runtime http: send it again with "
            "the same key (default: send), or ask a person first (hold)."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model such as openai/gpt-5-mini, for --runtime llm.")] = None,
    prompt: Annotated[str | None, typer.Option(help="System prompt, for --runtime llm.")] = None,
    command: Annotated[
        str | None, typer.Option(help="Program and arguments, quoted as for a shell, for --runtime command.")
    ] = None,
    entrypoint: Annotated[
        str | None, typer.Option(help="Function on the cluster, module:function, for --runtime ray.")
    ] = None,
    num_cpus: Annotated[float | None, typer.Option(help="CPUs of each task, for --runtime ray; default: 1.")] = None,
    num_gpus: Annotated[float | None, typer.Option(help="GPUs of each task, for --runtime ray; default: 0.")] = None,
    cron_job: Annotated[
        str | None, typer.Option(help="CronJob whose template is used for each task, for --runtime kubernetes.")
    ] = None,
    allow_list: Annotated[
        Path | None, typer.Option(help="JSON file with the tools and hosts that it may use; default: none.")
    ] = None,
    key_name: Annotated[str | None, typer.Option(help="Name of the API key that may act for it.")] = None,
) -> None:
    """Register an agent; it is active immediately."""
    options = {"repeat": repeat, "model": model, "system_prompt": prompt}
    options |= {"entrypoint": entrypoint, "num_cpus": num_cpus, "num_gpus": num_gpus, "cron_job": cron_job}
    runtime_fields = {
        "kind": runtime,
        "name": builtin_name,
        "endpoint": endpoint,
        "options": omit_none(options) or None,
        "command": _split_command(command),
    }
    optional = {
        "alignment_score": alignment,
        "accuracy_score": accuracy,
        "efficiency_score": efficiency,
        "trust_tier": tier,
        "key_name": key_name,
        "sandbox_whitelist": None if allow_list is None else _read_json(allow_list),
    }
    body = {"name": name, "capabilities": list(capability), "runtime": omit_none(runtime_fields), **omit_none(optional)}
    service.call(lambda api: api.post(AGENTS_PATH, RegisteredAgent, body), _show_registered, access="create")


@app.command("list")
@with_service
def list_agents(
    service: ServiceTarget,
    capability: Annotated[str | None, typer.Option(help="Only agents with this capability.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only agents with this status.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="The archived agents instead of the others.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of agents.")] = 100,
) -> None:
    """List agents, oldest first."""
    service.call(
        lambda api: api.get(
            AGENTS_PATH, AgentList, capability=capability, status=status, archived=archived or None, limit=limit
        ),
        show_agents,
    )


@app.command()
@with_service
def show(service: ServiceTarget, agent_id: AgentId) -> None:
    """Show one agent."""
    service.call(on_record(AgentList, agent_id, lambda api, path: api.get(path, JsonObject)), show_agent)


@app.command()
@with_service
def edit(
    service: ServiceTarget,
    agent_id: AgentId,
    tier: Annotated[
        Tier | None,
        typer.Option(help="Trust tier; human: each new task waits for a person's approval; else it runs at once."),
    ] = None,
    key_name: Annotated[
        str | None, typer.Option(help="Name of the API key that may act for it; '' removes it.")
    ] = None,
    alignment: NewScore = None,
    accuracy: NewScore = None,
    efficiency: NewScore = None,
    reason: Annotated[str | None, typer.Option(help="Why; required for a trust tier with less approval.")] = None,
) -> None:
    """Change the trust tier, the key or the declared scores of an agent at once.

    Capabilities, runtime and allow-list change by a proposal: stentor governance propose --help.
    """
    body = omit_none(
        {
            "trust_tier": tier,
            "alignment_score": alignment,
            "accuracy_score": accuracy,
            "efficiency_score": efficiency,
            "reason": reason,
        }
    ) | ({} if key_name is None else {"key_name": key_name or None})
    # A reason without a change has no effect.
    if not body.keys() - {"reason"}:
        raise typer.BadParameter("give at least one of --tier, --key-name, --alignment, --accuracy, --efficiency.")
    changes = {name.replace("_", " "): value for name, value in sorted(body.items()) if name != "reason"}
    values = ", ".join(f"{name} is {'removed' if value is None else value}" for name, value in changes.items())
    service.call(
        on_record(AgentList, agent_id, lambda api, path: api.request("PATCH", path, JsonObject, body)),
        lambda _: output.print_line(f"Agent {agent_id}: {values}."),
        access="change",
    )


@app.command()
@with_service
def suspend(
    service: ServiceTarget,
    agent_id: AgentId,
    reason: Annotated[str, typer.Option(help="Reason, stored with the agent.")],
) -> None:
    """Suspend an active agent, so that it gets no new tasks."""
    service.call(
        on_record(AgentList, agent_id, lambda api, path: api.post(f"{path}/suspend", AgentStatus, {"reason": reason})),
        _show_status,
        access="change",
    )


@app.command()
@with_service
def activate(service: ServiceTarget, agent_id: AgentId) -> None:
    """Reactivate a suspended agent."""
    service.call(
        on_record(AgentList, agent_id, lambda api, path: api.post(f"{path}/activate", AgentStatus)),
        _show_status,
        access="change",
    )


@app.command()
@with_service
def archive(
    service: ServiceTarget,
    agent_id: AgentId,
    reason: Annotated[str, typer.Option(help="Reason, stored with the agent.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Archive it even while its tasks are running or waiting.")
    ] = False,
) -> None:
    """Take an agent out of routing and lists. Its history stays, and `restore` brings it back."""
    body = {"reason": reason, "force": force}
    service.call(
        on_record(AgentList, agent_id, lambda api, path: api.post(f"{path}/archive", ArchivedAgent, body)),
        _show_archived,
        access="change",
    )


@app.command()
@with_service
def restore(service: ServiceTarget, agent_id: AgentId) -> None:
    """Bring an archived agent back, with the status that it had."""
    service.call(
        on_record(AgentList, agent_id, lambda api, path: api.post(f"{path}/restore", AgentStatus)),
        lambda agent: output.print_line(f"Agent {agent.agent_id} is restored, and {agent.status}."),
        access="change",
    )


def _show_archived(agent: ArchivedAgent) -> None:
    output.print_line(f"Agent {agent.agent_id} is archived.")
    if agent.open_tasks:
        tasks = "1 task has" if agent.open_tasks == 1 else f"{agent.open_tasks} tasks have"
        notice = f"Notice: {tasks} not ended. To resume waiting tasks: stentor agent restore {agent.agent_id}"
        output.print_notice(notice, "yellow")


def _split_command(command: str | None) -> list[str] | None:
    """Return the words of a command line, None without one. Raises BadParameter."""
    try:
        return None if command is None else shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--command: {error}.") from None


def _read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file. Raises BadParameter."""
    try:
        with reading(str(path), typer.BadParameter):
            content = jsontext.decode(path.read_bytes())
    except InvalidRequest as error:
        raise typer.BadParameter(f"{path}: {error.message}") from None
    if not isinstance(content, dict):
        raise typer.BadParameter(f"{path} must have a JSON object, such as the `sandbox_whitelist` in docs/sandbox.md.")
    return content


def _show_registered(agent: RegisteredAgent) -> None:
    output.print_line(f"Registered agent {agent.name} with id {agent.agent_id}, status {agent.status}.")
    if agent.notice:
        undo = f"stentor agent archive {agent.agent_id}"
        output.print_notice(f"Notice: {agent.notice}", "yellow")
        output.print_notice(f"If this one is a mistake: {undo}", "yellow")


def _show_status(agent: AgentStatus) -> None:
    output.print_line(f"Agent {agent.agent_id} is {agent.status}.")
