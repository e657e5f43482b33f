"""The model pages: usage and cost of the last days, and the model providers with their budgets.

Providers have a page of their own because their state is requested live and may be slow.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from stentor.core.clock import DAY, SECOND
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.keys import store as key_store
from stentor.domains.llm import costs, queries
from stentor.domains.llm.formats.base import FORMATS
from stentor.domains.llm.queries import Spender
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.presenters.bars import Bar, rank
from stentor.surfaces.dashboard.site.page import PageRequest

DAY_RANGES = (7, 30, 90)
"""Days, including today."""
MAX_LISTED_MODELS = 300
"""Models per provider on a page."""
FORM_FIELDS = ("provider", "baseUrl", "default_model", "format")
"""Without the key, which is never sent back to the browser."""
NO_USAGE = {"requests": 0, "totalTokens": 0, "inputTokens": 0, "outputTokens": 0, "estimatedCost": 0.0}


async def show_models(page: PageRequest) -> Response:
    text = page.query_param("days", "7")
    days = int(text) if text in {str(day_range) for day_range in DAY_RANGES} else DAY_RANGES[0]
    end = datetime.fromtimestamp(page.site.now() / SECOND, UTC).date()
    start = end - timedelta(days=days - 1)
    usage = await page.call("llm.usage", startDate=start.isoformat(), endDate=end.isoformat())
    names, spenders = await asyncio.gather(page.read(registry_queries.read_names), _read_spenders(page, days))
    dates = [(start + timedelta(days=n)).isoformat() for n in range(days)]
    charts = {
        "provider": rank(_usage_bars(usage["byProvider"], "provider")),
        "model": rank(_usage_bars(usage["byModel"], "model")),
        **{kind: _spender_bars(kind, *spent, names) for kind, spent in spenders.items()},
    }
    return page.render(
        "models.html",
        block="usage",
        days=days,
        ranges=DAY_RANGES,
        usage=usage,
        by_day=[{"day": day, **usage["byDay"].get(day, NO_USAGE)} for day in dates],
        charts={kind: bars for kind, bars in charts.items() if bars},
        period={"from": start.isoformat(), "to": end.isoformat()},
    )


Spent = tuple[list[Spender], int, Spender]
"""Who spent most, how many spent something, and what they spent together."""


async def _read_spenders(page: PageRequest, days: int) -> dict[str, Spent]:
    """Return what keys and agents spent; nothing for users who may not see what others spend."""
    if not page.session.may("admin"):
        return {}
    first_day = page.site.now() // DAY - days + 1

    async def read(kind: str) -> Spent:
        spenders = await page.read(queries.read_spenders, kind, first_day)
        return spenders, *await page.read(queries.read_spent_by_all, kind, first_day)

    return dict(zip(("key", "agent"), await asyncio.gather(read("key"), read("agent")), strict=True))


def _usage_bars(groups: dict[str, JsonObject], kind: str) -> list[Bar]:
    return [
        Bar(name, usage["estimatedCost"], usage["totalTokens"], usage["requests"], _calls_of(kind, name))
        for name, usage in groups.items()
    ]


def _calls_of(kind: str, name: str) -> dict[str, str]:
    """Return the filter of the list of calls for a provider or for a model, whose name begins with its provider."""
    provider, _, model = name.partition("/")
    return {"provider": provider, "model": model} if kind == "model" else {"provider": name}


def _spender_bars(kind: str, spenders: list[Spender], count: int, total: Spender, names: dict[str, str]) -> list[Bar]:
    field = {"key": "key", "agent": "agent_id"}[kind]
    bars = [
        Bar(names.get(one.subject) or one.subject, one.dollars, one.tokens, None, {field: one.subject})
        for one in spenders
    ]
    return rank(bars, count, total.dollars, total.tokens)


async def show_providers(page: PageRequest) -> Response:
    """Render the current providers, their models, and the budgets."""
    return await _render_providers(page)


async def _render_providers(
    page: PageRequest, problem: GatewayError | None = None, form_values: dict[str, str] | None = None
) -> Response:
    """Render the page; after a rejected form with the error and the submitted values, but never with a key."""
    is_admin = page.session.may("admin")
    config, live_providers, models, registered, recent_calls, names = await asyncio.gather(
        page.call("llm.config"),
        page.call("llm.providers") if is_admin else _no_providers(),
        page.call("llm.models"),
        page.read(queries.read_registered_providers),
        page.read(queries.read_recent_calls, page.site.now()),
        page.read(registry_queries.read_names),
    )
    budgets = costs.parse_budgets([*config["budgets"], *await page.read(_list_key_budgets)])
    spending = await page.read(queries.read_spending, budgets, page.site.now())
    return page.render(
        "providers.html",
        problem.status if problem else 200,
        block="providers",
        config=config,
        providers=live_providers if is_admin else config["providers"],
        models=_group_by_provider(models),
        registered=registered,
        recent_calls=recent_calls,
        spending=[row for row in spending if is_admin or (row.kind, row.subject) == ("key", page.session.name)],
        names=names,
        problem=problem,
        form_values=form_values or dict.fromkeys(FORM_FIELDS, ""),
        formats=FORMATS,
        listed=MAX_LISTED_MODELS,
    )


def _list_key_budgets(tx: Tx, tenant: str) -> list[str]:
    """Return the budgets of the keys that were made at runtime, as entries of SERVICE_LLM_BUDGETS."""
    active = (key for key in key_store.list_keys(tx, tenant) if key.status_at(tx.now) == "active")
    return [entry for key in active for entry in key.budget_entries]


async def _no_providers() -> list[JsonObject]:
    return []


def _group_by_provider(models: list[JsonObject]) -> dict[str, list[JsonObject]]:
    groups: dict[str, list[JsonObject]] = {}
    for model in models:
        groups.setdefault(model["provider"], []).append(model)
    return groups


async def save_provider(page: PageRequest) -> Response:
    form = await page.read_form()
    values = {name: form.get(name, "") for name in FORM_FIELDS}
    optional = {"apiKey": form.get("apiKey", ""), "baseUrl": values["baseUrl"], "format": values["format"]}
    body: JsonObject = {"provider": values["provider"]}
    body |= {name: value for name, value in optional.items() if value}
    if values["default_model"]:
        body["options"] = {"default_model": values["default_model"]}
    try:
        await page.call("llm.set_provider", body=body)
    except GatewayError as error:
        if error.status not in (400, 409, 422):
            raise
        return await _render_providers(page, error, values)
    return page.redirect("/models/providers", "saved")


async def remove_provider(page: PageRequest) -> Response:
    await page.call("llm.remove_provider", name=page.path_param("name"))
    return page.redirect("/models/providers", "removed")


ROUTES = [
    ("GET", "/models", show_models),
    ("GET", "/models/providers", show_providers),
    ("POST", "/models/providers", save_provider),
    ("POST", "/models/providers/{name}/remove", remove_provider),
]
