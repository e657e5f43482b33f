"""SQL of learning (records, history, connections, oscillation alerts, daily limits) and its Prometheus metrics.

Also what pages show of it: the heat map, and the weights and alerts of one agent.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from prometheus_client.core import Metric

from stentor.core import ids
from stentor.core.clock import DAY
from stentor.core.db import AppendOnlyTable, Prefetch, RowsSql, Sql, Tx
from stentor.core.metrics import counter_family, gauge_family
from stentor.domains.learning.model import AgentConnection, HistoryEntry, SentinelAlert, Weight, decay_weight

_FIELDS = Weight.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_FIND = RowsSql(
    _FIELDS[:2],
    f"""select {", ".join("w." + name for name in _FIELDS)} from given join hebbian_weights as w
    on w.agent_id = given.agent_id and w.task_type = given.task_type""",
)
_LIST_BY_AGENT = Sql(f"select {_COLUMNS} from hebbian_weights where agent_id = :agent_id order by task_type")
_IN_TENANT = "agent_id in (select agent_id from agents where tenant = :tenant)"
"""Weights and alerts have no tenant of their own, only that of their agent."""
_LIST_BY_TENANT = Sql(f"select {_COLUMNS} from hebbian_weights where {_IN_TENANT} order by agent_id, task_type")
_LIST_LEARNED_IN = Sql(
    f"""select {_COLUMNS} from hebbian_weights
    where agent_id in (select agent_id from hebbian_history where tenant = :tenant) order by agent_id, task_type"""
)
_CHANGED = Sql(
    f"""select {", ".join("w." + name for name in _FIELDS)}, a.tenant
    from hebbian_weights as w join agents as a on a.agent_id = w.agent_id where w.updated_at >= :since"""
)
_PUT = Sql.insert("hebbian_weights", _FIELDS, key=("agent_id", "task_type"))
_HISTORY_TABLE = AppendOnlyTable(
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
_LIST_HISTORY = Sql(
    """select happened_at, task_type, delta, result, weight_before, weight_after from hebbian_history
    where agent_id = :agent_id order by entry_id desc limit :limit"""
)
_FIND_SAMPLE = Sql(
    "select sample from hebbian_history where tenant = :tenant and task_id = :task_id and epoch = :epoch"
)
# A negative epoch is the entry of a grade, which is not an outcome of its own.
_COUNT_RESULTS = Sql(
    """select coalesce(sum(case when delta > 0 then 1 else 0 end), 0), count(*) from hebbian_history
    where agent_id = :agent_id and epoch > 0"""
)
_COUNT_HISTORY = Sql("select count(*) from hebbian_history where agent_id = :agent_id")
_FIND_CONNECTION = Sql(
    """select agent1, agent2, weight, updated_at from hebbian_connections
    where tenant = :tenant and low = :low and high = :high"""
)
_LIST_CONNECTIONS = Sql(
    """select agent1, agent2, weight, updated_at from hebbian_connections
    where tenant = :tenant and (cast(:agent_id as text) is null or low = :agent_id or high = :agent_id)
    order by low, high limit :limit"""
)
_PUT_CONNECTION = Sql(
    """insert into hebbian_connections (tenant, low, high, agent1, agent2, weight, updated_at)
    values (:tenant, :low, :high, :agent1, :agent2, :weight, :now)
    on conflict (tenant, low, high) do update set weight = excluded.weight, updated_at = excluded.updated_at"""
)
_ALERT = "select alert_id, agent_id, task_type, rate, threshold, samples, opened_at, resolved_at from sentinel_alerts"
_FIND_OPEN_ALERT = Sql(f"{_ALERT} where agent_id = :agent_id and task_type = :task_type and resolved_at is null")
_LIST_TENANT_ALERTS = Sql(
    f"{_ALERT} where {_IN_TENANT} and (:open_only = 0 or resolved_at is null) order by alert_id desc limit :limit"
)
_INSERT_ALERT = Sql(
    """insert into sentinel_alerts (alert_id, agent_id, task_type, rate, threshold, samples, opened_at)
    values (:alert_id, :agent_id, :task_type, :rate, :threshold, :samples, :now)"""
)
_RESOLVE_ALERT = Sql("update sentinel_alerts set resolved_at = :now where alert_id = :alert_id and resolved_at is null")
# One row for each pair of agent and key, reset on each new day, so that the table does not grow with time.
_COUNT_TAUGHT = Sql(
    """insert into taught_today (tenant, agent_id, submitted_by, day, n) values (:tenant, :about, :key, :day, 1)
    on conflict (tenant, agent_id, submitted_by) do update set
        n = case when taught_today.day = excluded.day then taught_today.n + 1 else 1 end, day = excluded.day
    returning n"""
)
_COUNT_OUTCOMES = Sql("select coalesce(sum(samples), 0) from hebbian_weights")
_COUNT_OPEN_ALERTS = Sql("select count(*) from sentinel_alerts where resolved_at is null")
MAX_TASK_TYPES = 12
"""Columns of a heat map: the task types with most outcomes."""
MAX_WEIGHTS, MAX_ALERTS = 200, 20
_TOP = f"""select task_type, sum(samples) as n from hebbian_weights where {_IN_TENANT}
    group by task_type order by n desc, task_type limit {MAX_TASK_TYPES}"""
_LIST_TYPES = Sql(_TOP)
_COUNT_TYPES = Sql(f"select count(distinct task_type) from hebbian_weights where {_IN_TENANT}")
_LIST_CELLS = Sql(
    f"""select p.agent_id, p.name, p.created_at, w.task_type, w.weight, w.updated_at, w.samples from (
        select a.agent_id, a.name, a.created_at from agents as a
        where a.tenant = :tenant and (a.created_at > :after or (a.created_at = :after and a.agent_id > :after_id))
            and exists (select 1 from hebbian_weights as h where h.agent_id = a.agent_id
                and h.task_type in (select task_type from ({_TOP}) as shown))
        order by a.created_at, a.agent_id limit :limit
    ) as p join hebbian_weights as w on w.agent_id = p.agent_id
    where w.task_type in (select task_type from ({_TOP}) as top) order by p.created_at, p.agent_id"""
)
_LIST_WEIGHTS = Sql(
    f"""select agent_id, task_type, weight, mean_ms, samples, recent, updated_at from hebbian_weights
    where agent_id = :agent_id and {_IN_TENANT} order by samples desc, task_type limit {MAX_WEIGHTS}"""
)
_LIST_AGENT_ALERTS = Sql(
    f"{_ALERT} where agent_id = :agent_id and {_IN_TENANT} order by alert_id desc limit {MAX_ALERTS}"
)
_COUNT_TENANT_ALERTS = Sql(f"select count(*) from sentinel_alerts where resolved_at is null and {_IN_TENANT}")


def find(tx: Tx, agent_id: str, task_type: str) -> Weight | None:
    if put := tx.find_put(_PUT, (agent_id, task_type)):
        return Weight(**put)
    rows = tx.prefetched_rows(_FIND, (agent_id, task_type))
    return Weight(*rows[0]) if rows else None


def prefetch_weight(agent_id: str, task_type: str) -> Prefetch:
    """Return what `find` reads, for `Database.write`."""
    return _FIND, (agent_id, task_type)


def list_agent_weights(tx: Tx, agent_id: str) -> list[Weight]:
    return [Weight(*row) for row in tx.rows(_LIST_BY_AGENT, agent_id=agent_id)]


def list_tenant_weights(tx: Tx, tenant: str) -> list[Weight]:
    return [Weight(*row) for row in tx.rows(_LIST_BY_TENANT, tenant=tenant)]


def list_weights_learned_in(tx: Tx, tenant: str) -> list[Weight]:
    """List a tenant's weights by the tenant of their history: for when the agents cannot be read."""
    return [Weight(*row) for row in tx.rows(_LIST_LEARNED_IN, tenant=tenant)]


