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
from stentor.domains.llm.costs import NANOS_PER_DOLLAR
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.failures import CircuitBreaker
from stentor.domains.llm.store import CallRow

LABELS = ("provider", "outcome")
REGISTERED_LABEL = "registered"
"""The label of all providers that tenants registered."""
BUDGET_EXCEEDED, CIRCUIT_OPEN = "budget", "resting"


class CallMetrics:
    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._times = LabeledHistogram(LONG_BUCKETS_S)
        self._tokens, self._costs = LabeledCounter(), LabeledCounter()
        self._refused = LabeledCounter((BUDGET_EXCEEDED,), (CIRCUIT_OPEN,))

    def count_rejected(self, error: BudgetExceeded | ProviderUnreachable) -> None:
        """A call was not let through to its provider."""
        self._refused.increment(BUDGET_EXCEEDED if isinstance(error, BudgetExceeded) else CIRCUIT_OPEN)

    def record_call(self, provider: Provider, call: CallRow) -> None:
        """A call went to its provider, and ended like this."""
        labels = provider.name if provider.is_operator_owned else REGISTERED_LABEL, call.outcome
        self._times.labels(*labels).observe(call.latency_ms / 1000)
        self._tokens.increment(*labels, "input", n=call.input_tokens)
        self._tokens.increment(*labels, "output", n=call.output_tokens)
        self._costs.increment(*labels, n=(call.cost or 0) / NANOS_PER_DOLLAR)

    def collect_metrics(self) -> Iterable[Metric]:
        text = "Time of a call of a provider, with its retries, by outcome: ok or the code of the error."
        yield labeled_histogram_family("stentor_llm_call_duration_seconds", text, LABELS, self._times.items())
        text = "Tokens of calls, as the provider counted or else estimated."
        yield labeled_counter_family("stentor_llm_tokens", text, (*LABELS, "kind"), self._tokens.snapshot())
        text = "What calls cost in US dollars, where the price is known."
        yield labeled_counter_family("stentor_llm_cost_dollars", text, LABELS, self._costs.snapshot())
        text = "Calls that were not let through: a budget is spent, or the provider rests after failures."
        yield labeled_counter_family("stentor_llm_refusals", text, ("reason",), self._refused.snapshot())
        text = "Providers that are left alone for a while after several failures."
        yield gauge_family("stentor_llm_providers_resting", text, self._breaker.count_open())
