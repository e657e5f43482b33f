"""The checks: each returns what is wrong now, as findings whose messages name the agent, key, budget or component."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from stentor.auth.principal import DEFAULT_TENANT
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.domains.alerts.model import (
    FAILURE_WINDOW_US,
    KEY_WARNING_US,
    AlertKey,
    AlertKind,
    Finding,
    Thresholds,
    describe_duration,
    failure_findings,
    key_finding,
)
from stentor.domains.alerts.service import Check
from stentor.domains.keys import store as key_store
from stentor.domains.llm import queries as llm_queries
from stentor.domains.llm.costs import Budget, format_dollars, unit_scale
from stentor.domains.llm.queries import BudgetSpending
from stentor.domains.monitoring.service import HealthComponent
from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry import store as registry_store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.model_checks import describe_unserved
from stentor.domains.registry.presence import Presence
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks.queries import MAX_COUNTED

FindThresholds = Callable[[str], Thresholds]
"""Returns the thresholds in force of a tenant."""
WAITING: tuple[tuple[str, AlertKind, str], ...] = (
    ("queued", "queue", "in the queue"),
    ("pending_approval", "approvals", "for approval"),
)
"""Status of the tasks, kind of the alert, and what they wait for."""


def _in_transaction(db: Database, find: Callable[[Tx], list[Finding]]) -> Check:
    async def check(_: frozenset[AlertKey]) -> list[Finding]:
        return await db.read(find)

    return check


def task_check(db: Database, clock: Clock, find_thresholds: FindThresholds) -> Check:
    """Return a check for tasks that fail, and that wait too long in the queue or for approval."""

    def find(tx: Tx) -> list[Finding]:
        findings = []
        for tenant in task_queries.iter_tenants(tx):
            thresholds = find_thresholds(tenant)
            if thresholds.failure_percent:
                outcomes = task_queries.count_outcomes(tx, tenant, clock.now() - FAILURE_WINDOW_US)
                names = registry_queries.read_names(tx, tenant) if outcomes else {}
                findings += failure_findings(tenant, outcomes, names, thresholds.failure_percent)
            if thresholds.wait_us:
                findings += _find_waiting(tx, tenant, clock.now(), thresholds.wait_us)
        return findings

    return _in_transaction(db, find)


def _find_waiting(tx: Tx, tenant: str, now: int, wait_us: int) -> list[Finding]:
    findings = []
    for status, kind, what in WAITING:
        count, since = task_queries.find_oldest(tx, tenant, status)
        if since is not None and now - since >= wait_us:
            number = f"{count:,}{'+' if count == MAX_COUNTED else ''}"
            text = f"{number} task{'s wait' if count > 1 else ' waits'} {what}"
            text += f", {'the oldest ' if count > 1 else ''}for {describe_duration(now - since)}."
            findings.append(Finding(tenant, kind, "", "warning", text))
    return findings


class AgentCheck:
    """A check for agents that are quarantined, and for active ones that went offline."""

    def __init__(
        self, db: Database, agents: AgentCache, presence: Presence, clock: Clock, find_thresholds: FindThresholds
    ) -> None:
        self._db, self._agents, self._presence, self._clock = db, agents, presence, clock
        self._find_thresholds = find_thresholds
        self._started = clock.now()
        self._first_tasks: dict[str, int] = {}

    async def __call__(self, open_keys: frozenset[AlertKey]) -> list[Finding]:
        found = [await self._check(agent, open_keys) for agent in self._agents.list_all()]
        return [finding for finding in found if finding is not None]

    async def _check(self, agent: Agent, open_keys: frozenset[AlertKey]) -> Finding | None:
        if agent.is_archived:
            return None
        if agent.status == "quarantined":
            reason = f": {agent.status_reason}" if agent.status_reason else "."
            return _agent_finding(agent, "agent_quarantined", f"{agent.name} is quarantined{reason}")
        wait_us = self._find_thresholds(agent.tenant).wait_us
        if agent.status != "active" or not wait_us:
            return None
        if agent.runtime.kind == "http":
            # Not while it is paused: the pause ends by itself, and with a task now and then each would open an alert.
            if self._presence.is_unreachable(agent.agent_id):
                return _agent_finding(agent, "agent_offline", f"The endpoint of {agent.name} does not answer.")
            return None
        if self._presence.is_online(agent):
            return None
        if agent.runtime.kind == "llm":
            return _agent_finding(agent, "agent_offline", f"{agent.name} is offline: {describe_unserved(agent)}.")
        # An open alert stays open across a restart, which forgets when the worker was last seen.
        if (agent.tenant, "agent_offline", agent.agent_id) in open_keys or await self._is_missed(agent, wait_us):
            text = f"{agent.name} is offline. Start its worker, or archive the agent."
            return _agent_finding(agent, "agent_offline", text)
        return None

    async def _is_missed(self, agent: Agent, wait_us: int) -> bool:
        """Return whether an offline worker is worth an alert: this process saw it, or it has had tasks.

        Nobody waits for one that was registered and never started. One that stopped together with the service was not
        seen by this process.
        """
        since = self._presence.last_seen(agent.agent_id)
        if since is None:
            first = self._first_tasks.get(agent.agent_id) or await self._find_first_task(agent)
            # After a start every worker looks offline until its first poll, so the wait counts from then.
            since = None if first is None else max(first, self._started)
        return since is not None and self._clock.now() - since >= wait_us

    async def _find_first_task(self, agent: Agent) -> int | None:
        """Return when the first task of an agent was submitted, and remember it; None as long as it has none."""
        first = await self._db.read(lambda tx: registry_store.find_first_task_time(tx, agent.tenant, agent.agent_id))
        if first is not None:
            self._first_tasks[agent.agent_id] = first
        return first


def _agent_finding(agent: Agent, kind: AlertKind, text: str) -> Finding:
    severity = "critical" if kind == "agent_quarantined" else "warning"
    return Finding(agent.tenant, kind, agent.agent_id, severity, text, agent.agent_id)


def budget_check(
    db: Database, clock: Clock, list_budgets: Callable[[], tuple[Budget, ...]], find_thresholds: FindThresholds
) -> Check:
    """Return a check for budgets of model calls that are nearly or wholly spent."""

    def find(tx: Tx) -> list[Finding]:
        findings = []
        budgets = list_budgets()
        # Without budgets no tenant is looked up.
        for tenant in llm_queries.iter_spending_tenants(tx) if budgets else ():
            percent = find_thresholds(tenant).budget_percent
            for budget in budgets if percent else ():
                if budget.concerns(tenant):
                    findings += _find_nearly_spent(tx, tenant, budget, percent, clock.now())
        return findings

    return _in_transaction(db, find)


def _find_nearly_spent(tx: Tx, tenant: str, budget: Budget, percent: float, now: int) -> list[Finding]:
    limit = budget.limit / unit_scale(budget.unit)
    least = int(budget.limit * percent / 100)
    spendings = llm_queries.read_spending(tx, tenant, budget, now, least=least)
    return [
        _budget_finding(tenant, budget, limit, spending)
        for spending in spendings
        if spending.spent and spending.spent * 100 >= percent * limit
    ]


def _budget_finding(tenant: str, budget: Budget, limit: float, spending: BudgetSpending) -> Finding:
    is_used_up = spending.spent >= limit
    subject = f"{budget.kind}:{spending.subject}:{budget.unit}/{budget.period}"
    amount = f"{format_dollars(spending.spent)} of {format_dollars(limit)}"
    if budget.unit == "tokens":
        amount = f"{spending.spent:,.0f} of {limit:,.0f} tokens"
    period = "today (UTC)" if budget.period == "day" else "this month"
    text = f"The {budget.kind} {spending.subject} has spent {amount} {period}"
    text += "; its calls are refused." if is_used_up else "."
    # Two subjects, so that a budget that is used up is an alert of its own after the warning.
    subject += " used up" if is_used_up else ""
    return Finding(tenant, "budget", subject, "critical" if is_used_up else "warning", text)


def key_check(db: Database, clock: Clock) -> Check:
    """Return a check for keys made at runtime that expire soon, or have expired."""

    def find(tx: Tx) -> list[Finding]:
        now = clock.now()
        rows = key_store.list_expiring(tx, now - KEY_WARNING_US, now + KEY_WARNING_US)
        findings = [key_finding(*row, now=now) for row in rows]
        return [finding for finding in findings if finding is not None]

    return _in_transaction(db, find)


def component_check(read_components: Callable[[], Awaitable[Mapping[str, HealthComponent]]]) -> Check:
    """Return a check for components of the service that are unavailable; they belong to the default tenant."""

    async def check(_: frozenset[AlertKey]) -> list[Finding]:
        return [
            Finding(
                DEFAULT_TENANT,
                "component",
                name,
                "critical",
                f"The component {name.replace('_', ' ')} is unavailable: {_clean(component.detail)}.",
            )
            for name, component in (await read_components()).items()
            if component.status == "unavailable"
        ]

    return check


def _clean(detail: str | None) -> str:
    """Return a detail, which may quote anything, as one line that a database takes."""
    return " ".join((detail or "no reason given").replace("\0", " ").split()).rstrip(".")
