"""One agent: its record, its trust, what it learned, what it did wrong, and what a person may do to it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from stentor.core.db import Tx
from stentor.domains.learning.model import Alert, Weight
from stentor.domains.trust.model import Change
from stentor.surfaces.dashboard.card import card as text_card
from stentor.surfaces.dashboard.pages import lessons_rows, masking
from stentor.surfaces.dashboard.pages import standing as shown
from stentor.surfaces.dashboard.pages.agents import TIERS
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page
from stentor.surfaces.dashboard.stores import standing

TASKS, ENTRIES, UPDATES = 10, 100, 5
Found = tuple[list[Change], list[Weight], list[Alert]]


async def agent(page: Page) -> Response:
    agent_id = page.param("agent_id")
    record = await _record(page, agent_id)
    violations, history, links, tasks, updates, computed, names, found = await asyncio.gather(
        page.get(f"/registry/agents/{part(agent_id)}/violations", include_cleared="true"),
        page.get(f"/hebbian/history/{part(agent_id)}", limit=ENTRIES),
        page.get("/hebbian/connections", agent_id=agent_id),
        page.get("/tasks", agent_id=agent_id, limit=TASKS),
        page.get("/governance/updates", agent_id=agent_id, limit=UPDATES),
        _computed(page, agent_id),
        page.rows.names(page.tenant),
        page.rows.read(lambda tx: _read(tx, page.tenant, agent_id)),
    )
    changes, weights, alerts = found
    return page.render(
        "agent.html",
        block="live",
        agent=record,
        violations=violations["violations"][::-1],
        history=history,
        connections=shown.connections(links["connections"], agent_id),
        tasks=tasks["tasks"],
        updates=updates["updates"],
        computed=computed,
        names=names,
        runtime=masking.runtime(record["runtime"]),
        composite=shown.composite(record),
        trust=shown.trust(record, changes, page.site.now()),
        weights=shown.weights(weights, history["history"], page.site.now(), page.site.threshold),
        alerts=[shown.alert(alert) for alert in alerts],
        tiers=TIERS,
    )


async def _record(page: Page, agent_id: str) -> dict[str, Any]:
    return dict(await page.get(f"/registry/agents/{part(agent_id)}"))


def _read(tx: Tx, tenant: str, agent_id: str) -> Found:
    return (
        lessons_rows.trust(tx, tenant, agent_id),
        lessons_rows.weights(tx, tenant, agent_id),
        lessons_rows.alerts(tx, tenant, agent_id),
    )


async def _computed(page: Page, agent_id: str) -> dict[str, Any] | None:
    """What governance would compute from the service's own records, without storing it; None of nothing."""
    try:
        return dict(await page.post(f"/governance/agents/{part(agent_id)}/trust", {"persist": False}))
    except Refused as refused:
        if refused.status == 422:
            return None
        raise


async def card(page: Page) -> Response:
    """The agent on one page of plain text, as `stentor agent` and `GET /api/agents/{id}/card` show it."""
    agent_id = page.param("agent_id")
    record = await _record(page, agent_id)
    now = page.site.now()
    found, weights = await page.rows.read(lambda tx: standing(tx, page.tenant, agent_id, now))
    return page.render("agent-card.html", agent=record, card=text_card(found, weights, now))


async def suspend(page: Page) -> Response:
    return await _act(page, "suspend", "suspended", {"reason": (await page.form()).get("reason", "")})


async def activate(page: Page) -> Response:
    return await _act(page, "activate", "activated")


async def clear(page: Page) -> Response:
    form = await page.form()
    body = {"override_tier": form.get("tier", ""), "rationale": form.get("rationale", "")}
    return await _act(page, "clear-violations", "cleared", body)


async def _act(page: Page, verb: str, notice: str, body: Any = None) -> Response:
    agent_id = part(page.param("agent_id"))
    await page.post(f"/registry/agents/{agent_id}/{verb}", body)
    return page.back(f"/agents/{agent_id}", notice)


async def checkpoint(page: Page) -> Response:
    taken = await page.post("/governance/checkpoints", {"agent_id": page.param("agent_id")})
    return page.back(f"/governance/checkpoints/{part(taken['checkpoint_id'])}", "taken")


ROUTES = [
    ("GET", "/agents/{agent_id}", agent),
    ("GET", "/agents/{agent_id}/card", card),
    ("POST", "/agents/{agent_id}/suspend", suspend),
    ("POST", "/agents/{agent_id}/activate", activate),
    ("POST", "/agents/{agent_id}/clear-violations", clear),
    ("POST", "/agents/{agent_id}/checkpoints", checkpoint),
]
