"""What metrics tell of calls of providers: this process's, since its start.

A provider that a tenant registered has no label of its own: its name is the tenant's, and there may be many.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core.errors import BudgetExceeded, ProviderUnreachable
from stentor.core.metrics import (
    LONG_BUCKETS_S,
    LabeledCounter,
    LabeledHistogram,
    gauge_family,
    labeled_counter_family,
    labeled_histogram_family,
)
from stentor.domains.llm.breaker import Breaker
from stentor.domains.llm.budgets import NANO
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.store import CallRow

LABELS = ("provider", "outcome")
REGISTERED = "registered"
"""The label of all providers that tenants registered."""
BUDGET, RESTING = "budget", "resting"


class Calls:
    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._times = LabeledHistogram(LONG_BUCKETS_S)
        self._tokens, self._costs = LabeledCounter(), LabeledCounter()
        self._refused = LabeledCounter((BUDGET,), (RESTING,))

    def refused(self, error: BudgetExceeded | ProviderUnreachable) -> None:
        """A call was not let through to its provider."""
        self._refused.increment(BUDGET if isinstance(error, BudgetExceeded) else RESTING)

    def ended(self, provider: Provider, call: CallRow) -> None:
        """A call went to its provider, and ended like this."""
        labels = provider.name if provider.operator else REGISTERED, call.outcome
        self._times.labels(*labels).observe(call.latency_ms / 1000)
        self._tokens.increment(*labels, "input", n=call.input_tokens)
        self._tokens.increment(*labels, "output", n=call.output_tokens)
        self._costs.increment(*labels, n=(call.cost or 0) / NANO)

    def figures(self) -> Iterable[Metric]:
        text = "Time of a call of a provider, with its retries, by outcome: ok or the code of the error."
        yield labeled_histogram_family("stentor_llm_call_duration_seconds", text, LABELS, self._times.items())
        text = "Tokens of calls, as the provider counted or else estimated."
        yield labeled_counter_family("stentor_llm_tokens", text, (*LABELS, "kind"), self._tokens.snapshot())
        text = "What calls cost in US dollars, where the price is known."
        yield labeled_counter_family("stentor_llm_cost_dollars", text, LABELS, self._costs.snapshot())
        text = "Calls that were not let through: a budget is spent, or the provider rests after failures."
        yield labeled_counter_family("stentor_llm_refusals", text, ("reason",), self._refused.snapshot())
        text = "Providers that are left alone for a while after several failures."
        yield gauge_family("stentor_llm_providers_resting", text, self._breaker.resting())
