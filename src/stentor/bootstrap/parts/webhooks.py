"""Wires webhooks: the outbox behind the run log, the dispatcher of deliveries, health and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.core import Metric

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.core.clock import DAY, SECOND
from stentor.core.db import Database, Tx
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.security.sealing import Sealer
from stentor.domains.monitoring.service import HealthComponent
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import queries
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
        """Return the health of webhooks, which is public and therefore has only counts."""
        counts = await self.db.read(queries.count_deliveries)
        detail = "{enabled} enabled, {disabled} disabled, {waiting} waiting".format(**counts)
        return HealthComponent("available", detail)

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
        # 0 is no limit: the dispatcher limits its attempts itself, and a slow endpoint must not hold up the others.
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
    # In the transaction of the event, unlike the hub's listeners: a delivery must not be lost in a crash after it.
    runlog.append_hooks.append(WebhookOutbox(subscriptions, dispatcher.wake_workers).record)
    service = WebhookService(
        db,
        runlog,
        sealer,
        outbound.check_url,
        subscriptions,
        dispatcher.deliver,
        dispatcher.lease_us,
        dispatcher.start_deletion,
    )
    return WebhookParts(service, DeliveryLog(db, runlog, dispatcher.wake_workers), dispatcher, outbound, db)
