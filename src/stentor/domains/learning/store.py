"""SQL of learning.

What metrics tell of learning.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core import ids
from stentor.core.clock import DAY
from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.metrics import counter_family, gauge_family
from stentor.domains.learning.model import AgentConnection, HistoryEntry, SentinelAlert, Weight

_FIELDS = Weight.__struct_fields__
_W = ", ".join(_FIELDS)
_ONE = Sql(f"select {_W} from hebbian_weights where agent_id = :agent_id and task_type = :task_type")
_OF_AGENT = Sql(f"select {_W} from hebbian_weights where agent_id = :agent_id order by task_type")
_OWN = "agent_id in (select agent_id from agents where tenant = :tenant)"
"""Weights and alerts name agents, and these belong to a tenant."""
_OF_TENANT = Sql(f"select {_W} from hebbian_weights where {_OWN} order by agent_id, task_type")
_LEARNED_IN = Sql(
    f"""select {_W} from hebbian_weights
    where agent_id in (select agent_id from hebbian_history where tenant = :tenant) order by agent_id, task_type"""
)
_CHANGED = Sql(
    f"""select {", ".join("w." + name for name in _FIELDS)}, a.tenant
    from hebbian_weights as w join agents as a on a.agent_id = w.agent_id where w.updated_at >= :since"""
)
_PUT = Sql(
    f"""insert into hebbian_weights ({_W}) values ({", ".join(":" + name for name in _FIELDS)})
    on conflict (agent_id, task_type) do update set
        {", ".join(f"{name} = excluded.{name}" for name in _FIELDS[2:])}"""
)
_ENTRIES = AppendOnlyTable(
    "hebbian_history",
    (
        "entry_id",
        "agent_id",
        "task_type",
        "tenant",
        "task_id",
        "epoch",
        "delta",
        "result",
        "weight_before",
        "weight_after",
        "happened_at",
        "sample",
    ),
)
_HISTORY = Sql(
    """select happened_at, task_type, delta, result, weight_before, weight_after from hebbian_history
    where agent_id = :agent_id order by entry_id desc limit :limit"""
)
_SAMPLE = Sql("select sample from hebbian_history where tenant = :tenant and task_id = :task_id and epoch = :epoch")
_RESULTS = Sql(
    """select coalesce(sum(case when delta > 0 then 1 else 0 end), 0), count(*) from hebbian_history
    where agent_id = :agent_id and epoch > 0"""
)
_TOTAL = Sql("select coalesce(sum(samples), 0) from hebbian_weights where agent_id = :agent_id")
_CONNECTION = Sql(
    """select agent1, agent2, weight, updated_at from hebbian_connections
    where tenant = :tenant and low = :low and high = :high"""
)
_CONNECTIONS = Sql(
    """select agent1, agent2, weight, updated_at from hebbian_connections
    where tenant = :tenant order by low, high limit :limit"""
)
_CONNECT = Sql(
    """insert into hebbian_connections (tenant, low, high, agent1, agent2, weight, updated_at)
    values (:tenant, :low, :high, :agent1, :agent2, :weight, :now)
    on conflict (tenant, low, high) do update set weight = excluded.weight, updated_at = excluded.updated_at"""
)
_ALERT = "select alert_id, agent_id, task_type, rate, threshold, samples, opened_at, resolved_at from sentinel_alerts"
_OPEN_ALERT = Sql(f"{_ALERT} where agent_id = :agent_id and task_type = :task_type and resolved_at is null")
_ALERTS = Sql(f"{_ALERT} order by alert_id desc limit :limit")
_OPEN_ALERTS = Sql(f"{_ALERT} where resolved_at is null order by alert_id desc limit :limit")
_ALERTS_OF = Sql(
    f"{_ALERT} where {_OWN} and (:open_only = 0 or resolved_at is null) order by alert_id desc limit :limit"
)
_RAISE = Sql(
    """insert into sentinel_alerts (alert_id, agent_id, task_type, rate, threshold, samples, opened_at)
    values (:alert_id, :agent_id, :task_type, :rate, :threshold, :samples, :now)"""
)
_RESOLVE = Sql("update sentinel_alerts set resolved_at = :now where alert_id = :alert_id and resolved_at is null")
# The row is rewritten on another day, so there is one for each pair, however long they work together.
_TAUGHT = Sql(
    """insert into taught_today (tenant, agent_id, submitted_by, day, n) values (:tenant, :about, :key, :day, 1)
    on conflict (tenant, agent_id, submitted_by) do update set
        n = case when taught_today.day = excluded.day then taught_today.n + 1 else 1 end, day = excluded.day
    returning n"""
)


def find(tx: Tx, agent_id: str, task_type: str) -> Weight | None:
    row = tx.row(_ONE, agent_id=agent_id, task_type=task_type)
    return Weight(*row) if row else None


def list_agent_weights(tx: Tx, agent_id: str) -> list[Weight]:
    return [Weight(*row) for row in tx.rows(_OF_AGENT, agent_id=agent_id)]


def list_tenant_weights(tx: Tx, tenant: str) -> list[Weight]:
    return [Weight(*row) for row in tx.rows(_OF_TENANT, tenant=tenant)]


def list_weights_learned_in(tx: Tx, tenant: str) -> list[Weight]:
    """The same as `of_tenant` by what was learned in the tenant: for when the agents cannot be read."""
    return [Weight(*row) for row in tx.rows(_LEARNED_IN, tenant=tenant)]


def changed_since(tx: Tx, since: int) -> list[tuple[str, Weight]]:
    """Each with its agent's tenant."""
    return [(row[-1], Weight(*row[:-1])) for row in tx.rows(_CHANGED, since=since)]


