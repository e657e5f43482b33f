"""The agent pages: list with filters, heat map of Hebbian weights, one agent with its trust, and actions on it.

Also the agents to choose from in forms and filters of other pages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import DAY
from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import confusable_skeleton
from stentor.domains.learning import store as learning_store
from stentor.domains.learning.model import SENTINEL_WINDOW, SentinelAlert, Weight
from stentor.domains.llm import queries as llm_queries
from stentor.domains.registry import authorization
from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry import store as registry_store
from stentor.domains.registry.authorization import AgentAction
from stentor.domains.registry.queries import AgentListFilter
from stentor.domains.tasks.reading import chart_queries
from stentor.domains.tasks.reading.chart_queries import AgentResults
from stentor.domains.trust import store as trust_store
from stentor.domains.trust.model import TrustChange
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters import agent_view
from stentor.surfaces.dashboard.presenters.filters import shorten_id
from stentor.surfaces.dashboard.presenters.resources import render_agent_card
from stentor.surfaces.dashboard.site.page import PageRequest, action
from stentor.surfaces.dashboard.store import read_scored_agent
from stentor.web.wire import decode_cursor, encode_cursor

AGENT = "/agents/{agent_id}"
PAGE_SIZE = 50
MAX_LISTED_AGENTS = 1_000
"""The largest page of the operation `agents.list`."""
LISTED_TASKS, LISTED_HISTORY, LISTED_UPDATES = 10, 100, 5
MAX_TRUST_CHANGES = 200
FIGURE_DAYS = 7
"""Days of the figures in the list."""
AGENT_STATUSES = ("active", "suspended", "quarantined")
ARCHIVED = "archived"
"""Value of the filter by status that lists the archived agents, whatever their status is."""
ACTIONS: tuple[AgentAction, ...] = ("activate", "archive", "restore", "clear_violations", "rollback", "scores")
"""Those that not every admin has; each may suspend."""
AgentRecords = tuple[list[TrustChange], list[Weight], list[SentinelAlert]]


async def list_agents(page: PageRequest) -> Response:
    """List agents, oldest first. The gateway call checks the permission and the values of the filters."""
    filters = {name: page.query_param(name) for name in ("status", "capability", "tier", "q", "alert")}
    # The gateway knows neither `q` nor `alert`: list as much as possible, and query the rows of the page below.
    is_subset = page.query_param("cursor") or filters["q"] or filters["alert"]
    listed = await page.call(
        "agents.list",
        limit=MAX_LISTED_AGENTS if is_subset else PAGE_SIZE,
        status="" if filters["status"] == ARCHIVED else filters["status"],
        archived="true" if filters["status"] == ARCHIVED else None,
        trust_tier=filters["tier"],
        capability=filters["capability"],
    )
    now = page.site.now()
    agent_filter = _agent_filter(filters, _read_cursor(page))
    # One more than displayed: its presence means that there is a next page.
    rows, total = await page.read(registry_queries.list_agents, agent_filter, now, PAGE_SIZE + 1)
    agents = rows[:PAGE_SIZE]
    results, costs = await read_figures(page)
    return page.render(
        "agents.html",
        block="rows" if page.query_param("cursor") else "results",
        agents=agents,
        presence=await _read_presence(page, listed["agents"], [agent.agent_id for agent in agents]),
        results=results,
        costs=costs,
        days=FIGURE_DAYS,
        total=total,
        more=_next_page_url("/agents", filters, (agents[-1].created_at, agents[-1].agent_id))
        if len(rows) > PAGE_SIZE
        else None,
        filters=filters,
        statuses=(*AGENT_STATUSES, ARCHIVED),
        tiers=agent_view.TIERS,
    )


async def read_figures(page: PageRequest) -> tuple[dict[str, AgentResults], dict[str, float]]:
    """Return results and cost in US dollars by agent id; for some seconds all readers of the tenant get the same."""
    # The tenant is part of the key: the cache is shared by all sessions.
    results, costs = await page.site.cache.get_or_create(("agents", page.tenant), lambda: _read_figures(page))
    return results, costs


async def _read_figures(page: PageRequest) -> tuple[dict[str, AgentResults], dict[str, float]]:
    now = page.site.now()
    return await asyncio.gather(
        page.read(chart_queries.read_agent_results, now, FIGURE_DAYS),
        page.read(llm_queries.read_agent_costs, now // DAY - FIGURE_DAYS + 1),
    )


async def _read_presence(page: PageRequest, listed: list[JsonObject], agent_ids: list[str]) -> dict[str, JsonObject]:
    """Return the gateway's records by agent id: only the gateway knows which agents are online.

    Agents that are not in `listed` are requested one by one; those that the gateway rejects are left out.
    """
    records = {record["agent_id"]: record for record in listed}
    missing = [agent_id for agent_id in agent_ids if agent_id not in records]
    results = await asyncio.gather(
        *(page.call("agents.get", agent_id=agent_id) for agent_id in missing), return_exceptions=True
    )
    for agent_id, result in zip(missing, results, strict=True):
        if not isinstance(result, BaseException):
            records[agent_id] = result
        # Rejected means deleted or hidden in the meantime. Anything else is an outage, which the page must say.
        elif not isinstance(result, GatewayError):
            raise result
    return records


def _agent_filter(filters: dict[str, str], after: tuple[int, str]) -> AgentListFilter:
    """Build the filter of the query. Raises InvalidRequest for an unknown alert or a NUL, which no query accepts."""
    for name in ("capability", "q"):
        if "\0" in filters[name]:
            raise InvalidRequest(f"{name}: must not contain the character NUL.", {"fields": {name: "has a NUL"}})
    alert = filters["alert"]
    if alert not in ("", "open"):
        raise InvalidRequest("alert: must be `open` or empty.", {"fields": {"alert": "is not `open`"}})
    archived = filters["status"] == ARCHIVED
    return AgentListFilter(
        "" if archived else filters["status"],
        archived,
        filters["tier"],
        filters["capability"],
        filters["q"],
        alert == "open",
        after,
    )


async def show_weights(page: PageRequest) -> Response:
    """Render the heat map: agents by task types."""
    await page.call("agents.list", limit=1)  # checks the permission: the query below does not
    after, now = _read_cursor(page), page.site.now()
    heat = await page.read(learning_store.read_heat_map, after, now, PAGE_SIZE)
    # With the weight of an agent without results, so that two similar weights get similar colors.
    values = [1.0, *(cell.weight for row in heat.rows for cell in row[2].values())]
    return page.render(
        "weights.html",
        block="live",
        heat=heat,
        low=min(values),
        high=max(values),
        more=_next_page_url("/agents/weights", {}, heat.last) if heat.last else None,
    )


def _read_cursor(page: PageRequest) -> tuple[int, str]:
    """Return creation time and id of the last agent of the previous page. Raises InvalidRequest."""
    cursor = page.query_param("cursor")
    created_at, agent_id = decode_cursor(cursor, int, str) if cursor else (-1, "")
    return created_at, agent_id


def _next_page_url(path: str, filters: dict[str, str], last: tuple[int, str]) -> str:
    parameters = {name: value for name, value in filters.items() if value}
    return f"{path}?{urlencode(parameters | {'cursor': encode_cursor(*last)})}"


async def show_agent(page: PageRequest) -> Response:
    agent_id = page.path_param("agent_id")
    record = await page.call("agents.get", agent_id=agent_id)
    (violations, history, links, tasks, updates), (names, current, records, durations) = await asyncio.gather(
        asyncio.gather(
            page.call("agents.violations", agent_id=agent_id, include_cleared=True),
            page.call("learning.history", agent_id=agent_id, limit=LISTED_HISTORY),
            page.call("learning.connections", agent_id=agent_id),
            page.call("tasks.list", agent_id=agent_id, limit=LISTED_TASKS),
            page.call("updates.list", agent_id=agent_id, limit=LISTED_UPDATES),
        ),
        asyncio.gather(
            page.read(registry_queries.read_names),
            page.read(registry_queries.read_current_names),
            page.read(_read_records, agent_id),
            page.read(chart_queries.read_agent_durations, agent_id),
        ),
    )
    changes, weights, alerts = records
    return page.render(
        "agent.html",
        block="live",
        agent=record,
        allowed=await list_allowed(page, agent_id),
        violations=violations["violations"][::-1],
        history=history,
        connections=agent_view.present_connections(links["connections"], agent_id),
        tasks=tasks["tasks"],
        updates=updates["updates"],
        names=names,
        namesakes=_find_namesakes(current, agent_id, record["name"]),
        runtime=agent_view.present_runtime(record["runtime"]),
        prompt=agent_view.present_prompt(record["runtime"]),
        durations=durations,
        composite=agent_view.composite_score(record),
        trust=agent_view.present_trust(record, changes, page.site.now()),
        weights=agent_view.present_weights(weights, history["history"], page.site.now(), page.site.sentinel_threshold),
        alerts=alerts,
        threshold=round(100 * page.site.sentinel_threshold),
        window=SENTINEL_WINDOW,
        tiers=agent_view.TIERS,
        scores=agent_view.SCORES,
    )


async def list_allowed(page: PageRequest, agent_id: str) -> list[AgentAction]:
    """Return which of ACTIONS the gateway would accept: an agent's key may do little to its own agent."""
    if page.session.role != "agent":
        return list(ACTIONS)
    agent = await page.read(registry_store.find, agent_id)
    return [] if agent is None else [a for a in ACTIONS if authorization.may_change(page.session.principal, a, agent)]


