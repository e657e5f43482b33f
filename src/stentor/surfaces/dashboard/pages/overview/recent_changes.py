"""The parts of the overview that compare with earlier: what changed, and the rates of the last 24 hours."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core.clock import DAY, SECOND, format_iso
from stentor.core.db import Tx
from stentor.core.ids import min_id_at
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.domains.alerts import store as alert_store
from stentor.domains.alerts.model import Alert
from stentor.domains.audit import store as audit_store
from stentor.domains.llm.usage import trend_queries
from stentor.domains.llm.usage.trend_queries import ModelWeek
from stentor.domains.registry import queries as registry_queries
from stentor.domains.schedules import store as schedule_store
from stentor.domains.tasks.reading import chart_queries
from stentor.domains.tasks.reading.chart_queries import AgentResults
from stentor.surfaces.dashboard.pages.overview.alerts import alert_url
from stentor.surfaces.dashboard.presenters import recent_changes
from stentor.surfaces.dashboard.presenters.recent_changes import Rate
from stentor.surfaces.dashboard.site.page import PageRequest
from stentor.surfaces.dashboard.site.sessions import is_https_request

VISIT_COOKIE, VISIT_SECONDS = "stentor_visited", 90 * 86_400
"""When this browser last had the overview, in seconds since 1970. Only its own reader sees what it decides."""
MAX_LOOKBACK_US = 30 * DAY
DAYS_OF_COST = 8
"""Today and the seven days whose mean it is compared with."""

Weeks = tuple[
    dict[str, tuple[AgentResults, AgentResults]],
    dict[str, tuple[float, float]],
    dict[str, tuple[ModelWeek, ModelWeek]],
]
"""Results of agents, their costs and calls of models, each of this week and the week before."""


async def read_changes(page: PageRequest) -> JsonObject:
    """Return the lines of what changed since `since`, and how many more there are."""
    now = page.site.now()
    since = changes_since(page.session.visited_at, now)
    (events, alerts, names, schedules), weeks = await asyncio.gather(
        page.read(_read_changes, page.session.principal, since), _read_weeks(page)
    )
    link = partial(alert_url, is_admin=page.session.may("admin"))
    lines = recent_changes.describe_changes(events, alerts, link, since, names, schedules)
    trend_lines = recent_changes.describe_trends(*weeks, names)
    shown, more = recent_changes.select(lines, trend_lines, page.session.may)
    return {
        "lines": shown,
        "more": more,
        # A day is the shortest period: frequent visitors want to see what changed today, not in the last minute.
        "since": format_iso(since) if since < now - DAY else None,
    }


def changes_since(visited_at: int, now: int) -> int:
    """Return the time since which changes are new: the last visit if that was 1 to 30 days ago, else a day ago."""
    return min(max(visited_at, now - MAX_LOOKBACK_US), now - DAY) if visited_at else now - DAY


def _read_changes(
    tx: Tx, tenant: str, reader: Principal, since: int
) -> tuple[list[RunLogEvent], list[Alert], dict[str, str], set[str]]:
    events = audit_store.list_recent_changes(tx, tenant, min_id_at(since))
    alerts = alert_store.list_recent(tx, tenant, reader, since, recent_changes.MAX_ALERTS)
    return events, alerts, registry_queries.read_names(tx, tenant), schedule_store.list_names(tx, tenant)


async def _read_weeks(page: PageRequest) -> Weeks:
    def read(tx: Tx, tenant: str) -> Weeks:
        return (
            chart_queries.read_two_weeks(tx, tenant, now),
            trend_queries.read_agent_costs(tx, tenant, now // DAY),
            trend_queries.read_model_weeks(tx, tenant, now),
        )

    now = page.site.now()
    weeks: Weeks = await page.site.slow_cache.get_or_create(page.tenant, lambda: page.read(read))
    return weeks


async def read_rates(page: PageRequest) -> list[Rate]:
    rates: list[Rate] = await page.site.cache.get_or_create(("rates", page.tenant), lambda: _read_rates(page))
    return rates


async def _read_rates(page: PageRequest) -> list[Rate]:
    now = page.site.now()
    today, before = await page.read(chart_queries.read_two_days, now)
    return recent_changes.describe_rates(
        today, before, await page.read(trend_queries.read_daily_cost, now // DAY, DAYS_OF_COST)
    )


def remember_visit(page: PageRequest, response: Response) -> None:
    """Store when this browser opened the page, for its next sign-in."""
    value, is_tls = str(page.site.now() // SECOND), is_https_request(page.request)
    response.set_cookie(VISIT_COOKIE, value, max_age=VISIT_SECONDS, httponly=True, samesite="strict", secure=is_tls)


def read_visit(request: Request) -> int:
    """Return when this browser last opened the overview, in microseconds; 0 if that is unknown."""
    value = request.cookies.get(VISIT_COOKIE, "")
    # The cookie comes from the browser: with more digits the time would not fit the database.
    return int(value) * SECOND if value.isascii() and value.isdecimal() and len(value) <= 11 else 0
