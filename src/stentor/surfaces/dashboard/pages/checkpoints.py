"""Checkpoints of agents and rollbacks to them."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.surfaces.dashboard.pages import governance_rows, masking, review
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page

SHOWN = 50
STEPS = ("initiated", "in_progress", "completed")


async def checkpoints(page: Page) -> Response:
    return await _listed(page, "checkpoints")


async def rollbacks(page: Page) -> Response:
    return await _listed(page, "rollbacks")


async def _listed(page: Page, kind: str) -> Response:
    """Newest first."""
    agent_id = page.query("agent")
    found, names = await asyncio.gather(
        page.get(f"/governance/{kind}", limit=SHOWN, agent_id=agent_id, cursor=page.query("cursor")),
        page.rows.names(page.tenant),
    )
    query = {"agent": agent_id, "cursor": found["next_cursor"]}
    address = f"/governance/{kind}?{urlencode({name: value for name, value in query.items() if value})}"
    return page.render(
        f"{kind}.html",
        block="rows" if page.query("cursor") else "results",
        records=found[kind],
        more=address if found["next_cursor"] else None,
        names=names,
        agent_id=agent_id,
    )


async def checkpoint(page: Page) -> Response:
    checkpoint_id = page.param("checkpoint_id")
    found = await page.get(f"/governance/checkpoints/{part(checkpoint_id)}")
    record, names = await asyncio.gather(_agent(page, found["agent_id"]), page.rows.names(page.tenant))
    state = found["state"]
    return page.render(
        "checkpoint.html",
        block="live",
        checkpoint=found,
        state=state,
        runtime=masking.runtime(state["config"]["runtime"]) if state else [],
        review=review.against(state, record) if state and record else None,
        names=names,
    )


async def _agent(page: Page, agent_id: str) -> dict[str, Any] | None:
    try:
        return dict(await page.get(f"/registry/agents/{part(agent_id)}"))
    except Refused as refused:
        if refused.status == 404:
            return None
        raise


async def rollback(page: Page) -> Response:
    rollback_id = page.param("rollback_id")
    found = await page.get(f"/governance/rollbacks/{part(rollback_id)}")
    first = found["provenance_id"]
    moves, names = await asyncio.gather(
        page.rows.read(lambda tx: governance_rows.moves(tx, page.tenant, "rollback", rollback_id, first)),
        page.rows.names(page.tenant),
    )
    steps = STEPS if found["status"] != "failed" else (*STEPS[:2], "failed")
    return page.render("rollback.html", block="live", rollback=found, moves=moves, names=names, steps=steps)


async def roll_back(page: Page) -> Response:
    """The gateway wants a reason, and takes no checkpoint that is damaged."""
    form = await page.form()
    said = {"reason": form.get("reason", ""), "details": form.get("details", "")}
    body = {"checkpoint_id": page.param("checkpoint_id"), "initiated_by": page.session.name, **said}
    started = await page.post("/governance/rollbacks", body)
    return page.back(f"/governance/rollbacks/{part(started['rollback_id'])}", "rolled-back")


ROUTES = [
    ("GET", "/governance/checkpoints", checkpoints),
    ("GET", "/governance/checkpoints/{checkpoint_id}", checkpoint),
    ("POST", "/governance/checkpoints/{checkpoint_id}/rollback", roll_back),
    ("GET", "/governance/rollbacks", rollbacks),
    ("GET", "/governance/rollbacks/{rollback_id}", rollback),
]
