"""Metrics of provider calls in this process: duration, tokens, cost, rejections and open circuits.

Providers that tenants registered share one label: their names belong to the tenants, and there may be many.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Histogram
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
"""The provider label of all providers that tenants registered."""
BUDGET_EXCEEDED, CIRCUIT_OPEN = "budget", "resting"


class CallMetrics:
    """Counters of provider calls."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        text = "Duration of provider calls including retries, by outcome: ok or the error code."
        self._durations = create_histogram("stentor_llm_call_duration_seconds", text, LONG_BUCKETS_S, *LABELS)
        text = "Tokens of provider calls, reported by the provider or else estimated."
        self._tokens = create_counter("stentor_llm_tokens", text, *LABELS, "kind")
        text = "Cost of provider calls in US dollars, where the price is known."
        self._costs = create_counter("stentor_llm_cost_dollars", text, *LABELS)
        text = "Calls rejected before they reached a provider: budget exceeded or circuit open."
        reasons = (BUDGET_EXCEEDED,), (CIRCUIT_OPEN,)
        self._series: dict[tuple[str, str], tuple[Histogram, Counter, Counter, Counter]] = {}
        self._rejected = create_counter("stentor_llm_refusals", text, "reason", known=reasons)

    def count_rejected(self, error: BudgetExceeded | ProviderUnreachable) -> None:
        """Count a call that was rejected before it reached its provider."""
        self._rejected.labels(BUDGET_EXCEEDED if isinstance(error, BudgetExceeded) else CIRCUIT_OPEN).inc()

    def record_call(self, provider: Provider, call: CallRow) -> None:
        """Record the duration, tokens and cost of an ended call."""
        labels = provider.name if provider.is_operator_owned else REGISTERED_LABEL, call.outcome
        durations, input_tokens, output_tokens, costs = self._series.get(labels) or self._find_series(labels)
        durations.observe(call.latency_ms / 1000)
        input_tokens.inc(call.input_tokens)
        output_tokens.inc(call.output_tokens)
        costs.inc((call.cost or 0) / NANOS_PER_DOLLAR)

    def _find_series(self, labels: tuple[str, str]) -> tuple[Histogram, Counter, Counter, Counter]:
        # Kept: the library looks each one up under a lock, which takes longer than the counting.
        series = self._series[labels] = (
            self._durations.labels(*labels),
            self._tokens.labels(*labels, "input"),
            self._tokens.labels(*labels, "output"),
            self._costs.labels(*labels),
        )
        return series

    def collect_metrics(self) -> Iterable[Metric]:
        """Yield the metrics for the Prometheus endpoint."""
        for metric in (self._durations, self._tokens, self._costs, self._rejected):
            yield from metric.collect()
        text = "Providers whose circuit is open."
        yield gauge_family("stentor_llm_providers_resting", text, self._breaker.count_open())
