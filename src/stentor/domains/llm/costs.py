"""Budgets per day or month, and prices of models. Pure; `calls.budget_ledger` enforces the budgets.

Prices come from the operator's settings, else from the package genai-prices, which needs no network. Source:
docs/decisions/0012-llm-gateway.md.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stentor.core.clock import DAY, SECOND
from stentor.core.errors import StartRefused
from stentor.core.lazy_import import lazy_module
from stentor.core.validation.text_checks import NAME_PATTERN
from stentor.domains.llm.model import TokenUsage

if TYPE_CHECKING:
    import genai_prices
    from genai_prices.types import ModelInfo as PackageModel
    from genai_prices.types import ModelPrice as PackagePrices
    from genai_prices.types import Provider as PackageProvider
else:
    genai_prices = lazy_module("genai_prices")  # the package's data would slow down every start

BudgetKind = Literal["key", "agent", "team", "tenant"]
BudgetUnit = Literal["tokens", "usd"]
BudgetPeriod = Literal["day", "month"]
BudgetSource = Literal["settings", "key", "api"]
"""Where a budget was set: in SERVICE_LLM_BUDGETS, with a key that was made at runtime, or as a budget of its own."""
BudgetAccount = tuple[str, BudgetKind | Literal["task"], str]
"""Tenant, kind and subject: whose spending is counted together."""
FindTeam = Callable[[str, str], str]
"""Returns the team of a key or person by tenant and name; empty for none."""
NANOS_PER_DOLLAR = 1_000_000_000
"""Costs are integers in billionths of a US dollar."""
MILLION = 1_000_000
_BUDGET_PATTERN = re.compile(r"(key|agent|team|tenant):([^=]+):(tokens|usd)/(day|month)=(\d+(?:\.\d+)?)")
_PRICE_PATTERN = re.compile(r"([^=*/]+/(?:\*|[^=*]+))=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")
_PACKAGE_PROVIDER_NAMES = {"gemini": "google"}
"""Providers that have another name in the package than here."""
_FREE_PROVIDERS = frozenset(("ollama", "local"))


def format_dollars(dollars: float) -> str:
    """Format as `$1,234.50`, `$0.50` or, below a dollar with parts of a cent, `$0.0034`.

    Below that two digits are significant, as `$0.000012`.
    """
    if 0 < dollars < 0.0001:
        return f"${Decimal(f'{dollars:.2g}'):f}"
    is_whole_cents = dollars == 0 or (dollars >= 0.01 and f"{dollars:.4f}".endswith("00"))
    return f"${dollars:,.2f}" if dollars >= 1 or is_whole_cents else f"${dollars:.4f}"


class SpentAmount(msgspec.Struct, frozen=True):
    """An amount of tokens and of cost in billionths of a US dollar."""

    tokens: int = 0
    cost: int = 0

    def plus(self, other: SpentAmount) -> SpentAmount:
        return SpentAmount(self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, other: SpentAmount) -> SpentAmount:
        return SpentAmount(self.tokens - other.tokens, self.cost - other.cost)


class Budget(msgspec.Struct, frozen=True):
    """A limit per day or month. `subject` is the name of a key, the id of an agent, a team, a tenant, or `*` for each.

    `limit` is in tokens or billionths of a US dollar (`unit`). `tenant` None means all. `set_at` is in microseconds.
    """

    kind: BudgetKind
    subject: str
    unit: BudgetUnit
    period: BudgetPeriod
    limit: int
    source: BudgetSource = "settings"
    tenant: str | None = None
    set_by: str | None = None
    set_at: int | None = None

    @property
    def budget_id(self) -> str:
        return budget_id(self.kind, self.subject, self.unit, self.period)

    def applies_to(self, account: BudgetAccount) -> bool:
        tenant, kind, subject = account
        return self.kind == kind and self.subject in ("*", subject) and self.tenant in (None, tenant)

    def concerns(self, tenant: str) -> bool:
        """Return whether the budget may apply to calls of a tenant."""
        return self.tenant in (None, tenant) and (self.kind != "tenant" or self.subject in ("*", tenant))

    def remaining(self, spent: SpentAmount) -> int:
        return self.limit - (spent.tokens if self.unit == "tokens" else spent.cost)


class TaskBudget(msgspec.Struct, frozen=True):
    """What the model calls of a task and of all its subtasks may cost together, in US dollars."""

    task_id: str
    max_cost_usd: float

    @property
    def unit(self) -> BudgetUnit:
        return "usd"

    def applies_to(self, account: BudgetAccount) -> bool:
        return account[1:] == ("task", self.task_id)

    def remaining(self, spent: SpentAmount) -> int:
        return scale_limit("usd", self.max_cost_usd) - spent.cost


def parse_budgets(
    entries: Sequence[str], source: BudgetSource = "settings", tenant: str | None = None
) -> tuple[Budget, ...]:
    """Parse entries like those of SERVICE_LLM_BUDGETS, such as `key:*:tokens/day=100000`. Raises StartRefused."""
    budgets = []
    for entry in entries:
        match = _BUDGET_PATTERN.fullmatch(entry)
        if match is None or not is_possible_subject(match[1], match[2]):
            raise StartRefused(
                f"SERVICE_LLM_BUDGETS: {entry!r} is invalid; expected key:NAME:tokens/day=100000, "
                "agent:ID:usd/month=20, team:NAME:usd/month=50 or tenant:NAME:usd/month=200 (the name may be *; teams "
                "have names of a-z, 0-9, _, - and .)."
            )
        kind, subject, unit, period, limit = match.groups()
        budget = Budget(kind, subject, unit, period, scale_limit(unit, float(limit)), source, tenant)  # pyrefly: ignore[bad-argument-type] - the pattern admits only these words
        budgets.append(budget)
    return tuple(budgets)


def is_possible_subject(kind: str, subject: str) -> bool:
    """Return False for the name of a team that no team can have: its budget would limit nothing."""
    return kind != "team" or subject == "*" or re.fullmatch(NAME_PATTERN, subject) is not None


def budget_id(kind: str, subject: str, unit: str, period: str) -> str:
    """Return the id of a budget, such as `key:ci:usd:month`. Without a slash, because it is a part of a path."""
    return f"{kind}:{subject}:{unit}:{period}"


def scale_limit(unit: str, limit: float) -> int:
    """Return a limit in tokens or US dollars as tokens or billionths of a US dollar."""
    return round(limit * unit_scale(unit))


def unit_scale(unit: str) -> int:
    """Return how many stored units a token or a US dollar has."""
    return NANOS_PER_DOLLAR if unit == "usd" else 1


def first_day_of_period(period: str, now: int) -> int:
    """Return the first day of the current period, as a count of days since 1970 in UTC."""
    today = now // DAY
    return today if period == "day" else today - (datetime.fromtimestamp(now / SECOND, UTC).day - 1)


def seconds_until_reset(period: str, now: int) -> int:
    """Return the seconds until the current period ends, in UTC."""
    if period == "day":
        # Rounded up: a client that retries after exactly this time must be in the next period.
        return (DAY - now % DAY) // SECOND + 1
    moment = datetime.fromtimestamp(now / SECOND, UTC)
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return int((datetime(year, month, 1, tzinfo=UTC) - moment).total_seconds()) + 1


class ModelPrice(msgspec.Struct, frozen=True):
    """The price of a model in US dollars per million tokens, and its limits in tokens; None if unknown."""

    input: float | None = None
    output: float | None = None
    context_window: int | None = None
    max_output: int | None = None


class PriceList:
    """Prices of models. The operator's entries, `provider/model=IN/OUT` in US dollars per million tokens, win.

    The model of an entry may be `*`.
    """

    def __init__(self, entries: Sequence[str] = ()) -> None:
        """Parse the operator's entries. Raises StartRefused."""
        self.is_loaded = False
        self._operator_prices: dict[str, ModelPrice] = {}
        for entry in entries:
            match = _PRICE_PATTERN.fullmatch(entry)
            if match is None:
                raise StartRefused(f"SERVICE_LLM_PRICES: {entry!r} is not provider/model=IN/OUT or provider/*=IN/OUT.")
            self._operator_prices[match[1].strip()] = ModelPrice(float(match[2]), float(match[3]))

    async def load(self) -> None:
        """Load the package's data in a thread: it takes a third of a second, which would block the event loop."""
        await asyncio.to_thread(_package_price, "openai", "")
        self.is_loaded = True

    def cost_nanos(self, provider: str, model: str, usage: TokenUsage) -> int | None:
        """Return the cost of a call in billionths of a US dollar; None if the price is unknown."""
        price = self._operator_price(provider, model)
        if price is not None:
            dollars = ((price.input or 0) * usage.input_tokens + (price.output or 0) * usage.output_tokens) / MILLION
            return round(dollars * NANOS_PER_DOLLAR)
        # After the operator's price: who runs Ollama on paid hardware may set one.
        return 0 if provider in _FREE_PROVIDERS else _package_cost(provider, model, usage)

    def price_of(self, provider: str, model: str) -> ModelPrice:
        """Return the price and limits of a model; the limits are always those of the package."""
        package_price = _package_price(provider, model)
        price = self._operator_price(provider, model)
        if price is not None:
            return msgspec.structs.replace(package_price, input=price.input, output=price.output)
        if provider in _FREE_PROVIDERS:
            return msgspec.structs.replace(package_price, input=0.0, output=0.0)
        return package_price

    def _operator_price(self, provider: str, model: str) -> ModelPrice | None:
        return self._operator_prices.get(f"{provider}/{model}") or self._operator_prices.get(f"{provider}/*")


