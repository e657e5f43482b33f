"""Models and cost: what was used, by day, provider and model, in the last days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from starlette.responses import Response

from stentor.core.clock import SECOND
from stentor.surfaces.dashboard.site.page import Page

RANGES = (7, 30)
"""Days, today included."""
NONE = {"requests": 0, "totalTokens": 0, "inputTokens": 0, "outputTokens": 0, "estimatedCost": 0.0}


async def models(page: Page) -> Response:
    asked = page.query("days", "7")
    days = int(asked) if asked in {str(one) for one in RANGES} else RANGES[0]
    end = datetime.fromtimestamp(page.site.now() / SECOND, UTC).date()
    start = end - timedelta(days=days - 1)
    usage = await page.get("/llm/usage", startDate=start.isoformat(), endDate=end.isoformat())
    return page.render(
        "models.html",
        block="usage",
        days=days,
        ranges=RANGES,
        usage=usage["data"],
        by_day=_filled(usage["data"]["byDay"], start, days),
        ordered=_ordered,
    )


def _filled(by_day: dict[str, Any], start: date, days: int) -> list[dict[str, Any]]:
    """Each day of the range, also those without a call."""
    every = [(start + timedelta(days=n)).isoformat() for n in range(days)]
    return [{"day": day, **by_day.get(day, NONE)} for day in every]


def _ordered(groups: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The most expensive first, then the one with most tokens."""
    rows = [{"name": name, **found} for name, found in groups.items()]
    return sorted(rows, key=lambda one: (-one["estimatedCost"], -one["totalTokens"], one["name"]))


ROUTES = [("GET", "/models", models)]
