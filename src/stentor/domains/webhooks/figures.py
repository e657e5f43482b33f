"""What metrics tell of webhooks."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stentor.core.clock import SECOND
from stentor.core.db import Tx
from stentor.domains.webhooks import listing

RESULTS = ("delivered", "retried", "failed")


def metrics(tx: Tx, counts: Mapping[str, int]) -> list[Metric]:
    """`counts` are the deliverer's."""
    found = listing.figures(tx)
    attempts = CounterMetricFamily("stentor_webhook_attempts", "Attempts since the start.", labels=["result"])
    for result in RESULTS:
        attempts.add_metric([result], counts.get(result, 0))
    subscriptions = GaugeMetricFamily("stentor_webhooks", "Webhooks by whether they are enabled.", labels=["state"])
    for state in ("enabled", "disabled"):
        subscriptions.add_metric([state], found[state])
    disabled = counts.get("disabled", 0)
    oldest = (tx.now - found["oldest"]) / SECOND if found["oldest"] else 0.0
    return [
        GaugeMetricFamily(
            "stentor_webhook_backlog", "Deliveries that wait, of enabled webhooks.", value=found["waiting"]
        ),
        GaugeMetricFamily("stentor_webhook_oldest_seconds", "Age of the oldest that waits.", value=oldest),
        GaugeMetricFamily("stentor_webhook_sending", "Deliveries under way.", value=found["sending"]),
        attempts,
        CounterMetricFamily("stentor_webhooks_disabled", "Webhooks switched off by the service.", value=disabled),
        subscriptions,
    ]
