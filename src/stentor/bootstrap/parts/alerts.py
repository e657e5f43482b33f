"""Wires the alerts: what is checked, and where e-mails go."""

from __future__ import annotations

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.bootstrap.parts.llm import LlmParts
from stentor.core.clock import SECOND
from stentor.core.mail import Mailer
from stentor.core.settings.alerts import AlertSettings, parse_smtp_url
from stentor.domains.alerts import checks
from stentor.domains.alerts.model import Thresholds
from stentor.domains.alerts.service import AlertService
from stentor.domains.monitoring.service import HealthService


def open_alerts(infra: Infrastructure, agents: AgentServices, llm: LlmParts, health: HealthService) -> AlertService:
    """Wire the checks of everything that alerts are about."""
    settings, db, clock = infra.settings.alerts, infra.db, infra.clock
    wait_us = int(settings.wait_seconds * SECOND)
    thresholds = Thresholds(settings.failure_percent, wait_us, settings.budget_percent)
    return AlertService(
        db,
        infra.runlog,
        clock,
        [
            checks.task_check(db, clock, thresholds),
            checks.AgentCheck(db, agents.registry.agents, agents.presence, clock, thresholds),
            checks.budget_check(db, clock, lambda: llm.ledger.budgets, thresholds.budget_percent),
            checks.component_check(health.check_components),
        ],
        _open_mailer(settings),
    )


def _open_mailer(settings: AlertSettings) -> Mailer | None:
    if not settings.smtp_url or not settings.emails:
        return None
    return Mailer(parse_smtp_url(settings.smtp_url), settings.emails, settings.email_from)
