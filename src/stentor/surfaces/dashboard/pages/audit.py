"""The audit page: who signed in, what was changed and what was refused."""

from __future__ import annotations

from starlette.responses import Response

from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.audit.store import CATEGORIES
from stentor.domains.registry import queries as registry_queries
from stentor.domains.schedules import store as schedule_store
from stentor.domains.tasks import list_queries
from stentor.domains.tasks.list_model import TaskFilter
from stentor.domains.webhooks import store as webhook_store
from stentor.surfaces.dashboard.presenters import audit_view
from stentor.surfaces.dashboard.presenters.audit_view import AuditRow
from stentor.surfaces.dashboard.site.forms import times_of_days
from stentor.surfaces.dashboard.site.page import PageRequest, encode_query

PAGE_SIZE = 50
FILTERS = ("category", "q", "from", "to")


async def show_audit(page: PageRequest) -> Response:
    filters = {name: page.query_param(name) for name in FILTERS}
    if filters["category"] not in CATEGORIES:
        filters["category"] = ""
    entries = await page.call(
        "audit.list",
        category=filters["category"],
        text=filters["q"],
        limit=PAGE_SIZE,
        cursor=page.query_param("cursor"),
        **times_of_days(filters),
    )
    return page.render(
        "audit.html",
        block="rows" if page.query_param("cursor") else "results",
        rows=await page.read(_present_events, entries["events"]),
        categories=tuple(CATEGORIES),
        filters=filters,
        is_filtered=any(filters.values()),
        address=lambda **changed: f"/audit?{encode_query(filters | changed)}",
        more=encode_query(filters | {"cursor": entries["next_cursor"]}) if entries["next_cursor"] else "",
    )


def _present_events(tx: Tx, tenant: str, events: list[JsonObject]) -> list[AuditRow]:
    """Return the rows, with the names of the agents, tasks, webhooks and schedules that still exist."""
    task_ids = sorted({event["task_id"] for event in events if event["task_id"]})
    tasks = list_queries.list_matching(tx, tenant, TaskFilter(), task_ids) if task_ids else []
    titles = {task.task_id: task.title for task in tasks}
    webhooks = {row.subscription_id: row.url for row in webhook_store.list_subscriptions(tx, tenant)}
    schedules = schedule_store.list_names(tx, tenant)
    names = registry_queries.read_names(tx, tenant)
    return [audit_view.present(event, names, titles, webhooks, schedules) for event in events]


ROUTES = [("GET", "/audit", show_audit)]
