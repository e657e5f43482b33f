"""Models and cost: what was used, by day, provider and model, in the last days.

Model providers as they are now: asked live, so apart from the page; added and removed by admins.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

from starlette.responses import Response

from stentor.core.clock import SECOND
from stentor.domains.llm import queries
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.site.page import PageRequest

DAY_RANGES = (7, 30)
"""Days, today included."""
NO_USAGE = {"requests": 0, "totalTokens": 0, "inputTokens": 0, "outputTokens": 0, "estimatedCost": 0.0}


async def show_models(page: PageRequest) -> Response:
    asked = page.query_param("days", "7")
    days = int(asked) if asked in {str(one) for one in DAY_RANGES} else DAY_RANGES[0]
    end = datetime.fromtimestamp(page.site.now() / SECOND, UTC).date()
    start = end - timedelta(days=days - 1)
    usage = await page.call("llm.usage", startDate=start.isoformat(), endDate=end.isoformat())
    return page.render(
        "models.html",
        block="usage",
        days=days,
        ranges=DAY_RANGES,
        usage=usage,
        by_day=_fill_days(usage["byDay"], start, days),
        ordered=_sort_by_cost,
    )


def _fill_days(by_day: dict[str, Any], start: date, days: int) -> list[dict[str, Any]]:
    """Each day of the range, also those without a call."""
    every = [(start + timedelta(days=n)).isoformat() for n in range(days)]
    return [{"day": day, **by_day.get(day, NO_USAGE)} for day in every]


def _sort_by_cost(groups: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The most expensive first, then the one with most tokens."""
    rows = [{"name": name, **found} for name, found in groups.items()]
    return sorted(rows, key=lambda one: (-one["estimatedCost"], -one["totalTokens"], one["name"]))


ROUTES = [("GET", "/models", show_models)]


API_FORMATS = ("openai", "anthropic", "gemini")
MAX_LISTED_MODELS = 300
"""Models of one provider that are shown."""


async def show_providers(page: PageRequest) -> Response:
    """The providers as they are now, their models, and the budgets."""
    return await _render_providers(page)


async def _render_providers(
    page: PageRequest, problem: GatewayError | None = None, given: dict[str, str] | None = None
) -> Response:
    """With the form again, when the gateway refused what it was given; never with a key."""
    admin = page.session.may("admin")
    config, found, offered, registered, lately, names = await asyncio.gather(
        page.call("llm.config"),
        page.call("llm.providers") if admin else _no_providers(),
        page.call("llm.models"),
        page.read(queries.read_registered_providers),
        page.read(queries.read_recent_calls, page.site.now()),
        page.read(registry_queries.read_names),
    )
    spending = await page.read(queries.read_spending, config["budgets"], page.site.now())
    return page.render(
        "providers.html",
        problem.status if problem else 200,
        block="providers",
        config=config,
        providers=found if admin else config["providers"],
        models=_group_by_provider(offered),
        registered=registered,
        lately=lately,
        spending=[one for one in spending if admin or (one.kind, one.subject) == ("key", page.session.name)],
        names=names,
        problem=problem,
        given=given or dict.fromkeys(("provider", "baseUrl", "default_model", "format"), ""),
        formats=API_FORMATS,
        listed=MAX_LISTED_MODELS,
    )


async def _no_providers() -> list[dict[str, Any]]:
    return []


def _group_by_provider(offered: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in offered:
        found.setdefault(one["provider"], []).append(one)
    return found


async def save_provider(page: PageRequest) -> Response:
    form = await page.read_form()
    given = {name: form.get(name, "") for name in ("provider", "baseUrl", "default_model", "format")}
    body: dict[str, Any] = {"provider": given["provider"], "apiKey": form.get("apiKey", "")}
    body |= {"baseUrl": given["baseUrl"], "format": given["format"]}
    body = {name: value for name, value in body.items() if value or name == "provider"}
    if given["default_model"]:
        body["options"] = {"default_model": given["default_model"]}
    try:
        await page.call("llm.set_provider", body=body)
    except GatewayError as refused:
        if refused.status not in (400, 409, 422):
            raise
        return await _render_providers(page, refused, given)
    return page.redirect("/models/providers", "saved")


async def remove_provider(page: PageRequest) -> Response:
    await page.call("llm.remove_provider", name=page.path_param("name"))
    return page.redirect("/models/providers", "removed")


PROVIDER_ROUTES = [
    ("GET", "/models/providers", show_providers),
    ("POST", "/models/providers", save_provider),
    ("POST", "/models/providers/{name}/remove", remove_provider),
]
