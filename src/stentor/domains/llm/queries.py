"""SQL for the dashboard's pages about models: providers, recent calls, spending. Other SQL is in `store`."""

from __future__ import annotations

import msgspec

from stentor.core.clock import HOUR
from stentor.core.db import Sql, Tx
from stentor.domains.llm import costs
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, Budget

MAX_SUBJECTS = 10
"""Keys or agents listed for a budget that applies to each of them: those that spent most."""
MAX_SCANNED_CALLS = 5_000
"""Newest calls of the last hour that are counted."""
_LIST_REGISTERED = Sql("select name from llm_providers where tenant = :tenant")
_COUNT_OUTCOMES = Sql(
    f"""select provider, outcome, count(*) from (
        select provider, outcome, happened_at from llm_calls where tenant = :tenant and happened_at >= :start
        order by happened_at desc limit {MAX_SCANNED_CALLS}
    ) as latest group by provider, outcome"""
)
_SUM_SPENT = {
    unit: Sql(
        f"""select subject, sum({column}) as spent from llm_spent
        where tenant = :tenant and kind = :kind and day >= :day and (:subject = '*' or subject = :subject)
        group by subject order by spent desc, subject limit {MAX_SUBJECTS}"""
    )
    for unit, column in (("tokens", "tokens"), ("usd", "cost"))
}
_SUM_COST = Sql(
    """select (happened_at - :start) / :width as bucket, coalesce(sum(cost), 0), sum(input_tokens + output_tokens)
    from llm_calls where tenant = :tenant and happened_at >= :start group by bucket"""
)


_SUM_OF_TASK = Sql(
    """select count(*), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), sum(cost)
    from llm_calls where tenant = :tenant and task_id = :task_id"""
)


class TaskCalls(msgspec.Struct, frozen=True):
    """What the model calls of a task add up to; `dollars` is None if no price is known."""

    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


class BudgetSpending(msgspec.Struct, frozen=True):
    """The spending of a key or an agent in a budget's current period, in tokens or US dollars (`unit`)."""

    kind: str
    subject: str
    unit: str
    period: str
    spent: float
    limit: float
    seconds_left: int


class RecentCalls(msgspec.Struct):
    """Calls of a provider in the last hour; `codes` counts the failures by outcome."""

    calls: int = 0
    failed: int = 0
    codes: dict[str, int] = {}


def read_registered_providers(tx: Tx, tenant: str) -> set[str]:
    """Return the names of the providers that were registered at runtime; only these can be removed."""
    return {str(row[0]) for row in tx.rows(_LIST_REGISTERED, tenant=tenant)}


def read_recent_calls(tx: Tx, tenant: str, now: int) -> dict[str, RecentCalls]:
    """Count the calls of the last hour by provider."""
    by_provider: dict[str, RecentCalls] = {}
    for provider, outcome, count in tx.rows(_COUNT_OUTCOMES, tenant=tenant, start=now - HOUR):
        calls = by_provider.setdefault(str(provider), RecentCalls())
        calls.calls += int(count)
        if outcome != "ok":
            calls.failed += int(count)
            calls.codes = {**calls.codes, str(outcome): int(count)}
    return by_provider


def read_task_calls(tx: Tx, tenant: str, task_id: str) -> TaskCalls:
    """Return the sums over the model calls of a task."""
    calls, input_tokens, output_tokens, cost = tx.rows(_SUM_OF_TASK, tenant=tenant, task_id=task_id)[0]
    dollars = None if cost is None else int(cost) / NANOS_PER_DOLLAR
    return TaskCalls(int(calls), int(input_tokens), int(output_tokens), dollars)


def read_spending(tx: Tx, tenant: str, entries: list[str], now: int) -> list[BudgetSpending]:
    """Return the spending in each budget of SERVICE_LLM_BUDGETS, by key or agent."""
    budgets = costs.parse_budgets(entries)
    return [spending for budget in budgets for spending in _read_budget(tx, tenant, budget, now)]


def _read_budget(tx: Tx, tenant: str, budget: Budget, now: int) -> list[BudgetSpending]:
    first_day = costs.first_day_of_period(budget.period, now)
    rows = tx.rows(_SUM_SPENT[budget.unit], tenant=tenant, kind=budget.kind, subject=budget.subject, day=first_day)
    scale = NANOS_PER_DOLLAR if budget.unit == "usd" else 1
    seconds_left = costs.seconds_until_reset(budget.period, now)
    # A budget without spending is still listed, with zero.
    amounts = [(str(subject), int(spent)) for subject, spent in rows] or [(budget.subject, 0)]
    return [
        BudgetSpending(
            budget.kind, subject, budget.unit, budget.period, spent / scale, budget.limit / scale, seconds_left
        )
        for subject, spent in amounts
    ]


def read_cost_series(tx: Tx, tenant: str, start: int, width: int, count: int) -> dict[str, list[float]]:
    """Return the dollars and tokens of calls in `count` buckets of time; `start` and `width` in microseconds."""
    dollars, tokens = [0.0] * count, [0.0] * count
    for bucket, cost, token_count in tx.rows(_SUM_COST, tenant=tenant, start=start, width=width):
        if 0 <= bucket < count:
            dollars[int(bucket)], tokens[int(bucket)] = float(cost) / NANOS_PER_DOLLAR, float(token_count)
    return {"dollars": dollars, "tokens": tokens}