def _read_records(tx: Tx, tenant: str, agent_id: str) -> AgentRecords:
    return (
        trust_store.list_entity_changes(tx, tenant, agent_id, MAX_TRUST_CHANGES),
        learning_store.list_top_weights(tx, tenant, agent_id),
        learning_store.list_agent_alerts(tx, tenant, agent_id),
    )


async def show_card(page: PageRequest) -> Response:
    """Render the plain-text card that `stentor agent` and `GET /api/agents/{id}/card` return."""
    agent_id = page.path_param("agent_id")
    record = await page.call("agents.get", agent_id=agent_id)
    now = page.site.now()
    scored_agent, weights = await page.read(read_scored_agent, agent_id, now)
    return page.render("agent-card.html", agent=record, card=render_agent_card(scored_agent, weights, now))


async def archive_agent(page: PageRequest) -> Response:
    form = await page.read_form()
    body = {"reason": form.get("reason", ""), "force": form.get("force") == "1"}
    agent_id = page.path_param("agent_id")
    await page.call("agents.archive", agent_id=agent_id, body=body)
    return page.redirect(f"/agents/{quote_segment(agent_id)}", "archived")


def _find_namesakes(names: Mapping[str, str], agent_id: str, name: str) -> list[str]:
    """Return the ids of other agents whose name is or looks the same."""
    looks = confusable_skeleton(name)
    return [other for other, its_name in names.items() if other != agent_id and confusable_skeleton(its_name) == looks]


