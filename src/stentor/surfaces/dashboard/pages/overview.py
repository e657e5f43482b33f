"""The overview: what happens now, what waits for a human, what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import JSONResponse, Response

from stentor.core.errors import StentorError
from stentor.surfaces.dashboard.site.calls import Refused
from stentor.surfaces.dashboard.site.page import Page
from stentor.surfaces.dashboard.site.rows import RANGES

STATUSES = ("queued", "pending_approval", "executing", "completed", "failed", "aborted", "cancelled")
WAITS = (
    ("pending_approval", ("task to approve", "tasks to approve"), "/tasks?status=pending_approval"),
    ("approvals", ("update to review", "updates to review"), "/governance"),
    ("quarantined", ("agent in quarantine", "agents in quarantine"), "/agents?status=quarantined"),
    ("alerts", ("open alert of the sentinel", "open alerts of the sentinel"), "/agents?alert=open"),
    ("webhooks", ("webhook switched off", "webhooks switched off"), "/webhooks"),
)


async def overview(page: Page) -> Response:
    chosen = page.query("range", "1h")
    states, waiting, health = await asyncio.gather(
        page.rows.states(page.tenant),
        page.rows.waiting(page.tenant),
        page.site.kept.get("health", lambda: _health(page)),
    )
    waiting["pending_approval"] = states.get("pending_approval", 0)
    return page.render(
        "overview.html",
        block="live",
        states={status: states.get(status, 0) for status in STATUSES},
        waits=_waits(page, waiting),
        health=health,
        range=chosen if chosen in RANGES else "1h",
        ranges=tuple(RANGES),
    )


def _waits(page: Page, waiting: dict[str, int]) -> list[tuple[int, str, str]]:
    """Number, words and place; all but the tasks are on pages for admins alone."""
    seen = WAITS if page.session.may("admin") else WAITS[:1]
    return [(waiting[name], said[waiting[name] > 1], where) for name, said, where in seen if waiting[name]]


async def series(page: Page) -> Response:
    """What the charts of the overview draw, as columns over `times` (seconds)."""
    chosen = page.query("range", "1h")
    chosen = chosen if chosen in RANGES else "1h"
    return JSONResponse(await page.site.kept.get((page.tenant, chosen), lambda: _series(page, chosen)))


async def _series(page: Page, chosen: str) -> dict[str, Any]:
    span = page.rows.span(chosen)
    outcomes, durations, cost = await asyncio.gather(
        page.rows.outcomes(page.tenant, span),
        page.rows.durations(page.tenant, span),
        page.rows.cost(page.tenant, span),
    )
    return {"times": span.times, "outcomes": outcomes, "durations": durations, "cost": cost}


async def _health(page: Page) -> list[dict[str, Any]]:
    """The components of the gateway, those that fail first."""
    try:
        found = await page.get("/health/detailed")
    except Refused as refused:
        found = {"components": {"gateway": {"status": "unavailable", "detail": refused.message}}}
    except StentorError as error:
        found = {"components": {"gateway": {"status": "unavailable", "detail": error.message}}}
    parts = [{"name": name, **part} for name, part in found["components"].items()]
    return sorted(parts, key=lambda one: (one["status"] == "available", one["name"]))


async def alerts(page: Page) -> Response:
    """What fires in the metrics backend, which may be slow: so the overview does not wait for it."""
    snapshot = await page.site.prometheus.snapshot()
    firing = [alert for alert in snapshot["alerts"] if alert["state"] != "inactive"]
    return page.render("alerts.html", alerts=firing, available=snapshot["available"], url=snapshot["url"])


ROUTES = [("GET", "/", overview), ("GET", "/series", series), ("GET", "/alerts", alerts)]
