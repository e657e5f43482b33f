"""The table of operations: what the service offers, and from which parts each piece of it is made."""

from __future__ import annotations

from stentor.bootstrap.entrance import Entrance
from stentor.bootstrap.kernel import Kernel
from stentor.domains.activity.operations import ActivityOperations
from stentor.domains.execution.operations import WorkerOperations
from stentor.domains.learning.operations import LearningOperations
from stentor.domains.llm.operations import LlmOperations
from stentor.domains.memory.operations import MemoryOperations
from stentor.domains.messaging.operations import MessageOperations
from stentor.domains.modelrouting.operations import AnswerOperations
from stentor.domains.registry.model import Agent
from stentor.domains.registry.operations import RegistryOperations
from stentor.domains.sandbox.operations import SandboxOperations
from stentor.domains.tasks.grant_operations import GrantOperations
from stentor.domains.tasks.operations import TaskOperations
from stentor.domains.trust.operations import TrustOperations
from stentor.web.operations import Operation


def task_operations(kernel: Kernel) -> list[Operation]:
    return TaskOperations(kernel.submission, kernel.tasks, kernel.grades).table()


def message_operations(kernel: Kernel) -> list[Operation]:
    return MessageOperations(kernel.messages.messaging).table()


def operations(kernel: Kernel, shared: Entrance) -> list[tuple[str, list[Operation]]]:
    """All operations by the tag under which the OpenAPI shows them; those that are called most come first."""
    agents = kernel.registry.agents

    def trust_of(tenant: str, agent_id: str) -> float | None:
        return kernel.trust.view.score(tenant, agent_id, kernel.clock.now())

    def presence_of(agent: Agent) -> tuple[bool, int | None]:
        return kernel.presence.is_online(agent), kernel.presence.last_seen(agent.agent_id)

    registry = RegistryOperations(kernel.registry, trust_of, kernel.commands.check_runtime, presence_of)
    learning = LearningOperations(
        kernel.learning,
        lambda tenant, agent_id: agents.get(tenant, agent_id) is not None,
        lambda caller, agent_id: kernel.registry.authorize(caller, "connection", agent_id),
    )
    trust = TrustOperations(
        kernel.trust, lambda caller, entity_id: kernel.registry.authorize(caller, "trust", entity_id)
    )
    llm = LlmOperations(
        kernel.llm.gateway,
        shared.talk,
        kernel.messages.messaging.resolve_speaker,
        kernel.llm.prices,
        kernel.llm.about,
    )
    tables = [
        ("tasks", task_operations(kernel)),
        ("tasks", ActivityOperations(kernel.activity, kernel.tasks.notice).table()),
        ("workers", WorkerOperations(kernel.workers).table()),
        ("authority", GrantOperations(kernel.grants, agents).table()),
        ("registry", registry.table()),
        ("registry", SandboxOperations(kernel.sandbox, agents).table()),
        ("hebbian", learning.table()),
        ("trust", learning.trust_table()),
        ("trust", trust.table()),
        ("atp", message_operations(kernel)),
        ("llm", llm.table()),
        ("llm", AnswerOperations(kernel.llm.answers).table()),
    ]
    if (memory := kernel.memory) is not None:
        vaults = memory.named(kernel.task_notes.steps if kernel.task_notes else memory.indexer)
        tables.append(("memory", MemoryOperations(vaults, kernel.settings.vault_tenant).table()))
    return tables