async def take_checkpoint(page: PageRequest) -> Response:
    checkpoint = await page.call("checkpoints.take", body={"agent_id": page.path_param("agent_id")})
    return page.redirect(f"/governance/checkpoints/{quote_segment(checkpoint['checkpoint_id'])}", "taken")


async def read_agent_choices(page: PageRequest, chosen: str = "") -> dict[str, str]:
    """Return a label for each agent by its id, in the order of the labels: without archived ones, but with `chosen`."""
    return label_agents(await page.read(registry_queries.read_current_names, chosen))


def label_agents(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names by id, in their order; those that several agents have with the short id."""
    counts = Counter(names.values())
    labels = {
        agent_id: f"{name} ({shorten_id(agent_id)})" if counts[name] > 1 else name for agent_id, name in names.items()
    }
    return dict(sorted(labels.items(), key=lambda item: (item[1].lower(), item[0])))


ROUTES = [
    ("GET", "/agents", list_agents),
    ("GET", "/agents/weights", show_weights),
    ("GET", AGENT, show_agent),
    ("GET", f"{AGENT}/card", show_card),
    ("POST", f"{AGENT}/suspend", action("agents.suspend", AGENT, "suspended", "reason")),
    ("POST", f"{AGENT}/activate", action("agents.activate", AGENT, "activated")),
    ("POST", f"{AGENT}/archive", archive_agent),
    ("POST", f"{AGENT}/restore", action("agents.restore", AGENT, "restored")),
    (
        "POST",
        f"{AGENT}/clear-violations",
        action("agents.clear_violations", AGENT, "cleared", "override_tier", "rationale"),
    ),
    ("POST", f"{AGENT}/checkpoints", take_checkpoint),
]
