"""The page that shows two to four agents side by side."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.learning import evidence
from stentor.domains.learning import store as learning_store
from stentor.domains.tasks.reading import chart_queries
from stentor.domains.tasks.reading.chart_queries import AgentResults
from stentor.surfaces.dashboard.pages.agents.agents import FIGURE_DAYS, read_figures
from stentor.surfaces.dashboard.presenters import agent_view
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_COMPARED, MAX_TYPES = 4, 12


class ComparedAgent(msgspec.Struct, frozen=True):
    """An agent with what is compared; `durations` are the percentiles 50 and 95 in milliseconds, `cost` in dollars."""

    record: JsonObject
    composite: float
    results: AgentResults | None
    durations: tuple[int, int] | None
    cost: float | None
    results_by_type: dict[str, float]
    """The mean of the recent results of each task type: grades from 0 to 1, or 1 for an ungraded success."""
    runtime: list[tuple[str, str]]
    prompt: str | None


async def compare_agents(page: PageRequest) -> Response:
    """Compare the agents of the parameters `agent`. Raises InvalidRequest unless they are two to four."""
    ids = list(dict.fromkeys(page.query_params("agent")))
    if not 2 <= len(ids) <= MAX_COMPARED:
        raise InvalidRequest("Select two to four agents to compare.", {"fields": {"agent": "two to four"}})
    results, costs = await read_figures(page)
    agents = await asyncio.gather(*(_read_agent(page, agent_id, results, costs) for agent_id in ids))
    types = sorted({task_type for agent in agents for task_type in agent.results_by_type})
    return page.render("agent-comparison.html", agents=agents, days=FIGURE_DAYS, types=types[:MAX_TYPES])


async def _read_agent(
    page: PageRequest, agent_id: str, results: dict[str, AgentResults], costs: dict[str, float]
) -> ComparedAgent:
    record = await page.call("agents.get", agent_id=agent_id)
    weights = await page.site.db.read(lambda tx: learning_store.list_agent_weights(tx, record["agent_id"]))
    return ComparedAgent(
        record,
        agent_view.composite_score(record),
        results.get(agent_id),
        await page.read(chart_queries.read_agent_durations, agent_id),
        costs.get(agent_id),
        {weight.task_type: evidence.mean_reward(weight.rewards) for weight in weights if weight.rewards},
        agent_view.present_runtime(record["runtime"]),
        agent_view.present_prompt(record["runtime"]),
    )


ROUTES = [("GET", "/agents/compare", compare_agents)]
