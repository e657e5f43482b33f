"""What a key or an agent may spend in a day or a month, in tokens or in money. Pure. Fails closed.

Source: docs/decisions, "LLM gateway".

What a call costs: the operator's own prices, else those of the package genai-prices, which needs no network.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import msgspec

from stentor.core.clock import DAY, SECOND
from stentor.core.errors import StartRefused
from stentor.domains.llm.model import TokenUsage

BudgetKind = Literal["key", "agent"]
NANOS_PER_DOLLAR = 1_000_000_000
"""Money is counted in billionths of a US dollar, as integers."""
_BUDGET_PATTERN = re.compile(r"(key|agent):([^=]+):(tokens|usd)/(day|month)=(\d+(?:\.\d+)?)")


class SpentAmount(msgspec.Struct, frozen=True):
    """Tokens, and billionths of a dollar."""

    tokens: int = 0
    cost: int = 0


class Budget(msgspec.Struct, frozen=True):
    """`subject` is the name of a key, the id of an agent, or `*` for each of them."""

    kind: BudgetKind
    subject: str
    unit: str
    period: str
    limit: int

    def applies_to(self, kind: BudgetKind, subject: str) -> bool:
        return self.kind == kind and self.subject in ("*", subject)

    def remaining(self, spent: SpentAmount) -> int:
        return self.limit - (spent.tokens if self.unit == "tokens" else spent.cost)


def parse_budgets(entries: Sequence[str]) -> tuple[Budget, ...]:
    """Of SERVICE_LLM_BUDGETS: `key:*:tokens/day=100000`. Raises StartRefused."""
    found = []
    for entry in entries:
        match = _BUDGET_PATTERN.fullmatch(entry)
        if match is None:
            raise StartRefused(
                f"SERVICE_LLM_BUDGETS has the entry {entry!r}, which is not of the form key:NAME:tokens/day=100000 "
                "or agent:ID:usd/month=20 (the name may be *)."
            )
        kind, subject, unit, period, limit = match.groups()
        amount = round(float(limit) * (NANOS_PER_DOLLAR if unit == "usd" else 1))
        found.append(Budget("key" if kind == "key" else "agent", subject, unit, period, amount))
    return tuple(found)


def first_day_of_period(period: str, now: int) -> int:
    """The number of the day, since 1970, that the present period began with; UTC."""
    today = now // DAY
    return today if period == "day" else today - (datetime.fromtimestamp(now / SECOND, UTC).day - 1)


def seconds_until_reset(period: str, now: int) -> int:
    """Until the period ends; UTC."""
    if period == "day":
        return (DAY - now % DAY) // SECOND + 1
    moment = datetime.fromtimestamp(now / SECOND, UTC)
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return int((datetime(year, month, 1, tzinfo=UTC) - moment).total_seconds()) + 1


_PRICE_PATTERN = re.compile(r"([^=]+)=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")
_PACKAGE_PROVIDER_NAMES = {"gemini": "google"}
"""The package's name where ours is another."""
_FREE_PROVIDERS = frozenset(("ollama", "local"))
MILLION = 1_000_000


class ModelPrice(msgspec.Struct, frozen=True):
    """US dollars per million tokens, and what the model takes and gives at most."""

    input: float | None = None
    output: float | None = None
    context_window: int | None = None
    max_output: int | None = None


class PriceList:
    """`own` entries: `provider/model=IN/OUT` in US dollars per million tokens; the model may be `*`."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        """Raises StartRefused for an entry that cannot be read."""
        self._ready = False
        self._own: dict[str, ModelPrice] = {}
        for entry in own:
            match = _PRICE_PATTERN.fullmatch(entry)
            if match is None:
                raise StartRefused(
                    f"SERVICE_LLM_PRICES has the entry {entry!r}, which is not of the form provider/model=IN/OUT."
                )
            self._own[match[1].strip()] = ModelPrice(float(match[2]), float(match[3]))

    async def load(self) -> None:
        """Read the package's data, which takes a third of a second, beside the event loop."""
        if not self._ready:
            await asyncio.to_thread(_package_price, "openai", "")
            self._ready = True

    def cost_nanos(self, provider: str, model: str, usage: TokenUsage) -> int | None:
        """In billionths of a dollar; None when nobody knows the price."""
        own = self._of_operator(provider, model)
        if own is not None:
            dollars = ((own.input or 0) * usage.input_tokens + (own.output or 0) * usage.output_tokens) / MILLION
            return round(dollars * NANOS_PER_DOLLAR)
        return 0 if provider in _FREE_PROVIDERS else _package_cost(provider, model, usage)

    def price_of(self, provider: str, model: str) -> ModelPrice:
        own = self._of_operator(provider, model)
        known = _package_price(provider, model)
        if own is not None:
            return msgspec.structs.replace(known, input=own.input, output=own.output)
        return msgspec.structs.replace(known, input=0.0, output=0.0) if provider in _FREE_PROVIDERS else known

    def _of_operator(self, provider: str, model: str) -> ModelPrice | None:
        return self._own.get(f"{provider}/{model}") or self._own.get(f"{provider}/*")


def _package_cost(provider: str, model: str, usage: TokenUsage) -> int | None:
    from genai_prices import Usage as Counted

    known = _find_in_package(provider, model)
    if known is None:
        return None
    counted = Counted(
        input_tokens=usage.input_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.input_tokens) or None,
        output_tokens=usage.output_tokens,
    )
    try:
        dollars: Decimal = known[1].calc_price(counted, known[0]).total_price
    except (LookupError, ValueError):
        return None
    return round(dollars * NANOS_PER_DOLLAR)


def _package_price(provider: str, model: str) -> ModelPrice:
    known = _find_in_package(provider, model)
    if known is None:
        return ModelPrice()
    prices = known[1].get_prices(datetime.now(UTC))
    return ModelPrice(_lowest_step(prices.input_mtok), _lowest_step(prices.output_mtok), known[1].context_window)


@lru_cache(4096)
def _find_in_package(provider: str, model: str) -> Any:
    """The package's provider and model; it looks through all of them, name by name."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, _PACKAGE_PROVIDER_NAMES.get(provider, provider), None)
    except (LookupError, ValueError):
        return None


def _lowest_step(price: Any) -> float | None:
    """A price that rises with the length of the input is told by its lowest step."""
    return None if price is None else float(getattr(price, "base", price))