def changed_since(tx: Tx, since: int) -> list[tuple[str, Weight]]:
    """List the weights that changed since a time, each with its agent's tenant."""
    return [(row[-1], Weight(*row[:-1])) for row in tx.rows(_CHANGED, since=since)]


def put(tx: Tx, weight: Weight) -> None:
    tx.put(_PUT, (weight.agent_id, weight.task_type), **msgspec.structs.asdict(weight))


def insert_history(
    tx: Tx, tenant: str, task_id: str, epoch: int, weight: Weight, before: float, *, success: bool
) -> None:
    """Insert the history entry of an outcome. The unique index rejects a second one for the same attempt."""
    delta, result = (1, "success") if success else (-1, "failure")
    key = (ids.new_id(), weight.agent_id, weight.task_type, tenant, task_id, epoch)
    tx.append(_HISTORY_TABLE, (*key, delta, result, before, weight.weight, weight.updated_at, weight.samples))


def insert_grade_history(tx: Tx, tenant: str, task_id: str, epoch: int, weight: Weight, before: float) -> None:
    """Insert the history entry of a grade. The unique index rejects a second one for the same attempt."""
    # The negative epoch keeps it apart from the outcome's entry under the same unique index.
    delta = 1 if weight.weight >= before else -1
    key = (ids.new_id(), weight.agent_id, weight.task_type, tenant, task_id, -epoch)
    tx.append(_HISTORY_TABLE, (*key, delta, "graded", before, weight.weight, weight.updated_at, None))


