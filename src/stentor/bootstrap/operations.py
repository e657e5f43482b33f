"""The table of all operations, and the services that each of them calls."""

from __future__ import annotations

from collections.abc import Callable

from stentor.auth.principal import Principal
from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.parts.agents import AgentServices
from stentor.bootstrap.surface_context import SurfaceContext
from stentor.domains.activity import operations as activity
from stentor.domains.alerts import operations as alerts
from stentor.domains.audit import operations as audit
from stentor.domains.execution import operations as execution
from stentor.domains.governance import operations as governance
from stentor.domains.keys import operations as keys
from stentor.domains.learning import operations as learning
from stentor.domains.llm import call_operations as calls
from stentor.domains.llm import operations as llm
from stentor.domains.llm.runtime_settings import operations as model_settings
from stentor.domains.memory import operations as memory
from stentor.domains.messaging import operations as messaging
from stentor.domains.modelrouting import operations as modelrouting
from stentor.domains.monitoring import api as monitoring
from stentor.domains.people import operations as people
from stentor.domains.provenance import operations as provenance
from stentor.domains.registry import operations as registry
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.sandbox import operations as sandbox
from stentor.domains.steps import operations as steps
from stentor.domains.steps import wait_operations as waits
from stentor.domains.tasks import bulk_operations as bulk
from stentor.domains.tasks import grant_operations as grants
from stentor.domains.tasks import operations as tasks
from stentor.domains.trust import operations as trust
from stentor.domains.webhooks import operations as webhooks
from stentor.web.operations import Operation, bind

OPERATIONS: list[Operation] = [
    *tasks.OPERATIONS,
    *bulk.OPERATIONS,
    *activity.OPERATIONS,
    *execution.OPERATIONS,
    *steps.OPERATIONS,
    *waits.OPERATIONS,
    *grants.OPERATIONS,
    *registry.OPERATIONS,
    *sandbox.OPERATIONS,
    *learning.OPERATIONS,
    *learning.TRUST_OPERATIONS,
    *trust.OPERATIONS,
    *provenance.OPERATIONS,
    *monitoring.OPERATIONS,
    *alerts.OPERATIONS,
    *audit.OPERATIONS,
    *messaging.OPERATIONS,
    *webhooks.OPERATIONS,
    *keys.OPERATIONS,
    *people.OPERATIONS,
    *governance.OPERATIONS,
    *llm.OPERATIONS,
    *calls.OPERATIONS,
    *model_settings.OPERATIONS,
    *modelrouting.OPERATIONS,
    *memory.OPERATIONS,
]
"""All operations without their services, for clients that need to know only where an operation is."""


def task_operations(kernel: Kernel) -> list[Operation]:
    services = kernel.tasks
    return bind(tasks.OPERATIONS, tasks.TaskOperations(services.submission, services.service, services.grades))


def message_operations(kernel: Kernel) -> list[Operation]:
    return bind(messaging.OPERATIONS, messaging.MessageOperations(kernel.messaging.service))


def operations(kernel: Kernel, context: SurfaceContext) -> list[tuple[str, list[Operation]]]:
    """Return all operations by their OpenAPI tag. Routes are matched in this order, so frequent ones come first."""
    services, agents, parts = kernel.tasks, kernel.agents, kernel.governance
    known_agents = agents.registry.agents
    lessons = _learning_operations(agents)
    tables: list[tuple[str, list[Operation], object]] = [
        ("tasks", bulk.OPERATIONS, bulk.BulkOperations(services.service)),
        ("tasks", activity.OPERATIONS, activity.ActivityOperations(services.activity, services.service.notice)),
        ("workers", execution.OPERATIONS, execution.WorkerOperations(services.workers)),
        ("steps", steps.OPERATIONS, steps.StepOperations(services.steps)),
        ("steps", waits.OPERATIONS, waits.WaitOperations(services.waits)),
        ("authority", grants.OPERATIONS, grants.GrantOperations(services.grants, known_agents)),
        (
            "registry",
            registry.OPERATIONS,
            registry.RegistryOperations(
                agents.registry, agents.trust_score, kernel.command_agents.check_runtime, agents.last_seen
            ),
        ),
        ("registry", sandbox.OPERATIONS, sandbox.SandboxOperations(agents.sandbox, known_agents)),
        ("hebbian", learning.OPERATIONS, lessons),
        ("trust", learning.TRUST_OPERATIONS, lessons),
        (
            "trust",
            trust.OPERATIONS,
            trust.TrustOperations(
                agents.trust, lambda caller, entity_id: agents.registry.authorize(caller, "trust", entity_id)
            ),
        ),
        ("provenance", provenance.OPERATIONS, kernel.provenance.operations()),
        ("health", monitoring.OPERATIONS, monitoring.HealthOperations(kernel.health)),
        ("audit", audit.OPERATIONS, audit.AuditOperations(kernel.infra.db, kernel.infra.runlog)),
        ("alerts", alerts.OPERATIONS, alerts.AlertOperations(kernel.alerts)),
        ("atp", messaging.OPERATIONS, messaging.MessageOperations(kernel.messaging.service)),
        (
            "webhooks",
            webhooks.OPERATIONS,
            webhooks.WebhookOperations(kernel.webhooks.service, kernel.webhooks.delivery_log),
        ),
        (
            "governance",
            governance.OPERATIONS,
            governance.GovernanceOperations(parts.updates, parts.checkpoints, parts.rollbacks, parts.scoring),
        ),
        ("keys", keys.OPERATIONS, keys.KeyOperations(kernel.keys, kernel.infra.clock)),
        ("people", people.OPERATIONS, people.PeopleOperations(kernel.people, kernel.infra.clock)),
        ("llm", llm.OPERATIONS, _llm_operations(kernel, context)),
        (
            "llm",
            calls.OPERATIONS,
            calls.CallOperations(kernel.infra.db, kernel.llm.contents, _acts_for(known_agents)),
        ),
        (
            "llm",
            model_settings.OPERATIONS,
            model_settings.RuntimeSettingsOperations(kernel.llm.runtime_settings, kernel.infra.clock),
        ),
        ("llm", modelrouting.OPERATIONS, modelrouting.AnswerOperations(kernel.llm.answers)),
    ]
    if kernel.memory is not None:
        vaults = kernel.memory.registry(kernel.task_notes.maintenance if kernel.task_notes else None)
        documents = memory.MemoryOperations(vaults, kernel.infra.settings.memory.tenant)
        tables.append(("memory", memory.OPERATIONS, documents))
    return [("tasks", task_operations(kernel)), *((tag, bind(table, owner)) for tag, table, owner in tables)]


def _acts_for(agents: AgentCache) -> Callable[[Principal, str], bool]:
    def acts_for(caller: Principal, agent_id: str) -> bool:
        agent = agents.get(caller.tenant, agent_id)
        return agent is not None and agent.key_name == caller.name

    return acts_for


def _learning_operations(agents: AgentServices) -> learning.LearningOperations:
    return learning.LearningOperations(
        agents.learning,
        lambda tenant, agent_id: agents.registry.agents.get(tenant, agent_id) is not None,
        lambda caller, agent_id: agents.registry.authorize(caller, "connection", agent_id),
    )


def _llm_operations(kernel: Kernel, context: SurfaceContext) -> llm.LlmOperations:
    parts = kernel.llm
    return llm.LlmOperations(
        parts.gateway, context.chat, kernel.messaging.service.resolve_sender_and_agent, parts.prices, parts.config
    )
