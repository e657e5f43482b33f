"""What metrics tell of learning."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core.db import Sql, Tx
from stentor.core.metrics import counter_family, gauge_family

_OUTCOMES = Sql("select coalesce(sum(samples), 0) from hebbian_weights")
_ALERTS = Sql("select count(*) from sentinel_alerts where resolved_at is null")


def metrics(tx: Tx) -> Iterable[Metric]:
    learned, open_ = (int(tx.rows(sql)[0][0]) for sql in (_OUTCOMES, _ALERTS))
    yield counter_family("stentor_learned_outcomes", "Outcomes learned from.", learned)
    yield gauge_family("stentor_sentinel_alerts", "Alerts of the sentinel that are open.", open_)
