"""The replay of a task: where its run would differ with the agent as it is now, or with another agent or model."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry.queries import AgentListFilter, AgentListRow
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters.replay_view import SUMMARIES, build_rows, color_of
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_STEPS, MAX_AGENTS = 200, 1_000
MAX_TEXT_CHARACTERS = 20_000


async def show_replay(page: PageRequest) -> Response:
    """Replay the task. What cannot be replayed here is said in the page, with what to do instead."""
    task_id = page.path_param("task_id")
    agent, model = page.query_param("agent"), page.query_param("model")
    task, agents = await asyncio.gather(page.call("tasks.get", task_id=task_id), _list_agents(page))
    report, problem = None, ""
    try:
        report = await page.call("tasks.replay", task_id=task_id, agent_id=agent, model=model)
    except GatewayError as error:
        if error.status not in (400, 404, 409):
            raise
        problem = error.message
    rows = list(build_rows(report["steps"])) if report else []
    return page.render(
        "replay.html",
        task=task,
        address=f"/tasks/{quote_segment(task_id)}",
        report=report,
        problem=problem,
        rows=rows[:MAX_STEPS],
        omitted=max(0, len(rows) - MAX_STEPS),
        summary=SUMMARIES.get(report["verdict"], "") if report else "",
        color=color_of(report["verdict"]) if report else "",
        agents=agents,
        chosen={"agent": agent, "model": model},
        max_characters=MAX_TEXT_CHARACTERS,
    )


async def _list_agents(page: PageRequest) -> list[AgentListRow]:
    """Return the agents to choose from: those of the runtime `llm`, none for who may not list agents."""
    if not page.session.may("admin"):
        return []
    agents, _ = await page.read(registry_queries.list_agents, AgentListFilter(), page.site.now(), MAX_AGENTS)
    return sorted((agent for agent in agents if agent.kind == "llm"), key=lambda agent: agent.name)


ROUTES = [("GET", "/tasks/{task_id}/replay", show_replay)]
