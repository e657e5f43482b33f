"""SQL that reads for lists and pages: calls, providers, recent calls, spending. Other SQL is in `store`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

import msgspec

from stentor.core.clock import DAY, HOUR
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.errors import NotFound
from stentor.core.jsontext import JsonObject
from stentor.domains.llm import costs, store
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, Budget, BudgetAccount, FindTeam
from stentor.domains.llm.store import CallRow
from stentor.domains.provenance import store as events
from stentor.domains.provenance.model import parse_event

MAX_SUBJECTS = 10
"""Keys or agents listed for a budget that applies to each of them: those that spent most."""
MAX_NUMBER = 2**62
"""Stands for no limit, and replaces a greater one: a budget in the settings may exceed what a database can hold."""
MAX_SCANNED_CALLS = 5_000
"""Newest calls of the last hour that are counted."""
MAX_WINDOW_CALLS = 20_000
"""Calls that a page of a filtered list looks through, so that a rare match in a million calls does not hold up the
database: the cursor continues behind the window. Calls of a task have an index.
"""
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
        where tenant = :tenant and kind = :kind and day >= :day
        group by subject having sum({column}) >= :least order by spent desc, subject limit :limit"""
    )
    for unit, column in (("tokens", "tokens"), ("usd", "cost"))
}
_COUNT_UNPRICED = Sql(
    f"""select key_name, agent_id, count(*) from (
        select key_name, agent_id, cost, input_tokens + output_tokens as tokens from llm_calls
        where tenant = :tenant and happened_at >= :since order by happened_at desc limit {MAX_WINDOW_CALLS}
    ) as newest where cost is null and tokens > 0 group by key_name, agent_id"""
)
_NEXT_SPENDING_TENANT = Sql("select min(tenant) from llm_spent where tenant > :after")
_SUM_COST = Sql(
    """select (happened_at - :start) / :width as bucket, coalesce(sum(cost), 0), sum(input_tokens + output_tokens)
    from llm_calls where tenant = :tenant and happened_at >= :start group by bucket"""
)


_SUM_OF_TASK = Sql(
    """select count(*), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), sum(cost)
    from llm_calls where tenant = :tenant and task_id = :task_id"""
)


_HAS_CALLS = Sql("select 1 from llm_calls where tenant = :tenant limit 1")
_SPENDERS = Sql(
    f"""select subject, sum(tokens), sum(cost) as spent from llm_spent
    where tenant = :tenant and kind = :kind and day >= :day
    group by subject order by spent desc, subject limit {MAX_SUBJECTS}"""
)


_SPENT_BY_ALL = Sql(
    """select count(distinct subject), coalesce(sum(tokens), 0), coalesce(sum(cost), 0) from llm_spent
    where tenant = :tenant and kind = :kind and day >= :day"""
)
_COST_BY_AGENT = Sql(
    """select subject, sum(cost) from llm_spent
    where tenant = :tenant and kind = 'agent' and day >= :day group by subject"""
)


class Spender(msgspec.Struct, frozen=True):
    """A key, a team or an agent with the tokens and US dollars of its calls."""

    subject: str
    tokens: int
    dollars: float


class TaskCalls(msgspec.Struct, frozen=True):
    """What the model calls of a task add up to; `dollars` is None if no price is known."""

    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


class BudgetSpending(msgspec.Struct, frozen=True):
    """What a key, an agent, a team or a tenant spent of a budget in its current period, in tokens or US dollars.

    `unpriced_calls` used models without a known price: a budget in US dollars does not count them.
    """

    subject: str
    spent: float
    unpriced_calls: int = 0


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


def read_task_costs(tx: Tx, tenant: str, task_ids: Sequence[str]) -> dict[str, float]:
    """Return the US dollars that the calls of tasks cost, by task id; tasks without a known price are left out."""
    dollars = {task_id: read_task_calls(tx, tenant, task_id).dollars for task_id in task_ids}
    return {task_id: cost for task_id, cost in dollars.items() if cost is not None}


def read_agent_costs(tx: Tx, tenant: str, first_day: int) -> dict[str, float]:
    """Return the US dollars that the calls of each agent cost since a day (days since 1970 in UTC), by agent id."""
    rows = tx.rows(_COST_BY_AGENT, tenant=tenant, day=first_day)
    return {str(subject): int(cost) / NANOS_PER_DOLLAR for subject, cost in rows}


def has_calls(tx: Tx, tenant: str) -> bool:
    """Return whether the tenant ever called a model."""
    return tx.row(_HAS_CALLS, tenant=tenant) is not None


