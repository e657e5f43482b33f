"""What a call costs: the operator's own prices, else those of the package genai-prices, which needs no network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from stentor.core.errors import StartRefused
from stentor.domains.llm.budgets import NANO
from stentor.domains.llm.model import Usage

_FORM = re.compile(r"([^=]+)=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")
_PROVIDERS = {"gemini": "google"}
"""The package's name where ours is another."""
_FREE = frozenset(("ollama", "local"))
MILLION = 1_000_000


class Price(msgspec.Struct, frozen=True):
    """US dollars per million tokens, and what the model takes and gives at most."""

    input: float | None = None
    output: float | None = None
    context_window: int | None = None
    max_output: int | None = None


class Prices:
    """`own` entries: `provider/model=IN/OUT` in US dollars per million tokens; the model may be `*`."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        """Raises StartRefused for an entry that cannot be read."""
        self._ready = False
        self._own: dict[str, Price] = {}
        for entry in own:
            match = _FORM.fullmatch(entry)
            if match is None:
                raise StartRefused(
                    f"SERVICE_LLM_PRICES has the entry {entry!r}, which is not of the form provider/model=IN/OUT."
                )
            self._own[match[1].strip()] = Price(float(match[2]), float(match[3]))

    async def ready(self) -> None:
        """Read the package's data, which takes a third of a second, beside the event loop."""
        if not self._ready:
            await asyncio.to_thread(_packaged, "openai", "")
            self._ready = True

    def cost(self, provider: str, model: str, usage: Usage) -> int | None:
        """In billionths of a dollar; None when nobody knows the price."""
        own = self._of_operator(provider, model)
        if own is not None:
            dollars = ((own.input or 0) * usage.input_tokens + (own.output or 0) * usage.output_tokens) / MILLION
            return round(dollars * NANO)
        return 0 if provider in _FREE else _packaged_cost(provider, model, usage)

    def of(self, provider: str, model: str) -> Price:
        own = self._of_operator(provider, model)
        known = _packaged(provider, model)
        if own is not None:
            return msgspec.structs.replace(known, input=own.input, output=own.output)
        return msgspec.structs.replace(known, input=0.0, output=0.0) if provider in _FREE else known

    def _of_operator(self, provider: str, model: str) -> Price | None:
        return self._own.get(f"{provider}/{model}") or self._own.get(f"{provider}/*")


def _packaged_cost(provider: str, model: str, usage: Usage) -> int | None:
    from genai_prices import Usage as Counted

    known = _found(provider, model)
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
    return round(dollars * NANO)


def _packaged(provider: str, model: str) -> Price:
    known = _found(provider, model)
    if known is None:
        return Price()
    prices = known[1].get_prices(datetime.now(UTC))
    return Price(_base(prices.input_mtok), _base(prices.output_mtok), known[1].context_window)


@lru_cache(4096)
def _found(provider: str, model: str) -> Any:
    """The package's provider and model; it looks through all of them, name by name."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, _PROVIDERS.get(provider, provider), None)
    except (LookupError, ValueError):
        return None


def _base(price: Any) -> float | None:
    """A price that rises with the length of the input is told by its lowest step."""
    return None if price is None else float(getattr(price, "base", price))
