"""The overview page: task counts, charts, what needs a human, what is wrong, what changed, and the components.

In a new installation also the first steps: what each is for, how to take it, and whether it was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.responses import JSONResponse, RedirectResponse, Response

from stentor.core.db import Tx
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.alerts import store as alert_store
from stentor.domains.governance import store as governance_store
from stentor.domains.keys import store as key_store
from stentor.domains.learning import store as learning_store
from stentor.domains.llm.queries import has_calls, read_cost_series
from stentor.domains.registry import queries as registry_queries
from stentor.domains.steps import queries as step_queries
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks.reading import chart_queries
from stentor.domains.tasks.reading.chart_queries import CHART_RANGES
from stentor.domains.webhooks import queries as webhook_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages.overview import recent_changes
from stentor.surfaces.dashboard.pages.overview.alerts import MAX_LISTED, present_open_alerts
from stentor.surfaces.dashboard.site.page import PageRequest
from stentor.surfaces.dashboard.site.sessions import is_https_request

TASK_STATUSES = ("queued", "pending_approval", "executing", "waiting", "completed", "failed", "aborted", "cancelled")
MAX_ALERTS = 6
HIDE_COOKIE, HIDE_SECONDS = "stentor_first_steps_hidden", 365 * 86_400
PENDING_ITEMS = (
    ("pending_approval", "approve", ("task to approve", "tasks to approve"), "/tasks?status=pending_approval"),
    ("decisions", "approve", ("question to answer", "questions to answer"), "/decisions"),
    ("approvals", "approve", ("update to review", "updates to review"), "/governance"),
    ("quarantined", "admin", ("quarantined agent", "quarantined agents"), "/agents?status=quarantined"),
    ("alerts", "admin", ("open oscillation alert", "open oscillation alerts"), "/agents?alert=open"),
    ("webhooks", "admin", ("disabled webhook", "disabled webhooks"), "/webhooks"),
)
"""Name, the permission without which somebody can do nothing about it, labels for one and for more, and URL."""
COMPONENT_PAGES = {
    "agents": "/agents",
    "provenance": "/provenance",
    "vault": "/memory",
    "webhooks": "/webhooks",
}
"""The pages that explain a component."""
MAX_TASKS = 500
"""Tasks after which an installation is not new any more."""


async def show_overview(page: PageRequest) -> Response:
    chart_range = page.query_param("range", "1h")
    counts, pending, alerts, rates, changes, health = await asyncio.gather(
        page.read(task_queries.count_by_status),
        page.read(_count_pending),
        page.read(alert_store.list_urgent_first, page.session.principal, MAX_LISTED),
        recent_changes.read_rates(page),
        recent_changes.read_changes(page),
        # Without the tenant in the key: the components are those of the whole service.
        page.site.cache.get_or_create("health", lambda: _read_components(page)),
    )
    pending["pending_approval"] = counts.get("pending_approval", 0)
    shown = present_open_alerts(page, alerts)
    total = sum(counts.values())
    response = page.render(
        "overview.html",
        block="live",
        states={s: counts.get(s, 0) for s in TASK_STATUSES if s != "waiting" or counts.get(s)},
        pending_items=_pending_items(page, pending),
        alerts=shown[:MAX_ALERTS],
        has_more_alerts=len(shown) > MAX_ALERTS,
        rates=rates,
        changes=changes,
        health=health,
        total=total,
        steps=await _read_steps(page, total),
        range=chart_range if chart_range in CHART_RANGES else "1h",
        ranges=tuple(CHART_RANGES),
    )
    recent_changes.remember_visit(page, response)
    return response


async def _read_steps(page: PageRequest, total_tasks: int) -> list[FirstStep]:
    """Return the first steps of a new installation, for admins who have not hidden them."""
    if not page.session.may("admin") or HIDE_COOKIE in page.request.cookies or total_tasks > MAX_TASKS:
        return []
    done = await page.read(_read_done_steps)
    return open_steps(done | {"task": total_tasks > 0}, total_tasks)


def _read_done_steps(tx: Tx, tenant: str) -> dict[str, bool]:
    return {
        "agent": registry_queries.has_own_agent(tx, tenant),
        "grade": task_queries.has_grade(tx, tenant),
        "model": has_calls(tx, tenant),
        "key": key_store.has_keys_of_people(tx, tenant),
    }


async def hide_steps(page: PageRequest) -> Response:
    response = RedirectResponse("/", 303)
    is_tls = is_https_request(page.request)
    response.set_cookie(HIDE_COOKIE, "1", max_age=HIDE_SECONDS, httponly=True, samesite="strict", secure=is_tls)
    return response


def _count_pending(tx: Tx, tenant: str) -> dict[str, int]:
    """Count the items that need a human, by kind."""
    return {
        "decisions": step_queries.count_decisions(tx, tenant),
        "approvals": governance_store.count_submitted(tx, tenant),
        "quarantined": registry_queries.count_quarantined(tx, tenant),
        "alerts": learning_store.count_open_alerts(tx, tenant),
        "webhooks": webhook_queries.count_disabled(tx, tenant),
    }


def _pending_items(page: PageRequest, counts: dict[str, int]) -> list[tuple[int, str, str]]:
    """Return number, label and URL of each kind; those about which this key can do nothing are left out."""
    return [
        (counts[name], labels[counts[name] > 1], url)
        for name, permission, labels, url in PENDING_ITEMS
        if counts[name] and page.session.may(permission)
    ]


async def get_series(page: PageRequest) -> Response:
    """Return the data of the charts, as columns over `times` (seconds)."""
    chart_range = page.query_param("range", "1h")
    chart_range = chart_range if chart_range in CHART_RANGES else "1h"
    key = (page.tenant, chart_range)
    return JSONResponse(await page.site.cache.get_or_create(key, lambda: _read_series(page, chart_range)))


async def _read_series(page: PageRequest, chart_range: str) -> JsonObject:
    span = chart_queries.time_buckets(chart_range, page.site.now())
    outcomes, durations, cost = await asyncio.gather(
        page.read(chart_queries.read_outcomes, span),
        page.read(chart_queries.read_durations, span),
        page.read(read_cost_series, span.start, span.width, span.count),
    )
    return {"times": span.times, "outcomes": outcomes, "durations": durations, "cost": cost}


async def _read_components(page: PageRequest) -> list[JsonObject]:
    """Return the components of the gateway, failing ones first."""
    try:
        report = await page.read_health()
    except (GatewayError, StentorError) as error:
        report = {"components": {"gateway": {"status": "unavailable", "detail": error.message}}}
    components = [
        {"name": name, "url": COMPONENT_PAGES.get(name), **component}
        for name, component in report["components"].items()
    ]
    return sorted(components, key=lambda component: (component["status"] == "available", component["name"]))


class FirstStep(msgspec.Struct, frozen=True):
    """A step that ticks itself off. `command` does it in a terminal, `url` leads to the page that does it."""

    name: str
    title: str
    reason: str
    command: str
    url: str
    is_done: bool = False


STEPS = (
    FirstStep(
        "task",
        "Send a task",
        "The built-in agent summarizes at once, without a model.",
        'stentor task submit --type summarize --capability summarize --input "One sentence. And another one." --wait',
        "/console",
    ),
    FirstStep(
        "agent",
        "Add an agent of your own",
        "A worker, an HTTP endpoint, a model or a program. Each task goes to the best eligible agent.",
        "stentor agent register writer --capability write",
        "/agents",
    ),
    FirstStep(
        "grade",
        "Grade a result",
        "On the task's page. Routing learns from it which agent does a task best.",
        "stentor task grade TASK 0.9",
        "/tasks?status=completed",
    ),
    FirstStep(
        "model",
        "Connect a model",
        "Start the service with a provider's key, or register one here; then any OpenAI client may call its /v1.",
        "OPENAI_API_KEY=... stentor serve",
        "/models",
    ),
    FirstStep(
        "key",
        "Create a key for a colleague",
        "With a role: who may look, who may submit, who may approve.",
        "stentor keys create dana --role approver",
        "/keys",
    ),
)


def open_steps(done: Mapping[str, bool], total_tasks: int) -> list[FirstStep]:
    """Return all steps with whether each is done; none once all are, or the installation is not new any more."""
    if total_tasks > MAX_TASKS or all(done[step.name] for step in STEPS):
        return []
    return [msgspec.structs.replace(step, is_done=done[step.name]) for step in STEPS]


ROUTES = [
    ("GET", "/", show_overview),
    ("GET", "/series", get_series),
    ("POST", "/first-steps/hide", hide_steps),
]