def read_spenders(tx: Tx, tenant: str, kind: str, first_day: int) -> list[Spender]:
    """Return the keys, teams or agents (`kind`) that spent most since a day, as a count of days since 1970 in UTC."""
    rows = tx.rows(_SPENDERS, tenant=tenant, kind=kind, day=first_day)
    return [Spender(str(subject), int(tokens), int(cost) / NANOS_PER_DOLLAR) for subject, tokens, cost in rows]


def read_spent_by_all(tx: Tx, tenant: str, kind: str, first_day: int) -> tuple[int, Spender]:
    """Return how many keys, teams or agents (`kind`) spent something since a day, and what they spent together."""
    count, tokens, cost = tx.rows(_SPENT_BY_ALL, tenant=tenant, kind=kind, day=first_day)[0]
    return int(count), Spender("", int(tokens), int(cost) / NANOS_PER_DOLLAR)


def read_spending(
    tx: Tx, tenant: str, budget: Budget, now: int, subject: str | None = None, least: int | None = None
) -> list[BudgetSpending]:
    """Return what is spent of a budget; of one that applies to each key, team or agent by those that spent most.

    `subject` restricts it to one of them. What is spent is listed with zero if nothing is. With `least`, in the unit of
    the budget's limit, all of those are returned that spent at least this amount.
    """
    subject = subject or (tenant if budget.kind == "tenant" else budget.subject)
    first_day = costs.first_day_of_period(budget.period, now)
    scale = costs.unit_scale(budget.unit)
    if subject != "*":
        account: BudgetAccount = (tenant, budget.kind, subject)
        spent = store.read_spent(tx, account, first_day)
        return [BudgetSpending(subject, (spent.tokens if budget.unit == "tokens" else spent.cost) / scale)]
    bounds = {"least": 0, "limit": MAX_SUBJECTS}
    if least is not None:
        bounds = {"least": min(least, MAX_NUMBER), "limit": MAX_NUMBER}
    rows = tx.rows(_SUM_SPENT[budget.unit], tenant=tenant, kind=budget.kind, day=first_day, **bounds)
    return [BudgetSpending(str(spender), int(spent) / scale) for spender, spent in rows]


def count_unpriced(tx: Tx, tenant: str, first_day: int, find_team: FindTeam) -> Counter[BudgetAccount]:
    """Count the calls with a model without a known price since a day, by key, team that it has now, agent and tenant.

    Only among the newest MAX_WINDOW_CALLS calls, so that a page does not read those of a busy month.
    """
    counts: Counter[BudgetAccount] = Counter()
    for key, agent_id, count in tx.rows(_COUNT_UNPRICED, tenant=tenant, since=first_day * DAY):
        accounts: list[BudgetAccount] = [(tenant, "key", str(key)), (tenant, "tenant", tenant)]
        if team := find_team(tenant, str(key)):
            accounts.append((tenant, "team", team))
        if agent_id is not None:
            accounts.append((tenant, "agent", str(agent_id)))
        for account in accounts:
            counts[account] += int(count)
    return counts


def iter_spending_tenants(tx: Tx) -> Iterator[str]:
    """Yield the tenants whose keys or agents ever spent anything."""
    return tx.iter_distinct(_NEXT_SPENDING_TENANT)


def read_cost_series(tx: Tx, tenant: str, start: int, width: int, count: int) -> dict[str, list[float]]:
    """Return the dollars and tokens of calls in `count` buckets of time; `start` and `width` in microseconds."""
    dollars, tokens = [0.0] * count, [0.0] * count
    for bucket, cost, token_count in tx.rows(_SUM_COST, tenant=tenant, start=start, width=width):
        if 0 <= bucket < count:
            dollars[int(bucket)], tokens[int(bucket)] = float(cost) / NANOS_PER_DOLLAR, float(token_count)
    return {"dollars": dollars, "tokens": tokens}


