"""`stentor task replay`: what a run would be with the agent as it is now."""

from __future__ import annotations

from typing import Annotated

import typer

from stentor.cli.client import ServiceClient
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.commands.agent import AgentList
from stentor.cli.responses import Response
from stentor.cli.tasks import replay as view
from stentor.cli.tasks.reference import TaskId, on_task, task_path
from stentor.cli.tasks.replay import Replay

app = typer.Typer()


@app.command()
def replay(
    task_id: TaskId,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Another agent: its name or id.")] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Another model than the agent's.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Replay a run of an llm agent over its journal, and show where it would differ now; nothing is called.

    The exit code is 1 if it differs, or if the run did not record enough to tell.
    """

    async def work(api: ServiceClient, found: str) -> Response[Replay]:
        agent_id = None if agent is None else await api.find_id(AgentList, agent)
        return await api.get(f"{task_path(found)}/replay", Replay, agent_id=agent_id, model=model)

    run_command(
        ServiceTarget(data_dir, url, key),
        on_task(task_id, work),
        view.show_replay,
        as_json=as_json,
        is_success=Replay.is_same,
    )
