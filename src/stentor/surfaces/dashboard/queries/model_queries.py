"""What no route tells of models: which providers were registered, how calls ended lately, what is spent of budgets."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core.clock import HOUR
from stentor.core.db import Sql, Tx
from stentor.domains.llm import costs
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, Budget

MAX_SUBJECTS = 10
"""Keys or agents that are shown of a budget that each of them has; those that spent most."""
MAX_SCANNED_CALLS = 5_000
"""Calls of the last hour that are looked at."""
_REGISTERED = Sql("select name from llm_providers where tenant = :tenant")
_OUTCOMES = Sql(
    f"""select provider, outcome, count(*), max(happened_at) from (
        select provider, outcome, happened_at from llm_calls where tenant = :tenant and happened_at >= :start
        order by happened_at desc limit {MAX_SCANNED_CALLS}
    ) as latest group by provider, outcome"""
)
_SPENT = {
    unit: Sql(
        f"""select subject, sum({column}) as spent from llm_spent
        where tenant = :tenant and kind = :kind and day >= :day and (:subject = '*' or subject = :subject)
        group by subject order by spent desc, subject limit {MAX_SUBJECTS}"""
    )
    for unit, column in (("tokens", "tokens"), ("usd", "cost"))
}


class BudgetSpending(msgspec.Struct, frozen=True):
    """One key's or agent's part of a budget; in tokens or in US dollars, as `unit` says."""

    kind: str
    subject: str
    unit: str
    period: str
    spent: float
    limit: float
    seconds_left: int


class RecentCalls(msgspec.Struct):
    """Calls of a provider in the last hour; `codes` are the outcomes of those that failed."""

    calls: int = 0
    failed: int = 0
    codes: dict[str, int] = {}


def read_registered_providers(tx: Tx, tenant: str) -> set[str]:
    """Names of the providers that were registered at runtime, and can be removed."""
    return {str(row[0]) for row in tx.rows(_REGISTERED, tenant=tenant)}


def read_recent_calls(tx: Tx, tenant: str, now: int) -> dict[str, RecentCalls]:
    found: dict[str, RecentCalls] = {}
    for provider, outcome, n, _ in tx.rows(_OUTCOMES, tenant=tenant, start=now - HOUR):
        one = found.setdefault(str(provider), RecentCalls())
        one.calls += int(n)
        if outcome != "ok":
            one.failed += int(n)
            one.codes = {**one.codes, str(outcome): int(n)}
    return found


def read_spending(tx: Tx, tenant: str, entries: list[str], now: int) -> list[BudgetSpending]:
    """How far the budgets of the settings are used up; a budget for each key or agent by those that spent most."""
    return [one for budget in costs.parse_budgets(entries) for one in _spent(tx, tenant, budget, now)]


def _spent(tx: Tx, tenant: str, budget: Budget, now: int) -> list[BudgetSpending]:
    given: dict[str, Any] = {"kind": budget.kind, "day": costs.first_day_of_period(budget.period, now)}
    rows = tx.rows(_SPENT[budget.unit], tenant=tenant, subject=budget.subject, **given)
    scale = NANOS_PER_DOLLAR if budget.unit == "usd" else 1
    left = costs.seconds_until_reset(budget.period, now)
    found = [(str(subject), int(spent)) for subject, spent in rows] or [(budget.subject, 0)]
    return [
        BudgetSpending(budget.kind, subject, budget.unit, budget.period, spent / scale, budget.limit / scale, left)
        for subject, spent in found
    ]
