"""What every part of the service is built on."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from stentor.auth.principal import RoleRegistry
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import StartRefused
from stentor.core.fanout import CacheInvalidated, Fanout, FanoutTransport
from stentor.core.fanout.live import Hub
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.lazy_import import install_command
from stentor.core.runlog import RunLog, RunLogEvent
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings

INVALIDATING_EVENTS = frozenset(
    (
        "agent_registered",
        "agent_updated",
        "agent_status_changed",
        "violation_recorded",
        "provider_changed",
        "key_changed",
        "budget_changed",
        "model_route_changed",
        "person_changed",
        # A session is found in memory: without a refresh another process would answer 401 to it until its next poll.
        "signed_in",
        "webhook_changed",
        "webhook_disabled",
        "update_deployed",
        "update_rolled_back",
        "rollback_completed",
    )
)
"""Events after which the in-memory state of other processes is stale."""


@dataclass(frozen=True)
class Infrastructure:
    """The database, the run log and the other tools that all parts share."""

    settings: Settings
    db: Database
    clock: Clock
    fanout: Fanout
    hub: Hub
    runlog: RunLog
    outbound: OutboundHttp
    roles: RoleRegistry
    redactor: Redactor

    @property
    def is_single_process(self) -> bool:
        """Whether no other process can use the database."""
        return not self.db.driver.shared


def open_infrastructure(
    settings: Settings,
    db: Database,
    clock: Clock,
    create_runlog: Callable[[Hub], RunLog],
    redactor: Redactor | None,
) -> Infrastructure:
    """Raises StartRefused."""
    fanout = _open_fanout(settings, db)
    hub = Hub(fanout)
    runlog = create_runlog(hub)
    _announce_changes(runlog, fanout)
    outbound = OutboundHttp(settings.server.outbound_allow)
    roles = RoleRegistry(clock.now)
    return Infrastructure(settings, db, clock, fanout, hub, runlog, outbound, roles, redactor or Redactor())


def _open_fanout(settings: Settings, db: Database) -> Fanout:
    if not db.driver.shared:
        return Fanout()
    if settings.process.nats_url:
        # The transports need extras that SQLite installations do not have, so they are imported by name.
        return Fanout(_transport("nats", "NatsTransport", settings.process.nats_url, settings.process.nats_subject))
    storage = settings.storage
    url = storage.database_url or db.driver.url  # pyrefly: ignore[missing-attribute] - only PostgresDriver is shared, whose module needs an extra
    return Fanout(_transport("postgres", "PostgresTransport", url, storage.session_url))


def _transport(module: str, name: str, *arguments: str) -> FanoutTransport:
    try:
        transport: FanoutTransport = getattr(importlib.import_module(f"stentor.core.fanout.{module}"), name)(*arguments)
    except ImportError:
        raise StartRefused(f"SERVICE_NATS_URL needs the extra: {install_command('nats')}.") from None
    return transport


def _announce_changes(runlog: RunLog, fanout: Fanout) -> None:
    """Tell other processes to reload when something changes that they hold in memory."""

    def record(tx: Tx, tenant: str, events: list[RunLogEvent]) -> None:
        if any(event.event_type in INVALIDATING_EVENTS for event in events):
            # After the commit: a process that reloads earlier would not see the change.
            tx.after_commit(lambda: fanout.send(CacheInvalidated()))

    # Nobody would receive the message, so a single process does not pay for the hook.
    if not fanout.is_single_process:
        runlog.append_hooks.append(record)
