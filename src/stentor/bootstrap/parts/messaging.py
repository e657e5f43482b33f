"""Wires messaging: the actions that a message can ask for, and the processor that executes them."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import ValidationError

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.bootstrap.parts.governance import GovernanceParts
from stentor.bootstrap.parts.memory import Memory
from stentor.bootstrap.parts.tasks import TaskServices
from stentor.core.clock import SECOND
from stentor.core.jsontext import JsonObject
from stentor.core.validation.validation_errors import list_errors
from stentor.domains.activity.service import ActivityService
from stentor.domains.messaging import operations, store
from stentor.domains.messaging.actions import memory as memory_actions
from stentor.domains.messaging.actions.governance import GovernanceZone
from stentor.domains.messaging.actions.kernel import KernelZone, SandboxZone
from stentor.domains.messaging.actions.memory import MemoryZone
from stentor.domains.messaging.actions.registry import ParseRegistration, RegistryZone
from stentor.domains.messaging.lifecycle import MessageLifecycle
from stentor.domains.messaging.processor import MessageProcessor
from stentor.domains.messaging.service import MessagingService, ResponseStreams
from stentor.domains.registry.operations import CheckRuntime
from stentor.domains.registry.service import AgentDraft
from stentor.domains.registry.wire import Register
from stentor.web.errors import validation_error
from stentor.web.sse import StreamLimit


@dataclass(frozen=True)
class MessagingParts:
    """`processor` executes queued messages in the background."""

    service: MessagingService
    processor: MessageProcessor

    def router(self, activity: ActivityService, limit: StreamLimit) -> APIRouter:
        return operations.router(self.service, ResponseStreams(self.service, activity.follow), limit)


def open_messaging(
    infra: Infrastructure,
    agents: AgentServices,
    tasks: TaskServices,
    memory: Memory | None,
    governance: GovernanceParts,
    check_runtime: CheckRuntime,
) -> MessagingParts:
    settings, db, runlog = infra.settings, infra.db, infra.runlog
    lifecycle = MessageLifecycle(db, runlog, tasks.service)
    kernel = KernelZone(tasks.submission, tasks.service, tasks.reader, agents.routing, lifecycle.withdraw)
    zones = kernel.actions() | SandboxZone(kernel, agents.routing, agents.registry.agents).actions()
    zones |= RegistryZone(agents.registry, _registration_parser(check_runtime), agents.trust_score).actions()
    zones |= GovernanceZone(governance.updates, governance.rollbacks).actions()
    if memory is not None:
        zones |= MemoryZone(db, memory.registry(), settings.memory.tenant).actions()
    actions = memory_actions.unavailable_actions() | zones
    db.set_aside[store.TABLE] = lifecycle.set_aside
    lease = settings.tasks.lease_seconds * SECOND
    follow_jump, shared = tasks.reconciler.follow_jump, not infra.is_single_process
    processor = MessageProcessor(db, infra.clock, follow_jump, lifecycle, infra.hub, actions, lease, shared=shared)
    return MessagingParts(MessagingService(db, runlog, agents.registry.agents, actions, processor.wake), processor)


def _registration_parser(check_runtime: CheckRuntime) -> ParseRegistration:
    """Return a function that reads a registration as the HTTP route does."""

    def parse(body: JsonObject) -> AgentDraft:
        try:
            draft = Register.model_validate(body).to_draft()
        except ValidationError as error:
            raise validation_error(list_errors(error)) from None
        check_runtime(draft.runtime)
        return draft

    return parse
