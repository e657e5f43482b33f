"""Wires what differs between one process and several on one database: the engine, and what they tell each other."""

from __future__ import annotations

import importlib

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import StartRefused
from stentor.core.fanout import CacheInvalidated, Fanout, FanoutTransport, WorkerSeen
from stentor.core.runlog import RunLog, RunLogEvent
from stentor.core.settings import Settings
from stentor.domains.execution.dispatcher import Dispatcher, RegistryFreshness
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.execution.in_memory_dispatcher import InMemoryDispatcher
from stentor.domains.execution.postgres_dispatcher import PostgresDispatcher
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.routing.service import LoadLookup

KEPT_IN_MEMORY = frozenset(
    (
        "agent_registered",
        "agent_updated",
        "agent_status_changed",
        "violation_recorded",
        "provider_changed",
        "webhook_changed",
        "webhook_disabled",
        "update_deployed",
        "update_rolled_back",
        "rollback_completed",
    )
)
"""Events after which the memory of other processes is old."""


def open_fanout(settings: Settings, db: Database) -> Fanout:
    """Without a transport where no other process can be. Raises StartRefused."""
    if not db.driver.shared:
        return Fanout()
    if settings.nats_url:
        return Fanout(_transport("nats", "NatsTransport", settings.nats_url, settings.nats_subject))
    return Fanout(_transport("postgres", "PostgresTransport", settings.database_url or db.driver.url))  # type: ignore[attr-defined]


def open_engine(
    settings: Settings, db: Database, attempts: TaskExecutor, known: RegistryFreshness, fanout: Fanout
) -> Dispatcher:
    if db.driver.shared:
        return PostgresDispatcher(
            db, attempts, known, fanout, settings.concurrency, runs_agents="worker" in settings.roles
        )
    return InMemoryDispatcher(db, attempts, settings.concurrency)


def open_presence(settings: Settings, clock: Clock, fanout: Fanout) -> Presence:
    """What this process and the others know of who can take work."""
    presence = Presence(clock, settings.worker_offline, lambda agent_id, at: fanout.send(WorkerSeen(agent_id, at)))
    fanout.subscribe(WorkerSeen, lambda seen: presence.record_seen_elsewhere(seen.agent_id, seen.at))
    return presence


def load_of(dispatcher: Dispatcher, presence: Presence) -> LoadLookup:
    """How busy an agent is, for routing."""

    def load(agent: Agent) -> tuple[int, int, bool]:
        agent_id = agent.agent_id
        if agent.runtime.kind != "worker":
            return dispatcher.count_ahead(agent_id), dispatcher.concurrency(agent_id), presence.is_online(agent)
        ahead = dispatcher.count_ahead(agent_id) + presence.count_held(agent_id)
        return ahead, presence.concurrency(agent_id) if ahead else 1, presence.is_online(agent)

    return load


def tell_changes(runlog: RunLog, fanout: Fanout) -> None:
    """Have other processes look when something changes that they keep in memory."""

    def record(tx: Tx, tenant: str, events: list[RunLogEvent]) -> None:
        if any(event.event_type in KEPT_IN_MEMORY for event in events):
            tx.after_commit(lambda: fanout.send(CacheInvalidated()))

    if not fanout.is_single_process:
        runlog.append_hooks.append(record)


def _transport(module: str, name: str, *arguments: str) -> FanoutTransport:
    try:
        made: FanoutTransport = getattr(importlib.import_module(f"stentor.core.fanout.{module}"), name)(*arguments)
    except ImportError:
        raise StartRefused("SERVICE_NATS_URL needs the extra: pip install 'stentor[nats]'.") from None
    return made
