"""Agents: the list with its filters, and the heat map of what they learned."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.errors import InvalidRequest
from stentor.surfaces.dashboard.pages import agents_rows, lessons_rows
from stentor.surfaces.dashboard.pages.agents_rows import Wanted
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page
from stentor.web.wire import decode_cursor, encode_cursor

SHOWN = 50
MOST = 1_000
"""Agents that the gateway lists at once."""
STATUSES, TIERS = ("active", "suspended", "quarantined"), ("auto", "monitored", "human")
STEPS = tuple(range(10))
"""Colours of the heat map."""


async def agents(page: Page) -> Response:
    """Oldest first. The gateway says who may see them, and refuses values that no filter has."""
    filters = {name: page.query(name) for name in ("status", "capability", "tier", "q", "alert")}
    some = page.query("cursor") or filters["q"] or filters["alert"]
    listed = await page.get(
        "/registry/agents",
        limit=MOST if some else SHOWN,
        status=filters["status"],
        trust_tier=filters["tier"],
        capability=filters["capability"],
    )
    now = page.site.now()
    wanted = _wanted(filters, _after(page))
    rows, total = await page.rows.read(lambda tx: agents_rows.page(tx, page.tenant, wanted, now, SHOWN + 1))
    shown = rows[:SHOWN]
    return page.render(
        "agents.html",
        block="rows" if page.query("cursor") else "results",
        agents=shown,
        presence=await _presence(page, listed["agents"], [row.agent_id for row in shown]),
        total=total,
        more=_more("/agents", filters, (shown[-1].created_at, shown[-1].agent_id)) if len(rows) > SHOWN else None,
        filters=filters,
        statuses=STATUSES,
        tiers=TIERS,
    )


async def _presence(page: Page, listed: list[dict[str, Any]], wanted: list[str]) -> dict[str, dict[str, Any]]:
    """What the gateway says of the agents that are shown: only it knows who is online. One that it did not list is
    asked for by itself, and one that it does not know any more is left out.
    """
    known = {record["agent_id"]: record for record in listed}
    missing = [agent_id for agent_id in wanted if agent_id not in known]
    found = await asyncio.gather(
        *(page.get(f"/registry/agents/{part(agent_id)}") for agent_id in missing), return_exceptions=True
    )
    for agent_id, record in zip(missing, found, strict=True):
        if isinstance(record, BaseException):
            if not isinstance(record, Refused):
                raise record
        else:
            known[agent_id] = record
    return known


def _wanted(filters: dict[str, str], after: tuple[int, str]) -> Wanted:
    """Raises InvalidRequest for what neither database can compare."""
    for name in ("capability", "q"):
        if "\0" in filters[name]:
            raise InvalidRequest(f"{name}: a NUL is in no agent's record.", {"fields": {name: "has a NUL"}})
    alert = filters["alert"]
    if alert not in ("", "open"):
        raise InvalidRequest("alert: is `open`, or is not given.", {"fields": {"alert": "is not `open`"}})
    return Wanted(filters["status"], filters["tier"], filters["capability"], filters["q"], alert == "open", after)


async def weights(page: Page) -> Response:
    """Agents by task types."""
    await page.get("/registry/agents", limit=1)
    after, now = _after(page), page.site.now()
    heat = await page.rows.read(lambda tx: lessons_rows.heat(tx, page.tenant, after, now, SHOWN))
    values = [cell.weight for row in heat.rows for cell in row[2].values()]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    return page.render(
        "weights.html",
        block="live",
        heat=heat,
        low=low,
        high=high,
        bounds=[low + (high - low) * step / len(STEPS) for step in STEPS],
        more=_more("/agents/weights", {}, heat.last) if heat.last else None,
    )


def _after(page: Page) -> tuple[int, str]:
    """Raises InvalidRequest."""
    cursor = page.query("cursor")
    created_at, agent_id = decode_cursor(cursor, int, str) if cursor else (-1, "")
    return created_at, agent_id


def _more(path: str, filters: dict[str, str], last: tuple[int, str]) -> str:
    given = {name: value for name, value in filters.items() if value}
    return f"{path}?{urlencode(given | {'cursor': encode_cursor(*last)})}"


ROUTES = [("GET", "/agents", agents), ("GET", "/agents/weights", weights)]
