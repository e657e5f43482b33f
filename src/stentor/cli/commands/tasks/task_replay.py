"""`stentor task replay`: what a run would be with the agent as it is now."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from stentor.cli import output
from stentor.cli.agents import AgentList
from stentor.cli.client.client import ServiceClient
from stentor.cli.client.responses import Response
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.output import console, strip_controls
from stentor.cli.tasks.view import TaskId, on_task, task_path
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.replay_view import SUMMARIES, find_repeated, label_of

app = typer.Typer()


class ReplayStepRow(msgspec.Struct, frozen=True):
    key: str
    name: str
    kind: str
    verdict: str
    reasons: list[str]


class TaskReplay(msgspec.Struct, frozen=True):
    agent_name: str
    verdict: str
    steps: list[ReplayStepRow]
    difference: str | None
    stopped_at: str | None
    result: Any
    error: JsonObject | None

    def is_same(self) -> bool:
        return self.verdict == "same"


@app.command()
@with_service
def replay(
    service: ServiceTarget,
    task_id: TaskId,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Another agent: its name or id.")] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Another model than the agent's.")] = None,
) -> None:
    """Replay a run of an llm agent over its journal, and show where it would differ now; nothing is called.

    The exit code is 1 if it differs, or if the run did not record enough to tell.
    """

    async def work(api: ServiceClient, found: str) -> Response[TaskReplay]:
        agent_id = None if agent is None else await api.find_id(AgentList, agent, must_exist=True)
        return await api.get(f"{task_path(found)}/replay", TaskReplay, agent_id=agent_id, model=model)

    service.call(on_task(task_id, work), show_replay, is_success=TaskReplay.is_same)


def show_replay(replay: TaskReplay) -> None:
    """Print the steps with what differs in each, and how the run would end."""
    rows = []
    repeated = find_repeated(step.reasons for step in replay.steps)
    for step, is_repeated in zip(replay.steps, repeated, strict=True):
        reasons = "as above" if is_repeated else "; ".join(step.reasons)
        label = step.name if step.key.endswith(step.name) else f"{step.key}: {step.name}"
        rows.append((strip_controls(label), step.kind, label_of(step.verdict), strip_controls(reasons)))
    console.print(output.render_table(("step", "kind", "replay", "what differs"), rows))
    if replay.stopped_at is not None:
        output.print_line(f"The replay stops at {strip_controls(replay.stopped_at)}, which is not recorded.")
    if replay.difference is not None:
        output.print_line(strip_controls(replay.difference))
    output.print_line(f"{SUMMARIES[replay.verdict]} Agent: {strip_controls(replay.agent_name)}.")
