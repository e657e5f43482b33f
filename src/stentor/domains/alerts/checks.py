"""The checks: each returns what is wrong now, with a message that says so and names who is concerned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from stentor.auth.principal import DEFAULT_TENANT
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.domains.alerts.model import (
    FAILURE_WINDOW_US,
    AlertKey,
    AlertKind,
    Finding,
    Thresholds,
    describe_duration,
    failure_findings,
)
from stentor.domains.alerts.service import Check
from stentor.domains.llm import queries as llm_queries
from stentor.domains.llm.costs import Budget
from stentor.domains.llm.queries import BudgetSpending
from stentor.domains.monitoring.service import HealthComponent
from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks.queries import MAX_COUNTED

WAITING: tuple[tuple[str, AlertKind, str], ...] = (
    ("queued", "queue", "in the queue"),
    ("pending_approval", "approvals", "for approval"),
)
"""Status of the tasks, kind of the alert, and what they wait for."""


def task_check(db: Database, clock: Clock, thresholds: Thresholds) -> Check:
    """Return a check for tasks that fail, and that wait too long in the queue or for approval."""

    def find(tx: Tx) -> list[Finding]:
        findings = []
        for tenant in task_queries.iter_tenants(tx):
            if thresholds.failure_percent:
                outcomes = task_queries.count_outcomes(tx, tenant, clock.now() - FAILURE_WINDOW_US)
                names = registry_queries.read_names(tx, tenant) if outcomes else {}
                findings += failure_findings(tenant, outcomes, names, thresholds.failure_percent)
            if thresholds.wait_us:
                findings += _find_waiting(tx, tenant, clock.now(), thresholds.wait_us)
        return findings

    async def check(_: frozenset[AlertKey]) -> list[Finding]:
        return await db.read(find)

    return check


def _find_waiting(tx: Tx, tenant: str, now: int, wait_us: int) -> list[Finding]:
    findings = []
    for status, kind, what in WAITING:
        count, since = task_queries.find_oldest(tx, tenant, status)
        if since is not None and now - since >= wait_us:
            number = f"{count}+" if count == MAX_COUNTED else str(count)
            text = f"{number} task{'s wait' if count > 1 else ' waits'} {what}"
            text += f", {'the oldest ' if count > 1 else ''}for {describe_duration(now - since)}."
            findings.append(Finding(tenant, kind, "", "warning", text))
    return findings


def agent_check(agents: AgentCache, presence: Presence, clock: Clock, thresholds: Thresholds) -> Check:
    """Return a check for agents that are quarantined, and for active ones that went offline."""

    def is_gone(agent: Agent, open_keys: frozenset[AlertKey]) -> bool:
        if agent.status != "active" or not thresholds.wait_us or presence.is_online(agent):
            return False
        if agent.runtime.kind != "worker" or (agent.tenant, "agent_offline", agent.agent_id) in open_keys:
            return True
        # Nobody waits for a worker that was registered and never started.
        seen = presence.last_seen(agent.agent_id)
        return seen is not None and clock.now() - seen >= thresholds.wait_us

    async def check(open_keys: frozenset[AlertKey]) -> list[Finding]:
        findings = []
        for agent in agents.list_all():
            if agent.status == "quarantined":
                reason = f": {agent.status_reason}" if agent.status_reason else "."
                findings.append(_agent_finding(agent, "agent_quarantined", f"{agent.name} is quarantined{reason}"))
            elif is_gone(agent, open_keys):
                text = f"{agent.name} is offline. Start its worker, or suspend the agent."
                if agent.runtime.kind != "worker":
                    text = f"The endpoint of {agent.name} does not answer."
                findings.append(_agent_finding(agent, "agent_offline", text))
        return findings

    return check


def _agent_finding(agent: Agent, kind: AlertKind, text: str) -> Finding:
    severity = "critical" if kind == "agent_quarantined" else "warning"
    return Finding(agent.tenant, kind, agent.agent_id, severity, text, agent.agent_id)  # type: ignore[arg-type]


def budget_check(db: Database, clock: Clock, list_budgets: Callable[[], tuple[Budget, ...]], percent: float) -> Check:
    """Return a check for budgets of model calls that are nearly or wholly spent."""

    def find(tx: Tx) -> list[Finding]:
        budgets = list_budgets()
        if not budgets or not percent:
            return []
        return [
            _budget_finding(tenant, spending)
            for tenant in llm_queries.iter_spending_tenants(tx)
            for spending in llm_queries.read_spending(tx, tenant, budgets, clock.now())
            if spending.spent and spending.spent * 100 >= percent * spending.limit
        ]

    async def check(_: frozenset[AlertKey]) -> list[Finding]:
        return await db.read(find)

    return check


def _budget_finding(tenant: str, spending: BudgetSpending) -> Finding:
    is_used_up = spending.spent >= spending.limit
    subject = f"{spending.kind}:{spending.subject}:{spending.unit}/{spending.period}"
    amounts = [f"{amount:,.2f} US dollars" for amount in (spending.spent, spending.limit)]
    if spending.unit == "tokens":
        amounts = [f"{amount:,.0f} tokens" for amount in (spending.spent, spending.limit)]
    text = f"The {spending.kind} {spending.subject} has spent {amounts[0]} of {amounts[1]} this {spending.period}"
    text += "; its calls are refused." if is_used_up else "."
    # Two subjects, so that a budget that is used up is an alert of its own after the warning.
    subject += " used up" if is_used_up else ""
    return Finding(tenant, "budget", subject, "critical" if is_used_up else "warning", text)


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
