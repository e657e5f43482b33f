"""Wires what notifies others.

Webhooks: the outbox behind the run log, the dispatcher of deliveries, health and metrics. Alerts: what is checked, and
where e-mails go.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.core import Metric

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.bootstrap.parts.llm import LlmParts
from stentor.core.clock import DAY, SECOND
from stentor.core.db import Database, Tx
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.mail import Mailer
from stentor.core.security.sealing import Sealer
from stentor.core.settings.alerts import AlertSettings, parse_smtp_url
from stentor.domains.alerts import checks
from stentor.domains.alerts.model import Thresholds
from stentor.domains.alerts.service import AlertService
from stentor.domains.monitoring.service import HealthComponent, HealthService
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import queries, store
from stentor.domains.webhooks.delivery_log import DeliveryLog
from stentor.domains.webhooks.dispatcher import DeliveryDispatcher
from stentor.domains.webhooks.outbox import SubscriptionIndex, WebhookOutbox
from stentor.domains.webhooks.sender import WebhookSender
from stentor.domains.webhooks.service import WebhookService

RESOLVER_THREADS = 128
"""More than the attempts to degraded endpoints, so that names that do not resolve hold up nothing else."""


@dataclass(frozen=True)
class WebhookParts:
    service: WebhookService
    delivery_log: DeliveryLog
    dispatcher: DeliveryDispatcher
    outbound: OutboundHttp
    db: Database

    async def check(self) -> HealthComponent:
        """Return the health of webhooks without counts, which would be those of all tenants; the metrics have them."""
        await self.db.read(queries.count_deliveries)
        return HealthComponent("available", "can be delivered")

    def collect_metrics(self, tx: Tx) -> list[Metric]:
        return queries.collect_metrics(tx, self.dispatcher.counts)

    async def start(self) -> None:
        await self.dispatcher.start()

    async def stop(self) -> None:
        await self.dispatcher.stop()
        await self.outbound.close()


def open_webhooks(infra: Infrastructure) -> WebhookParts:
    """From now on a commit that appends an event to the run log also queues its deliveries."""
    settings, db, runlog = infra.settings, infra.db, infra.runlog
    outbound = OutboundHttp(
        # 0 means no limit: the dispatcher limits its attempts itself, and a slow endpoint must not hold up the others.
        settings.server.outbound_allow,
        max_connections=0,
        resolver_threads=RESOLVER_THREADS,
        keep_compressed=True,
    )
    sealer, subscriptions = Sealer(settings.storage.data_dir, settings.llm.master_key), SubscriptionIndex()
    dispatcher = DeliveryDispatcher(
        db,
        runlog,
        sealer,
        subscriptions,
        WebhookSender(outbound, infra.clock, settings.webhooks.timeout_seconds),
        read_result,
        # Longer than an attempt can take, so that no other process sends what is still being sent.
        int(max(settings.tasks.lease_seconds, 2 * settings.webhooks.timeout_seconds) * SECOND),
        shared=not infra.is_single_process,
        retention_us=settings.webhooks.retention_days * DAY,
    )
    db.set_aside[store.TABLE] = dispatcher.set_aside
    # Runs in the event's transaction, unlike the hub's listeners: a crash after the commit must not lose a delivery.
    runlog.append_hooks.append(WebhookOutbox(subscriptions, dispatcher.wake_workers).record)
    service = WebhookService(
        db,
        runlog,
        sealer,
        outbound.check_url,
        subscriptions,
        dispatcher.deliver_now,
        dispatcher.lease_us,
        dispatcher.start_deletion,
    )
    return WebhookParts(service, DeliveryLog(db, runlog, dispatcher.wake_workers), dispatcher, outbound, db)


def open_alerts(infra: Infrastructure, agents: AgentServices, llm: LlmParts, health: HealthService) -> AlertService:
    """Wire the checks of everything that alerts are about."""
    settings, db, clock = infra.settings.alerts, infra.db, infra.clock
    configured = Thresholds(settings.failure_percent, settings.wait_seconds, settings.budget_percent)
    service = AlertService(db, infra.runlog, clock, configured, _open_mailer(settings))
    find = service.find_thresholds
    for check in (
        checks.task_check(db, clock, find),
        checks.AgentCheck(db, agents.registry.agents, agents.presence, clock, find),
        checks.budget_check(db, clock, lambda: llm.ledger.budgets, find),
        checks.key_check(db, clock),
        checks.component_check(health.check_components),
    ):
        service.add_check(check)
    return service


def _open_mailer(settings: AlertSettings) -> Mailer | None:
    if not settings.smtp_url or not settings.emails:
        return None
    return Mailer(parse_smtp_url(settings.smtp_url), settings.emails, settings.email_from)
