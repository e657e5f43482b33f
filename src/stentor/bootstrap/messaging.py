"""Wires messaging: the table of actions, the carrier, the routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError

from stentor.bootstrap.governance import Governance
from stentor.bootstrap.memory import Memory
from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database
from stentor.core.live import Hub
from stentor.core.runlog import RunLog
from stentor.core.settings import Settings
from stentor.domains.activity.service import ActivityService
from stentor.domains.messaging import api
from stentor.domains.messaging.actions import later
from stentor.domains.messaging.actions.governance import GovernanceZone
from stentor.domains.messaging.actions.kernel import Kernel as KernelZone
from stentor.domains.messaging.actions.memory import MemoryZone
from stentor.domains.messaging.actions.registry import Registration, RegistryZone
from stentor.domains.messaging.actions.sandbox import SandboxZone
from stentor.domains.messaging.carrier import Carrier
from stentor.domains.messaging.endings import Endings
from stentor.domains.messaging.service import Messaging
from stentor.domains.messaging.streams import Streams
from stentor.domains.registry.api import CheckRuntime
from stentor.domains.registry.service import AgentDraft, AgentRegistry
from stentor.domains.registry.wire import Register
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService
from stentor.domains.trust.service import TrustService
from stentor.web.errors import validation_error
from stentor.web.sse import StreamLimit


@dataclass
class Messages:
    """The wired parts. `carrier` runs on the event loop that serves."""

    messaging: Messaging
    carrier: Carrier

    def router(self, activity: ActivityService, limit: StreamLimit) -> APIRouter:
        return api.router(self.messaging, Streams(self.messaging, activity.stream), limit)


def open_messages(
    settings: Settings,
    db: Database,
    clock: Clock,
    hub: Hub,
    runlog: RunLog,
    registry: AgentRegistry,
    trust: TrustService,
    routing: RoutingEngine,
    submission: SubmissionService,
    tasks: TaskService,
    check_runtime: CheckRuntime,
    memory: Memory | None,
    governance: Governance,
) -> Messages:
    def trust_of(tenant: str, agent_id: str) -> float | None:
        return trust.view.score(tenant, agent_id, clock.now())

    kernel = KernelZone(submission, tasks, routing)
    zones = kernel.table() | SandboxZone(kernel, routing, registry.agents).table()
    zones |= RegistryZone(registry, _registration(check_runtime), trust_of).table()
    zones |= GovernanceZone(governance.updates, governance.rollbacks).table()
    if memory is not None:
        zones |= MemoryZone(db, memory.named(memory.indexer), settings.vault_tenant).table()
    actions = later.table() | zones
    endings = Endings(db, runlog, tasks)
    carrier = Carrier(db, endings, hub, actions, settings.lease * SECOND, shared=db.driver.shared)
    return Messages(Messaging(db, runlog, registry.agents, actions, carrier.arrived), carrier)


def _registration(check_runtime: CheckRuntime) -> Registration:
    """What the registry's route does with a body."""

    def draft(body: dict[str, Any]) -> AgentDraft:
        try:
            wanted = Register.model_validate(body).to_draft()
        except ValidationError as error:
            raise validation_error(error.errors()) from None
        check_runtime(wanted.runtime)
        return wanted

    return draft
