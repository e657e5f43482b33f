"""The page of the usage and cost of models in the last days. Budgets and providers have pages of their own."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
from starlette.responses import Response

from stentor.core.clock import DAY, SECOND
from stentor.core.jsontext import JsonObject
from stentor.domains.llm import queries
from stentor.domains.llm.queries import Spender
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.site.page import PageRequest

DAY_RANGES = (7, 30, 90)
"""Days, including today."""
MAX_BARS = 8
NO_USAGE = {"requests": 0, "totalTokens": 0, "inputTokens": 0, "outputTokens": 0, "estimatedCost": 0.0}


class CostBar(msgspec.Struct, frozen=True):
    """What a model, a key or an agent cost. `calls` is None if it is not known, `filter` selects its calls.

    `share` is the part of the total in percent, and the length of the bar.
    """

    name: str
    dollars: float
    tokens: int
    calls: int | None = None
    filter: dict[str, str] = {}
    share: float = 0


async def show_models(page: PageRequest) -> Response:
    text = page.query_param("days", "7")
    days = int(text) if text in {str(day_range) for day_range in DAY_RANGES} else DAY_RANGES[0]
    end = datetime.fromtimestamp(page.site.now() / SECOND, UTC).date()
    start = end - timedelta(days=days - 1)
    usage = await page.call("llm.usage", startDate=start.isoformat(), endDate=end.isoformat())
    names, spenders = await asyncio.gather(page.read(registry_queries.read_names), _read_spenders(page, days))
    dates = [start + timedelta(days=n) for n in range(days)]
    charts = {
        "provider": rank_bars(_usage_bars(usage["byProvider"], "provider")),
        "model": rank_bars(_usage_bars(usage["byModel"], "model")),
        **{kind: _spender_bars(kind, *spent, names) for kind, spent in spenders.items()},
    }
    return page.render(
        "models.html",
        block="usage",
        days=days,
        ranges=DAY_RANGES,
        usage=usage,
        by_day=[
            {"day": day.isoformat(), "label": f"{day.day} {day:%b}", **usage["byDay"].get(day.isoformat(), NO_USAGE)}
            for day in dates
        ],
        charts={kind: bars for kind, bars in charts.items() if bars},
        period={"from": start.isoformat(), "to": end.isoformat()},
    )


Spent = tuple[list[Spender], int, Spender]
"""Who spent most, how many spent something, and what they spent together."""


async def _read_spenders(page: PageRequest, days: int) -> dict[str, Spent]:
    """Return what keys, teams and agents spent; nothing for users who may not see what others spend."""
    if not page.session.may("admin"):
        return {}
    first_day = page.site.now() // DAY - days + 1

    async def read(kind: str) -> Spent:
        spenders = await page.read(queries.read_spenders, kind, first_day)
        return spenders, *await page.read(queries.read_spent_by_all, kind, first_day)

    kinds = ("team", "key", "agent")
    return dict(zip(kinds, await asyncio.gather(*map(read, kinds)), strict=True))


def _usage_bars(groups: dict[str, JsonObject], kind: str) -> list[CostBar]:
    return [
        CostBar(name, usage["estimatedCost"], usage["totalTokens"], usage["requests"], _calls_of(kind, name))
        for name, usage in groups.items()
    ]


def _calls_of(kind: str, name: str) -> dict[str, str]:
    """Return the filter of the list of calls for a provider or for a model, whose name begins with its provider."""
    provider, _, model = name.partition("/")
    return {"provider": provider, "model": model} if kind == "model" else {"provider": name}


def _spender_bars(
    kind: str, spenders: list[Spender], count: int, total: Spender, names: dict[str, str]
) -> list[CostBar]:
    field = "agent_id" if kind == "agent" else kind
    bars = [
        CostBar(names.get(one.subject) or one.subject, one.dollars, one.tokens, None, {field: one.subject})
        for one in spenders
    ]
    return rank_bars(bars, count, total.dollars, total.tokens)


def rank_bars(
    bars: list[CostBar], count: int | None = None, dollars: float | None = None, tokens: int | None = None
) -> list[CostBar]:
    """Return the largest bars by cost, then by tokens, and a last one for the others.

    `count`, `dollars` and `tokens` are those of all, if `bars` are not all. Where nothing has a price, tokens make the
    length.
    """
    bars = sorted(bars, key=lambda bar: (-bar.dollars, -bar.tokens, bar.name))
    total = CostBar(
        "",
        sum(bar.dollars for bar in bars) if dollars is None else dollars,
        sum(bar.tokens for bar in bars) if tokens is None else tokens,
    )
    shown, omitted = bars[:MAX_BARS], (len(bars) if count is None else count) - MAX_BARS
    if omitted > 0:
        calls = None if any(bar.calls is None for bar in bars) else sum(bar.calls or 0 for bar in bars[MAX_BARS:])
        # Sums of floats: the difference may be a little below zero.
        rest_dollars = max(0.0, total.dollars - sum(bar.dollars for bar in shown))
        rest_tokens = max(0, total.tokens - sum(bar.tokens for bar in shown))
        shown = [*shown, CostBar(f"{omitted} other{'s' if omitted > 1 else ''}", rest_dollars, rest_tokens, calls)]

    def size(bar: CostBar) -> float:
        return bar.dollars if total.dollars else bar.tokens

    whole = size(total) or 1
    return [msgspec.structs.replace(bar, share=100 * size(bar) / whole) for bar in shown]


ROUTES = [("GET", "/models", show_models)]
