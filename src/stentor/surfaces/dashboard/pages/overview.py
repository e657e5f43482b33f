"""The overview: what happens now, what waits for a human, what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import JSONResponse, Response

from stentor.core.db import Tx
from stentor.core.errors import StentorError
from stentor.domains.governance import queries as governance_queries
from stentor.domains.learning import queries as learning_queries
from stentor.domains.llm.queries import read_cost_series
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks import chart_queries
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks.chart_queries import CHART_RANGES
from stentor.domains.webhooks import queries as webhook_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.site.page import PageRequest

TASK_STATUSES = ("queued", "pending_approval", "executing", "completed", "failed", "aborted", "cancelled")
PENDING_ITEMS = (
    ("pending_approval", ("task to approve", "tasks to approve"), "/tasks?status=pending_approval"),
    ("approvals", ("update to review", "updates to review"), "/governance"),
    ("quarantined", ("quarantined agent", "quarantined agents"), "/agents?status=quarantined"),
    ("alerts", ("open sentinel alert", "open sentinel alerts"), "/agents?alert=open"),
    ("webhooks", ("disabled webhook", "disabled webhooks"), "/webhooks"),
)


async def show_overview(page: PageRequest) -> Response:
    chosen = page.query_param("range", "1h")
    states, waiting, health = await asyncio.gather(
        page.read(task_queries.count_by_status),
        page.read(_count_pending),
        page.site.cache.get_or_create("health", lambda: _read_components(page)),
    )
    waiting["pending_approval"] = states.get("pending_approval", 0)
    return page.render(
        "overview.html",
        block="live",
        states={status: states.get(status, 0) for status in TASK_STATUSES},
        waits=_pending_items(page, waiting),
        health=health,
        range=chosen if chosen in CHART_RANGES else "1h",
        ranges=tuple(CHART_RANGES),
    )


def _count_pending(tx: Tx, tenant: str) -> dict[str, int]:
    """Count what waits for a human, by kind."""
    return {
        "approvals": governance_queries.count_submitted(tx, tenant),
        "quarantined": registry_queries.count_quarantined(tx, tenant),
        "alerts": learning_queries.count_open_alerts(tx, tenant),
        "webhooks": webhook_queries.count_disabled(tx, tenant),
    }


def _pending_items(page: PageRequest, waiting: dict[str, int]) -> list[tuple[int, str, str]]:
    """Number, words and place; all but the tasks are on pages for admins alone."""
    seen = PENDING_ITEMS if page.session.may("admin") else PENDING_ITEMS[:1]
    return [(waiting[name], said[waiting[name] > 1], where) for name, said, where in seen if waiting[name]]


async def get_series(page: PageRequest) -> Response:
    """What the charts of the overview draw, as columns over `times` (seconds)."""
    chosen = page.query_param("range", "1h")
    chosen = chosen if chosen in CHART_RANGES else "1h"
    return JSONResponse(await page.site.cache.get_or_create((page.tenant, chosen), lambda: _read_series(page, chosen)))


async def _read_series(page: PageRequest, chosen: str) -> dict[str, Any]:
    span = chart_queries.time_buckets(chosen, page.site.now())
    outcomes, durations, cost = await asyncio.gather(
        page.read(chart_queries.read_outcomes, span),
        page.read(chart_queries.read_durations, span),
        page.read(read_cost_series, span.start, span.width, span.count),
    )
    return {"times": span.times, "outcomes": outcomes, "durations": durations, "cost": cost}


async def _read_components(page: PageRequest) -> list[dict[str, Any]]:
    """The components of the gateway, those that fail first."""
    try:
        found = await page.read_health()
    except GatewayError as refused:
        found = {"components": {"gateway": {"status": "unavailable", "detail": refused.message}}}
    except StentorError as error:
        found = {"components": {"gateway": {"status": "unavailable", "detail": error.message}}}
    parts = [{"name": name, **part} for name, part in found["components"].items()]
    return sorted(parts, key=lambda one: (one["status"] == "available", one["name"]))


async def show_alerts(page: PageRequest) -> Response:
    """What fires in the metrics backend, which may be slow: so the overview does not wait for it."""
    snapshot = await page.site.prometheus.fetch_snapshot()
    firing = [alert for alert in snapshot["alerts"] if alert["state"] != "inactive"]
    return page.render("alerts.html", alerts=firing, available=snapshot["available"], url=snapshot["url"])


ROUTES = [("GET", "/", show_overview), ("GET", "/series", get_series), ("GET", "/alerts", show_alerts)]
