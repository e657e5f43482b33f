"""Wires webhooks: the outbox under the run log, the deliverer, the routes, health and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.core import Metric

from stentor.core.clock import DAY, SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.runlog import RunLog
from stentor.core.security.sealing import Sealer
from stentor.core.settings import Settings
from stentor.domains.monitoring.service import HealthComponent
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import queries
from stentor.domains.webhooks.delivery_log import DeliveryLog
from stentor.domains.webhooks.dispatcher import DeliveryDispatcher
from stentor.domains.webhooks.outbox import SubscriptionIndex, WebhookOutbox
from stentor.domains.webhooks.sender import WebhookSender
from stentor.domains.webhooks.service import WebhookService

THREADS = 128
"""More than there are attempts to ailing endpoints, so that names that hang do not hold up the others."""


@dataclass
class Hooks:
    """The wired parts. `start` and `stop` run on the event loop that serves."""

    webhooks: WebhookService
    history: DeliveryLog
    deliverer: DeliveryDispatcher
    outbound: OutboundHttp

    db: Database

    async def check(self) -> HealthComponent:
        """For the detailed health, which is public: numbers alone."""
        found = await self.db.read(queries.count_deliveries)
        return HealthComponent("available", "{enabled} enabled, {disabled} disabled, {waiting} waiting".format(**found))

    def metrics(self, tx: Tx) -> list[Metric]:
        return queries.collect_metrics(tx, self.deliverer.counts)

    async def start(self) -> None:
        await self.deliverer.start()

    async def stop(self) -> None:
        await self.deliverer.stop()
        await self.outbound.close()


def open_webhooks(settings: Settings, db: Database, clock: Clock, runlog: RunLog) -> Hooks:
    """From now on the run log writes deliveries for its events."""
    outbound = OutboundHttp(settings.outbound_allow, max_connections=0, resolver_threads=THREADS, keep_compressed=True)
    sealer, view = Sealer(settings.data_dir, settings.master_key), SubscriptionIndex()
    sender = WebhookSender(outbound, clock, settings.webhook_timeout)
    deliverer = DeliveryDispatcher(
        db,
        runlog,
        sealer,
        view,
        sender,
        read_result,
        int(max(settings.lease, 2 * settings.webhook_timeout) * SECOND),
        shared=db.driver.shared,
        retention_us=settings.webhook_retention * DAY,
    )
    runlog.append_hooks.append(WebhookOutbox(view, deliverer.wake_workers).record)
    webhooks = WebhookService(
        db, runlog, sealer, outbound.check_url, view, deliverer.deliver, deliverer.lease_us, deliverer.start_deletion
    )
    return Hooks(webhooks, DeliveryLog(db, runlog, deliverer.wake_workers), deliverer, outbound, db)