_CALL_COLUMNS = ", ".join(("happened_at", *CallRow.__struct_fields__))
_CALL_CONDITIONS = {
    "provider": "provider = :provider",
    "model": "model = :model",
    "key_name": "key_name = :key_name",
    "agent_id": "agent_id = :agent_id",
    "team": "team = :team",
    # As a number, so that one statement serves both values.
    "failed": "(case when outcome = 'ok' then 0 else 1 end) = :failed",
}
_SCOPE_CONDITIONS = {
    "task_id": "task_id = :task_id",
    "before": "(happened_at, call_id) < (:before_time, :before_id)",
    "since": "happened_at >= :since",
    "until": "happened_at < :until",
}
"""Conditions for which there is an index."""
CallOrder = Literal["newest", "cost"]
_ORDER_BY = {
    "newest": "happened_at desc, call_id desc",
    "cost": "coalesce(cost, -1) desc, happened_at desc, call_id desc",
}
_CONDITIONS = {**_CALL_CONDITIONS, **_SCOPE_CONDITIONS}
_FIND_CALL = Sql(f"select {_CALL_COLUMNS} from llm_calls where tenant = :tenant and call_id = :call_id")


class RecordedCall(CallRow, frozen=True, kw_only=True):
    """A call as it is stored; `happened_at` is its end, in microseconds."""

    happened_at: int

    @property
    def cost_usd(self) -> float | None:
        return None if self.cost is None else self.cost / NANOS_PER_DOLLAR


class CallFilter(msgspec.Struct, frozen=True):
    """None means all; `failed` 1 or 0. `before` is the time and the id of the call after which a page begins.

    `since` (included) and `until` (excluded) are times in microseconds.
    """

    provider: str | None = None
    model: str | None = None
    key_name: str | None = None
    agent_id: str | None = None
    failed: int | None = None
    task_id: str | None = None
    before: tuple[int, str] | None = None
    since: int | None = None
    until: int | None = None
    team: str | None = None


def list_calls(
    tx: Tx, tenant: str, call_filter: CallFilter, limit: int, order: CallOrder = "newest"
) -> tuple[list[RecordedCall], tuple[int, str] | None]:
    """Return the matching calls in an order, and where the next page begins; None if there is none.

    By `cost` it is one page: the most expensive of the newest `MAX_WINDOW_CALLS`, those without a known price last.
    """
    names = tuple(name for name in _CALL_CONDITIONS if getattr(call_filter, name) is not None)
    scope = tuple(name for name in _SCOPE_CONDITIONS if getattr(call_filter, name) is not None)
    params = {name: getattr(call_filter, name) for name in scope if name != "before"}
    if call_filter.before is not None:
        params["before_time"], params["before_id"] = call_filter.before
    window: tuple[int, str] | None = None
    # Without a filter, or with the index of tasks, a page does not look through more calls than it has.
    if (names or order == "cost") and call_filter.task_id is None:
        last = tx.row(_window_sql(scope), tenant=tenant, **params)
        if last is not None:
            # The next page begins behind all calls of this microsecond.
            window = (int(last[0]), "")
            scope, params["since"] = tuple(dict.fromkeys((*scope, "since"))), window[0]
    params |= {name: getattr(call_filter, name) for name in names}
    rows = tx.rows(_page_sql((*scope, *names), order), tenant=tenant, **params, limit=limit + 1)
    calls = [_to_call(row) for row in rows[:limit]]
    if order == "cost":
        return calls, None
    return calls, (calls[-1].happened_at, calls[-1].call_id) if len(rows) > limit else window


def _to_call(row: Row) -> RecordedCall:
    return RecordedCall(*row[1:], happened_at=row[0])


def require_call(tx: Tx, tenant: str, call_id: str) -> RecordedCall:
    """Return a call. Raises NotFound."""
    row = tx.row(_FIND_CALL, tenant=tenant, call_id=call_id)
    if row is None:
        raise NotFound("No call of a model has this id.")
    return _to_call(row)


def read_event(tx: Tx, tenant: str, call_id: str) -> JsonObject:
    """Return the metadata of a call's event, empty if the event is gone."""
    event = events.find_event(tx, tenant, call_id)
    return parse_event(event).metadata if event else {}


# There are only a few combinations of conditions.
@cache
def _page_sql(conditions: tuple[str, ...], order: CallOrder) -> Sql:
    where = " and ".join(["tenant = :tenant", *(_CONDITIONS[name] for name in conditions)])
    return Sql(f"select {_CALL_COLUMNS} from llm_calls where {where} order by {_ORDER_BY[order]} limit :limit")


@cache
def _window_sql(scope: tuple[str, ...]) -> Sql:
    where = " and ".join(["tenant = :tenant", *(_CONDITIONS[name] for name in scope)])
    # Only by time, which an index has without reading the calls.
    return Sql(
        f"select happened_at from llm_calls where {where} order by happened_at desc limit 1 "
        f"offset {MAX_WINDOW_CALLS - 1}"
    )