def _package_cost(provider: str, model: str, usage: TokenUsage) -> int | None:
    match = _find_in_package(provider, model)
    if match is None:
        return None
    prices = match[1].get_prices(datetime.now(UTC))
    # By identity: the package makes the prices of a model once, and they cannot be hashed.
    rates = _rates_by_prices.get(id(prices))
    if rates is None:
        rates = _rates_by_prices[id(prices)] = PackageRates(prices)
    return rates.cost_nanos(usage)


class _TokenRates(msgspec.Struct, frozen=True):
    """What a request costs and each of its tokens, in billionths of a US dollar."""

    request: Decimal
    input: Decimal
    cached: Decimal
    written: Decimal
    written_1h: Decimal
    """What a token that is written for an hour costs more than another written one."""
    output: Decimal
    audio_input: Decimal
    """What a token of sound costs more than one of text, as `audio_output`."""
    audio_output: Decimal


class PackageRates:
    """The cost of a call as the package computes it, without asking the package each time: that takes 0.1 ms.

    Its cost is a price of the request and one of each token, and other prices above some numbers of input tokens. So it
    is asked once for each of these prices.
    """

    def __init__(self, prices: PackagePrices) -> None:
        self._prices = prices
        tiers = {tier.start for price in vars(prices).values() for tier in getattr(price, "tiers", ())}
        self._starts = sorted(tiers)
        self._by_tier: dict[int, _TokenRates | None] = {}

    def cost_nanos(self, usage: TokenUsage) -> int | None:
        """Return the cost in billionths of a US dollar; None if the package cannot tell it."""
        # The prices of a tier apply above its start, not at it.
        tier = bisect_left(self._starts, usage.input_tokens)
        if tier not in self._by_tier:
            self._by_tier[tier] = self._find_rates(tier)
        rates = self._by_tier[tier]
        if rates is None:
            return None
        # A provider may report more cached than input tokens, for which the package has no price.
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.written_tokens, usage.input_tokens - cached)
        plain = usage.input_tokens - cached - written
        inputs = rates.input * plain + rates.cached * cached + rates.written * written
        inputs += rates.written_1h * min(usage.written_1h_tokens, written)
        sound = rates.audio_input * usage.audio_input_tokens + rates.audio_output * usage.audio_output_tokens
        return max(0, round(rates.request + inputs + rates.output * usage.output_tokens + sound))

    def _find_rates(self, tier: int) -> _TokenRates | None:
        tokens = self._starts[tier - 1] + 1 if tier else 0
        try:
            none, output = self._ask(tokens), self._ask(tokens, 1)
            plain = self._ask(tokens + 1)
            cached = self._ask(tokens + 1, cache_read_tokens=1)
            written = self._ask(tokens + 1, cache_write_tokens=1)
            written_1h = self._ask(tokens + 1, cache_write_tokens=1, cache_write_1h_tokens=1)
            audio_input = self._ask(tokens + 1, input_audio_tokens=1)
            audio_output = self._ask(tokens, 1, output_audio_tokens=1)
        except (LookupError, ValueError):
            return None
        each = plain - none
        return _TokenRates(
            none - each * tokens,
            each,
            cached - none,
            written - none,
            written_1h - written,
            output - none,
            audio_input - plain,
            audio_output - output,
        )

    def _ask(self, tokens: int, output: int = 0, **parts: int) -> Decimal:
        usage = genai_prices.Usage(input_tokens=tokens, output_tokens=output, **parts)
        dollars: Decimal = self._prices.calc_price(usage)["total_price"]
        return dollars * NANOS_PER_DOLLAR


_rates_by_prices: dict[int, PackageRates] = {}


def _package_price(provider: str, model: str) -> ModelPrice:
    match = _find_in_package(provider, model)
    if match is None:
        return ModelPrice()
    _, package_model = match
    prices = package_model.get_prices(datetime.now(UTC))
    return ModelPrice(_lowest_tier(prices.input_mtok), _lowest_tier(prices.output_mtok), package_model.context_window)


@lru_cache(4096)
def _find_in_package(provider: str, model: str) -> tuple[PackageProvider, PackageModel] | None:
    """Return the package's provider and model, None if unknown. Cached because the package searches linearly."""
    # Imported on first use, as above.
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, _PACKAGE_PROVIDER_NAMES.get(provider, provider), None)
    except (LookupError, ValueError):
        return None


def _lowest_tier(price: Any) -> float | None:
    """Return a price; of one that rises with the length of the input, the lowest tier."""
    return None if price is None else float(getattr(price, "base", price))
