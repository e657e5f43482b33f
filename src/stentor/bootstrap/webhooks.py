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
from stentor.domains.monitoring.service import Component
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import figures, listing
from stentor.domains.webhooks.deliverer import Deliverer
from stentor.domains.webhooks.history import History
from stentor.domains.webhooks.outbox import Outbox, View
from stentor.domains.webhooks.sender import Sender
from stentor.domains.webhooks.service import Webhooks

THREADS = 128
"""More than there are attempts to ailing endpoints, so that names that hang do not hold up the others."""


@dataclass
class Hooks:
    """The wired parts. `start` and `stop` run on the event loop that serves."""

    webhooks: Webhooks
    history: History
    deliverer: Deliverer
    outbound: OutboundHttp

    db: Database

    async def check(self) -> Component:
        """For the detailed health, which is public: numbers alone."""
        found = await self.db.read(listing.figures)
        return Component("available", "{enabled} enabled, {disabled} disabled, {waiting} waiting".format(**found))

    def metrics(self, tx: Tx) -> list[Metric]:
        return figures.metrics(tx, self.deliverer.counts)

    async def start(self) -> None:
        await self.deliverer.start()

    async def stop(self) -> None:
        await self.deliverer.stop()
        await self.outbound.close()


def open_webhooks(settings: Settings, db: Database, clock: Clock, runlog: RunLog) -> Hooks:
    """From now on the run log writes deliveries for its events."""
    outbound = OutboundHttp(settings.outbound_allow, max_connections=0, resolver_threads=THREADS, keep_compressed=True)
    sealer, view = Sealer(settings.data_dir, settings.master_key), View()
    sender = Sender(outbound, clock, settings.webhook_timeout)
    deliverer = Deliverer(
        db,
        runlog,
        sealer,
        view,
        sender,
        read_result,
        int(max(settings.lease, 2 * settings.webhook_timeout) * SECOND),
        shared=db.driver.shared,
        retention=settings.webhook_retention * DAY,
    )
    runlog.append_hooks.append(Outbox(view, deliverer.arrived).record)
    webhooks = Webhooks(
        db, runlog, sealer, outbound.check_url, view, deliverer.carry, deliverer.lease, deliverer.forget
    )
    return Hooks(webhooks, History(db, runlog, deliverer.arrived), deliverer, outbound, db)
