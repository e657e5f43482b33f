"""What metrics tell of calls of providers: this process's, since its start.

A provider that a tenant registered has no label of its own: its name is the tenant's, and there may be many.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core.errors import BudgetExceeded, ProviderUnreachable
from stentor.core.metrics import (
    LONG_BUCKETS_S,
    create_counter,
    create_histogram,
    gauge_family,
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
        text = "Time of a call of a provider, with its retries, by outcome: ok or the code of the error."
        self._times = create_histogram("stentor_llm_call_duration_seconds", text, LONG_BUCKETS_S, *LABELS)
        text = "Tokens of calls, as the provider counted or else estimated."
        self._tokens = create_counter("stentor_llm_tokens", text, *LABELS, "kind")
        text = "What calls cost in US dollars, where the price is known."
        self._costs = create_counter("stentor_llm_cost_dollars", text, *LABELS)
        text = "Calls that were not let through: a budget is spent, or the provider rests after failures."
        reasons = (BUDGET_EXCEEDED,), (CIRCUIT_OPEN,)
        self._refused = create_counter("stentor_llm_refusals", text, "reason", known=reasons)

    def count_rejected(self, error: BudgetExceeded | ProviderUnreachable) -> None:
        """A call was not let through to its provider."""
        self._refused.labels(BUDGET_EXCEEDED if isinstance(error, BudgetExceeded) else CIRCUIT_OPEN).inc()

    def record_call(self, provider: Provider, call: CallRow) -> None:
        """A call went to its provider, and ended like this."""
        labels = provider.name if provider.is_operator_owned else REGISTERED_LABEL, call.outcome
        self._times.labels(*labels).observe(call.latency_ms / 1000)
        self._tokens.labels(*labels, "input").inc(call.input_tokens)
        self._tokens.labels(*labels, "output").inc(call.output_tokens)
        self._costs.labels(*labels).inc((call.cost or 0) / NANOS_PER_DOLLAR)

    def collect_metrics(self) -> Iterable[Metric]:
        for metric in (self._times, self._tokens, self._costs, self._refused):
            yield from metric.collect()
        text = "Providers that are left alone for a while after several failures."
        yield gauge_family("stentor_llm_providers_resting", text, self._breaker.count_open())
