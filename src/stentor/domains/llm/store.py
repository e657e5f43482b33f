"""SQL of the LLM gateway: providers registered at runtime, calls, and spending per day.

SQL for the dashboard's pages is in `queries`, that of usage reports in `usage.store`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stentor.core.clock import DAY
from stentor.core.db import AppendOnlyTable, CounterTable, Prefetch, RowsSql, Sql, Tx
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, BudgetAccount, BudgetKind, SpentAmount, TaskBudget

_PROVIDERS = Sql(
    "select name, format, base_url, sealed_key, default_model from llm_providers where tenant = :tenant order by name"
)
_UPSERT = Sql(
    """insert into llm_providers (tenant, name, format, base_url, sealed_key, default_model, created_at, updated_at)
    values (:tenant, :name, :format, :base_url, :sealed_key, :default_model, :now, :now)
    on conflict (tenant, name) do update set format = excluded.format, base_url = excluded.base_url,
        sealed_key = excluded.sealed_key, default_model = excluded.default_model, updated_at = excluded.updated_at"""
)
_DELETE = Sql("delete from llm_providers where tenant = :tenant and name = :name")
_SPEND = CounterTable("llm_spent", ("tenant", "kind", "subject", "day"), ("tokens", "cost"))
_SPENT_BY_TASK = CounterTable("task_spent", ("tenant", "task_id"), ("cost",))
_READ_SPENT_BY_TASK = Sql("select cost from task_spent where tenant = :tenant and task_id = :task_id")
_METERED = RowsSql(
    ("tenant", "task_id", "since"),
    """select given.tenant, given.task_id, given.since, (
        select sum(c.cost) from llm_calls as c where c.tenant = given.tenant and c.task_id = given.task_id
        and c.happened_at >= cast(given.since as bigint)
    ) from given where given.task_id is not null""",
)
_SPENT = Sql(
    """select coalesce(sum(tokens), 0), coalesce(sum(cost), 0) from llm_spent
    where tenant = :tenant and kind = :kind and subject = :subject and day >= :day"""
)
# Each call has a key, so the calls of all keys are all calls.
_SPENT_BY_TENANT = Sql(
    """select coalesce(sum(tokens), 0), coalesce(sum(cost), 0) from llm_spent
    where tenant = :tenant and kind = 'key' and day >= :day"""
)


class ProviderRow(msgspec.Struct, frozen=True):
    """A provider that was registered at runtime; an empty `base_url` means the configured or well-known one."""

    name: str
    format: str
    base_url: str
    sealed_key: str | None
    default_model: str


class CallRow(msgspec.Struct, frozen=True):
    """A row of an ended call. `outcome` is `ok` or an error code.

    `team` is the one that the key had, empty for none. `cost` is in billionths of a US dollar, None if the price is
    unknown.
    """

    call_id: str
    tenant: str
    key_name: str
    agent_id: str | None
    task_id: str | None
    operation: str
    provider: str
    model: str
    outcome: str
    input_tokens: int
    output_tokens: int
    estimated: int
    cost: int | None
    latency_ms: int
    cached_tokens: int = 0
    team: str = ""


_CALLS = AppendOnlyTable("llm_calls", (*CallRow.__struct_fields__, "happened_at"))


def list_providers(tx: Tx, tenant: str) -> list[ProviderRow]:
    return [ProviderRow(*row) for row in tx.rows(_PROVIDERS, tenant=tenant)]


def upsert_provider(tx: Tx, tenant: str, row: ProviderRow) -> None:
    tx.run(_UPSERT, tenant=tenant, now=tx.now, **msgspec.structs.asdict(row))


def delete_provider(tx: Tx, tenant: str, name: str) -> bool:
    """Delete a provider; return whether it existed."""
    return tx.run(_DELETE, tenant=tenant, name=name) > 0


def insert_call(tx: Tx, call: CallRow, budgets: Iterable[TaskBudget] = ()) -> None:
    """Insert a call and add what it spent to its key, the team of this key, its agent and the tasks with a budget."""
    tx.append(_CALLS, (*msgspec.structs.astuple(call), tx.now))
    # No row for the tenant, which every call would write: it is the sum of its keys.
    subjects: list[tuple[BudgetKind, str | None]] = [
        ("key", call.key_name),
        ("team", call.team),
        ("agent", call.agent_id),
    ]
    tokens = call.input_tokens + call.output_tokens
    for kind, subject in subjects:
        if subject:
            # An increment: calls that share a commit are summed up and written as one row.
            tx.increment(_SPEND, (call.tenant, kind, subject, tx.now // DAY), tokens, call.cost or 0)
    for budget in budgets:
        tx.increment(_SPENT_BY_TASK, (call.tenant, budget.task_id), call.cost or 0)


def read_spent_by_task(tx: Tx, tenant: str, task_id: str) -> int:
    """Return what the calls of a task with a budget and of its subtasks have cost, in billionths of a US dollar."""
    row = tx.row(_READ_SPENT_BY_TASK, tenant=tenant, task_id=task_id)
    return 0 if row is None else int(row[0])


def read_metered_cost(tx: Tx, tenant: str, task_id: str, since: int) -> float | None:
    """Return the US dollars that the model calls of a task cost since a time; None without a call of known price."""
    rows = tx.prefetched_rows(*prefetch_metered_cost(tenant, task_id, since))
    return None if not rows or rows[0][3] is None else int(rows[0][3]) / NANOS_PER_DOLLAR


def prefetch_metered_cost(tenant: str, task_id: str, since: int) -> Prefetch:
    """Return what `read_metered_cost` reads, for `Database.write`."""
    return _METERED, (tenant, task_id, str(since))


def read_spent(tx: Tx, account: BudgetAccount, first_day: int) -> SpentAmount:
    """Return what a key, an agent, a team or a tenant has spent since a day, counted in days since 1970."""
    tenant, kind, subject = account
    if kind == "tenant":
        row = tx.rows(_SPENT_BY_TENANT, tenant=tenant, day=first_day)[0]
    else:
        row = tx.rows(_SPENT, tenant=tenant, kind=kind, subject=subject, day=first_day)[0]
    return SpentAmount(int(row[0]), int(row[1]))
