"""SQL of the overview: what model calls cost by day, and models and agents by week."""

from __future__ import annotations

import msgspec

from stentor.core.clock import DAY
from stentor.core.db import Sql, Tx
from stentor.domains.llm.costs import NANOS_PER_DOLLAR

WEEK = 7 * DAY
MAX_COMPARED_CALLS = 2_000
"""Newest calls of a week that are read to compare models."""
_COST_BY_DAY = Sql(
    "select day, sum(cost) from llm_spent where tenant = :tenant and kind = 'key' and day >= :day group by day"
)
_AGENT_COST_BY_WEEK = Sql(
    """select subject, case when day >= :this_week then 0 else 1 end as week, sum(cost) from llm_spent
    where tenant = :tenant and kind = 'agent' and day >= :last_week group by subject, week"""
)
_MODELS_OF_WEEK = Sql(
    f"""select model, count(*), sum(case when outcome = 'ok' then 1 else 0 end), coalesce(sum(cost), 0) from (
        select model, outcome, cost from llm_calls
        where tenant = :tenant and happened_at >= :start and happened_at < :end
        order by happened_at desc limit {MAX_COMPARED_CALLS}
    ) as newest group by model"""
)


class ModelWeek(msgspec.Struct, frozen=True):
    """A week's calls of a model, or its newest ones; `dollars` is what they cost together."""

    calls: int = 0
    succeeded: int = 0
    dollars: float = 0.0


def read_daily_cost(tx: Tx, tenant: str, today: int, days: int) -> list[float]:
    """Return the US dollars that all calls cost: today, yesterday and so on. `today` is a number of days since 1970."""
    rows = tx.rows(_COST_BY_DAY, tenant=tenant, day=today - days + 1)
    by_day = {int(day): int(cost) / NANOS_PER_DOLLAR for day, cost in rows}
    return [by_day.get(today - n, 0.0) for n in range(days)]


def read_agent_costs(tx: Tx, tenant: str, today: int) -> dict[str, tuple[float, float]]:
    """Return the US dollars of each agent's calls in the last seven days and in the seven days before, by agent id."""
    costs: dict[str, list[float]] = {}
    for subject, week, cost in tx.rows(_AGENT_COST_BY_WEEK, tenant=tenant, this_week=today - 6, last_week=today - 13):
        costs.setdefault(str(subject), [0.0, 0.0])[int(week)] = int(cost) / NANOS_PER_DOLLAR
    return {subject: (weeks[0], weeks[1]) for subject, weeks in costs.items()}


def read_model_weeks(tx: Tx, tenant: str, now: int) -> dict[str, tuple[ModelWeek, ModelWeek]]:
    """Return the calls of each model in the last seven days and in the seven days before, by model."""
    weeks = [
        {
            str(model): ModelWeek(int(calls), int(succeeded), int(cost) / NANOS_PER_DOLLAR)
            for model, calls, succeeded, cost in tx.rows(_MODELS_OF_WEEK, tenant=tenant, start=end - WEEK, end=end)
        }
        # The end is excluded, and a call of this very microsecond counts.
        for end in (now + 1, now + 1 - WEEK)
    ]
    return {model: (weeks[0].get(model, ModelWeek()), weeks[1].get(model, ModelWeek())) for model in weeks[0]}