def put(tx: Tx, weight: Weight) -> None:
    tx.run(_PUT, **{name: getattr(weight, name) for name in _FIELDS})


def insert_history(
    tx: Tx, tenant: str, task_id: str, epoch: int, weight: Weight, before: float, *, success: bool
) -> None:
    """One history line. The unique index refuses a second one for the same attempt."""
    delta, result = (1, "success") if success else (-1, "failure")
    key = (ids.new_id(), weight.agent_id, weight.task_type, tenant, task_id, epoch)
    tx.append(_ENTRIES, (*key, delta, result, before, weight.weight, weight.updated_at, weight.samples))


def insert_grade_history(tx: Tx, tenant: str, task_id: str, epoch: int, weight: Weight, before: float) -> None:
    """One history line for a grade. Its epoch is the attempt's, negative: that too can be there once only."""
    delta = 1 if weight.weight >= before else -1
    key = (ids.new_id(), weight.agent_id, weight.task_type, tenant, task_id, -epoch)
    tx.append(_ENTRIES, (*key, delta, "graded", before, weight.weight, weight.updated_at, None))


def find_sample(tx: Tx, tenant: str, task_id: str, epoch: int) -> tuple[bool, int | None]:
    """Whether something was learned from an attempt, and its number among the agent's outcomes where that is known."""
    row = tx.row(_SAMPLE, tenant=tenant, task_id=task_id, epoch=epoch)
    return (False, None) if row is None else (True, row[0])


def list_history(tx: Tx, agent_id: str, limit: int) -> tuple[list[HistoryEntry], int]:
    """The newest entries first, and how many there are in all."""
    entries = [HistoryEntry(*row) for row in tx.rows(_HISTORY, agent_id=agent_id, limit=limit)]
    total = tx.row(_TOTAL, agent_id=agent_id)
    return entries, int(total[0]) if total else 0


def count_results(tx: Tx, agent_id: str) -> tuple[int, int]:
    """Successes and all outcomes that something was learned from."""
    row = tx.row(_RESULTS, agent_id=agent_id)
    return (int(row[0]), int(row[1])) if row else (0, 0)


def find_connection(tx: Tx, tenant: str, one: str, other: str) -> AgentConnection | None:
    low, high = sorted((one, other))
    row = tx.row(_CONNECTION, tenant=tenant, low=low, high=high)
    return AgentConnection(*row) if row else None


def list_connections(tx: Tx, tenant: str, limit: int) -> list[AgentConnection]:
    return [AgentConnection(*row) for row in tx.rows(_CONNECTIONS, tenant=tenant, limit=limit)]


def put_connection(tx: Tx, tenant: str, link: AgentConnection) -> None:
    low, high = sorted((link.agent1, link.agent2))
    tx.run(
        _CONNECT,
        tenant=tenant,
        low=low,
        high=high,
        agent1=link.agent1,
        agent2=link.agent2,
        weight=link.weight,
        now=link.updated_at,
    )


def find_open_alert(tx: Tx, agent_id: str, task_type: str) -> SentinelAlert | None:
    row = tx.row(_OPEN_ALERT, agent_id=agent_id, task_type=task_type)
    return SentinelAlert(*row) if row else None


def list_alerts(tx: Tx, *, open_only: bool, limit: int) -> list[SentinelAlert]:
    return [SentinelAlert(*row) for row in tx.rows(_OPEN_ALERTS if open_only else _ALERTS, limit=limit)]


def list_tenant_alerts(tx: Tx, tenant: str, *, open_only: bool, limit: int) -> list[SentinelAlert]:
    """A tenant's alerts, the newest first."""
    return [SentinelAlert(*row) for row in tx.rows(_ALERTS_OF, tenant=tenant, open_only=int(open_only), limit=limit)]


def insert_alert(tx: Tx, weight: Weight, rate: float, threshold: float) -> None:
    tx.run(
        _RAISE,
        alert_id=ids.new_id(),
        agent_id=weight.agent_id,
        task_type=weight.task_type,
        rate=rate,
        threshold=threshold,
        samples=len(weight.recent),
        now=tx.now,
    )


def resolve_alert(tx: Tx, alert_id: str) -> None:
    tx.run(_RESOLVE, alert_id=alert_id, now=tx.now)


def count_taught_today(tx: Tx, tenant: str, about: str, key: str) -> int:
    """Count one more outcome that a key has an agent, or a model, learn from today; answers how many there are."""
    row = tx.row(_TAUGHT, tenant=tenant, about=about, key=key, day=tx.now // DAY)
    assert row is not None  # an upsert always answers
    return int(row[0])


_COUNT_OUTCOMES = Sql("select coalesce(sum(samples), 0) from hebbian_weights")
_COUNT_OPEN_ALERTS = Sql("select count(*) from sentinel_alerts where resolved_at is null")


def collect_metrics(tx: Tx) -> Iterable[Metric]:
    learned, open_ = (int(tx.rows(sql)[0][0]) for sql in (_COUNT_OUTCOMES, _COUNT_OPEN_ALERTS))
    yield counter_family("stentor_learned_outcomes", "Outcomes learned from.", learned)
    yield gauge_family("stentor_sentinel_alerts", "Alerts of the sentinel that are open.", open_)
