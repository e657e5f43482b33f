"""The table of operations: what the service offers, and from which parts each piece of it is made."""

from __future__ import annotations

from stentor.bootstrap.entrance import Entrance
from stentor.bootstrap.kernel import Kernel
from stentor.domains.activity import operations as activity
from stentor.domains.execution import operations as execution
from stentor.domains.governance import operations as governance
from stentor.domains.learning import operations as learning
from stentor.domains.llm import operations as llm
from stentor.domains.memory import operations as memory
from stentor.domains.messaging import operations as messaging
from stentor.domains.modelrouting import operations as modelrouting
from stentor.domains.monitoring import api as monitoring
from stentor.domains.provenance import operations as provenance
from stentor.domains.registry import operations as registry
from stentor.domains.registry.model import Agent
from stentor.domains.sandbox import operations as sandbox
from stentor.domains.tasks import grant_operations as grants
from stentor.domains.tasks import operations as tasks
from stentor.domains.trust import operations as trust
from stentor.domains.webhooks import operations as webhooks
from stentor.web.operations import Operation, bind

OPERATIONS: list[Operation] = [
    *tasks.OPERATIONS,
    *activity.OPERATIONS,
    *execution.OPERATIONS,
    *grants.OPERATIONS,
    *registry.OPERATIONS,
    *sandbox.OPERATIONS,
    *learning.OPERATIONS,
    *learning.TRUST_OPERATIONS,
    *trust.OPERATIONS,
    *provenance.OPERATIONS,
    *monitoring.OPERATIONS,
    *messaging.OPERATIONS,
    *webhooks.OPERATIONS,
    *governance.OPERATIONS,
    *llm.OPERATIONS,
    *modelrouting.OPERATIONS,
    *memory.OPERATIONS,
]
"""All that Stentor offers, unbound: for clients that need to know only where an operation is."""


def task_operations(kernel: Kernel) -> list[Operation]:
    return bind(tasks.OPERATIONS, tasks.TaskOperations(kernel.submission, kernel.tasks, kernel.grades))


def message_operations(kernel: Kernel) -> list[Operation]:
    return bind(messaging.OPERATIONS, messaging.MessageOperations(kernel.messages.messaging))


def operations(kernel: Kernel, shared: Entrance) -> list[tuple[str, list[Operation]]]:
    """All operations by the tag under which the OpenAPI shows them; those that are called most come first."""
    agents = kernel.registry.agents

    def trust_of(tenant: str, agent_id: str) -> float | None:
        return kernel.trust.view.score(tenant, agent_id, kernel.clock.now())

    def presence_of(agent: Agent) -> tuple[bool, int | None]:
        return kernel.presence.is_online(agent), kernel.presence.last_seen(agent.agent_id)

    registered = registry.RegistryOperations(kernel.registry, trust_of, kernel.commands.check_runtime, presence_of)
    learned = learning.LearningOperations(
        kernel.learning,
        lambda tenant, agent_id: agents.get(tenant, agent_id) is not None,
        lambda caller, agent_id: kernel.registry.authorize(caller, "connection", agent_id),
    )
    scores = trust.TrustOperations(
        kernel.trust, lambda caller, entity_id: kernel.registry.authorize(caller, "trust", entity_id)
    )
    models = llm.LlmOperations(
        kernel.llm.gateway,
        shared.talk,
        kernel.messages.messaging.resolve_speaker,
        kernel.llm.prices,
        kernel.llm.about,
    )
    parts = kernel.governance
    updates = governance.GovernanceOperations(parts.updates, parts.checkpoints, parts.rollbacks, parts.scoring)
    hooks = webhooks.WebhookOperations(kernel.hooks.webhooks, kernel.hooks.history)
    tables = [
        ("tasks", task_operations(kernel)),
        ("tasks", bind(activity.OPERATIONS, activity.ActivityOperations(kernel.activity, kernel.tasks.notice))),
        ("workers", bind(execution.OPERATIONS, execution.WorkerOperations(kernel.workers))),
        ("authority", bind(grants.OPERATIONS, grants.GrantOperations(kernel.grants, agents))),
        ("registry", bind(registry.OPERATIONS, registered)),
        ("registry", bind(sandbox.OPERATIONS, sandbox.SandboxOperations(kernel.sandbox, agents))),
        ("hebbian", bind(learning.OPERATIONS, learned)),
        ("trust", bind(learning.TRUST_OPERATIONS, learned)),
        ("trust", bind(trust.OPERATIONS, scores)),
        ("provenance", bind(provenance.OPERATIONS, kernel.provenance.operations())),
        ("health", bind(monitoring.OPERATIONS, monitoring.HealthOperations(kernel.health))),
        ("atp", message_operations(kernel)),
        ("webhooks", bind(webhooks.OPERATIONS, hooks)),
        ("governance", bind(governance.OPERATIONS, updates)),
        ("llm", bind(llm.OPERATIONS, models)),
        ("llm", bind(modelrouting.OPERATIONS, modelrouting.AnswerOperations(kernel.llm.answers))),
    ]
    if kernel.memory is not None:
        vaults = kernel.memory.named(kernel.task_notes.steps if kernel.task_notes else kernel.memory.indexer)
        documents = memory.MemoryOperations(vaults, kernel.settings.vault_tenant)
        tables.append(("memory", bind(memory.OPERATIONS, documents)))
    return tables
