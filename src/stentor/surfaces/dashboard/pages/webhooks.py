"""Webhooks: who hears of what, and how their deliveries went."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import DAY, format_iso
from stentor.domains.webhooks import model
from stentor.surfaces.dashboard.pages import webhooks_rows
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page

SHOWN = 50
STATES = ("waiting", "sending", "delivered", "failed")
KINDS: dict[str, list[str]] = {}
for _name in model.EVENTS:
    KINDS.setdefault(_name.partition(".")[0], []).append(_name)
OVERLAPS = ((0, "not at all"), (3_600, "for an hour"), (86_400, "for a day"), (7 * 86_400, "for a week"))
"""Seconds that the old secret signs too, and how that is said."""
NOTHING_TOLD = dict.fromkeys(("secret", "until", "queued", "following", "scope"))


async def webhooks(page: Page) -> Response:
    return await list_page(page)


async def list_page(page: Page, problem: Refused | None = None, given: dict[str, Any] | None = None) -> Response:
    found = (await page.get("/webhooks"))["webhooks"]
    ids = [one["id"] for one in found]
    backlogs = await page.rows.read(lambda tx: webhooks_rows.backlogs(tx, page.tenant, ids))
    return page.render(
        "webhooks.html",
        problem.status if problem else 200,
        block="live",
        webhooks=found,
        backlogs=backlogs,
        most=webhooks_rows.MOST,
        problem=problem,
        given=given or {"url": "", "description": "", "events": ["task.*"]},
        kinds=KINDS,
    )


async def webhook(page: Page) -> Response:
    return await one_page(page, page.param("webhook_id"))


async def one_page(page: Page, webhook_id: str, **told: Any) -> Response:
    """`told` is what an action says here alone: `secret`, `until`, `queued`, `following`, `problem`."""
    wanted = {name: page.query(name) for name in ("status", "event", "cursor")}
    path = f"/webhooks/{part(webhook_id)}"
    found, log, backlogs = await asyncio.gather(
        page.get(path),
        page.get(f"{path}/deliveries", limit=SHOWN, **wanted),
        page.rows.read(lambda tx: webhooks_rows.backlogs(tx, page.tenant, [webhook_id])),
    )
    problem = told.pop("problem", None)
    return page.render(
        "webhook.html",
        problem.status if problem else 200,
        block="rows" if wanted["cursor"] else "results",
        hook=found,
        base=path,
        deliveries=log["deliveries"],
        following=log["next_cursor"],
        wanted=wanted,
        more=urlencode({**wanted, "cursor": log["next_cursor"] or ""}),
        backlog=backlogs[webhook_id],
        most=webhooks_rows.MOST,
        states=STATES,
        events=model.EVENTS,
        kinds=KINDS,
        overlaps=OVERLAPS,
        now=format_iso(page.site.now()),
        yesterday=format_iso(page.site.now() - DAY)[:16],
        problem=problem,
        told=NOTHING_TOLD | told,
        answered=bool(told or problem),
    )


ROUTES = [("GET", "/webhooks", webhooks), ("GET", "/webhooks/{webhook_id}", webhook)]