def find_sample(tx: Tx, tenant: str, task_id: str, epoch: int) -> tuple[bool, int | None]:
    """Return whether an attempt was learned from, and its number among the agent's outcomes (None if unknown)."""
    row = tx.row(_FIND_SAMPLE, tenant=tenant, task_id=task_id, epoch=epoch)
    return (False, None) if row is None else (True, row[0])


def list_history(tx: Tx, agent_id: str, limit: int) -> tuple[list[HistoryEntry], int]:
    """Return the newest entries, newest first, and the total number of entries."""
    entries = [HistoryEntry(*row) for row in tx.rows(_LIST_HISTORY, agent_id=agent_id, limit=limit)]
    total = tx.row(_COUNT_HISTORY, agent_id=agent_id)
    return entries, int(total[0]) if total else 0


def count_results(tx: Tx, agent_id: str) -> tuple[int, int]:
    """Return the number of successes and of all outcomes that were learned from."""
    row = tx.row(_COUNT_RESULTS, agent_id=agent_id)
    return (int(row[0]), int(row[1])) if row else (0, 0)


def find_connection(tx: Tx, tenant: str, agent1: str, agent2: str) -> AgentConnection | None:
    low, high = sorted((agent1, agent2))
    row = tx.row(_FIND_CONNECTION, tenant=tenant, low=low, high=high)
    return AgentConnection(*row) if row else None


def list_connections(tx: Tx, tenant: str, agent_id: str | None, limit: int) -> list[AgentConnection]:
    rows = tx.rows(_LIST_CONNECTIONS, tenant=tenant, agent_id=agent_id, limit=limit)
    return [AgentConnection(*row) for row in rows]


def put_connection(tx: Tx, tenant: str, connection: AgentConnection) -> None:
    low, high = sorted((connection.agent1, connection.agent2))
    tx.run(
        _PUT_CONNECTION,
        tenant=tenant,
        low=low,
        high=high,
        agent1=connection.agent1,
        agent2=connection.agent2,
        weight=connection.weight,
        now=connection.updated_at,
    )


def find_open_alert(tx: Tx, agent_id: str, task_type: str) -> SentinelAlert | None:
    row = tx.row(_FIND_OPEN_ALERT, agent_id=agent_id, task_type=task_type)
    return SentinelAlert(*row) if row else None


