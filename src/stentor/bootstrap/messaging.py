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
from stentor.domains.messaging import operations
from stentor.domains.messaging.actions import memory as memory_actions
from stentor.domains.messaging.actions.governance import GovernanceZone
from stentor.domains.messaging.actions.kernel import KernelZone as KernelZone
from stentor.domains.messaging.actions.kernel import SandboxZone
from stentor.domains.messaging.actions.memory import MemoryZone
from stentor.domains.messaging.actions.registry import ParseRegistration, RegistryZone
from stentor.domains.messaging.lifecycle import MessageLifecycle
from stentor.domains.messaging.processor import MessageProcessor
from stentor.domains.messaging.service import MessagingService, ResponseStreams
from stentor.domains.registry.operations import CheckRuntime
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

    messaging: MessagingService
    carrier: MessageProcessor

    def router(self, activity: ActivityService, limit: StreamLimit) -> APIRouter:
        return operations.router(self.messaging, ResponseStreams(self.messaging, activity.stream), limit)


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
    zones = kernel.actions() | SandboxZone(kernel, routing, registry.agents).actions()
    zones |= RegistryZone(registry, _registration(check_runtime), trust_of).actions()
    zones |= GovernanceZone(governance.updates, governance.rollbacks).actions()
    if memory is not None:
        zones |= MemoryZone(db, memory.named(memory.indexer), settings.vault_tenant).actions()
    actions = memory_actions.unavailable_actions() | zones
    endings = MessageLifecycle(db, runlog, tasks)
    carrier = MessageProcessor(db, endings, hub, actions, settings.lease * SECOND, shared=db.driver.shared)
    return Messages(MessagingService(db, runlog, registry.agents, actions, carrier.wake), carrier)


def _registration(check_runtime: CheckRuntime) -> ParseRegistration:
    """What the registry's route does with a body."""

    def draft(body: dict[str, Any]) -> AgentDraft:
        try:
            wanted = Register.model_validate(body).to_draft()
        except ValidationError as error:
            raise validation_error(error.errors()) from None
        check_runtime(wanted.runtime)
        return wanted

    return draft
