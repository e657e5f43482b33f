"""What metrics tell of agents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from prometheus_client.core import Metric

from stentor.core.db import Sql, Tx
from stentor.core.metrics import labeled_counter_family, labeled_gauge_family
from stentor.domains.registry.model import Status, ViolationType
from stentor.domains.registry.snapshot import Snapshot

_STATUSES: tuple[str, ...] = get_args(Status)
_TYPES: tuple[str, ...] = get_args(ViolationType)
_VIOLATIONS = Sql("select type, count(*) from violations group by type")


def agents(snapshot: Snapshot) -> Iterable[Metric]:
    """From memory alone."""
    found = {status: float(snapshot.statuses[status]) for status in _STATUSES}
    yield labeled_gauge_family("stentor_agents", "Agents registered, by status.", "status", found)


def violations(tx: Tx) -> Iterable[Metric]:
    found = {(name,): 0.0 for name in _TYPES} | {(str(kind),): float(n) for kind, n in tx.rows(_VIOLATIONS)}
    yield labeled_counter_family("stentor_violations", "Violations of agents ever recorded, by type.", ("type",), found)