def list_tenant_alerts(tx: Tx, tenant: str, *, open_only: bool, limit: int) -> list[SentinelAlert]:
    """List a tenant's alerts, newest first."""
    return [
        SentinelAlert(*row)
        for row in tx.rows(_LIST_TENANT_ALERTS, tenant=tenant, open_only=int(open_only), limit=limit)
    ]


def insert_alert(tx: Tx, weight: Weight, rate: float, threshold: float) -> None:
    tx.run(
        _INSERT_ALERT,
        alert_id=ids.new_id(),
        agent_id=weight.agent_id,
        task_type=weight.task_type,
        rate=rate,
        threshold=threshold,
        samples=len(weight.recent),
        now=tx.now,
    )


def resolve_alert(tx: Tx, alert_id: str) -> None:
    tx.run(_RESOLVE_ALERT, alert_id=alert_id, now=tx.now)


def increment_daily_outcomes(tx: Tx, tenant: str, about: str, key: str) -> int:
    """Add one to the outcomes that an agent or model (`about`) learns from today because of a key; return the count."""
    row = tx.row(_COUNT_TAUGHT, tenant=tenant, about=about, key=key, day=tx.now // DAY)
    assert row is not None  # an upsert always returns the row
    return int(row[0])


def collect_metrics(tx: Tx) -> Iterable[Metric]:
    """Yield the metrics over all tenants."""
    outcomes, open_alerts = (int(tx.rows(sql)[0][0]) for sql in (_COUNT_OUTCOMES, _COUNT_OPEN_ALERTS))
    yield counter_family("stentor_learned_outcomes", "Outcomes learned from.", outcomes)
    yield gauge_family("stentor_sentinel_alerts", "Open oscillation alerts.", open_alerts)


class HeatMapCell(msgspec.Struct, frozen=True):
    weight: float
    samples: int


class WeightHeatMap(msgspec.Struct, frozen=True):
    """Rows of (agent id, name, cell by task type); `last` is the position of the last row, None on the last page."""

    types: list[str]
    types_total: int
    rows: list[tuple[str, str, dict[str, HeatMapCell]]]
    last: tuple[int, str] | None


def read_heat_map(tx: Tx, tenant: str, after: tuple[int, str], now: int, limit: int) -> WeightHeatMap:
    """Return the present weights of the agents that have one of the types, oldest agent first."""
    types = [str(row[0]) for row in tx.rows(_LIST_TYPES, tenant=tenant)]
    total = int(tx.rows(_COUNT_TYPES, tenant=tenant)[0][0])
    rows: dict[str, tuple[str, str, dict[str, HeatMapCell]]] = {}
    last = after
    for agent_id, name, created_at, kind, weight, moved_at, samples in tx.rows(
        _LIST_CELLS, tenant=tenant, after=after[0], after_id=after[1], limit=limit
    ):
        rows.setdefault(agent_id, (agent_id, name, {}))[2][kind] = HeatMapCell(
            decay_weight(weight, now - moved_at), samples
        )
        last = (created_at, agent_id)
    return WeightHeatMap(types, total, list(rows.values()), last if len(rows) == limit else None)


def list_top_weights(tx: Tx, tenant: str, agent_id: str) -> list[Weight]:
    """List the weights of an agent, those with most outcomes first."""
    return [Weight(*row) for row in tx.rows(_LIST_WEIGHTS, tenant=tenant, agent_id=agent_id)]


def list_agent_alerts(tx: Tx, tenant: str, agent_id: str) -> list[SentinelAlert]:
    """List the alerts about an agent, newest first."""
    return [SentinelAlert(*row) for row in tx.rows(_LIST_AGENT_ALERTS, tenant=tenant, agent_id=agent_id)]


def count_open_alerts(tx: Tx, tenant: str) -> int:
    return int(tx.rows(_COUNT_TENANT_ALERTS, tenant=tenant)[0][0])
