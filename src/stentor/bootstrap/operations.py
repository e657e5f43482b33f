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
from stentor.domains.audit.service import AuditService
from stentor.domains.execution import operations as execution
from stentor.domains.execution.replay import operations as replay
from stentor.domains.execution.replay.service import ReplayService
from stentor.domains.governance import operations as governance
from stentor.domains.keys import operations as keys
from stentor.domains.learning import operations as learning
from stentor.domains.llm import operations as llm
from stentor.domains.llm.calls import call_operations as calls
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
from stentor.domains.schedules import operations as schedules
from stentor.domains.sessions import operations as sessions
from stentor.domains.sessions import value_operations as session_values
from stentor.domains.steps import operations as steps
from stentor.domains.steps import wait_operations as waits
from stentor.domains.tasks import bulk_operations as bulk
from stentor.domains.tasks import operations as tasks
from stentor.domains.tasks.grants import operations as grants
from stentor.domains.trust import operations as trust
from stentor.domains.webhooks import operations as webhooks
from stentor.web.operations import Operation, bind, operations_of

TABLES: list[tuple[str, list[Operation]]] = [
    ("tasks", operations_of(tasks.TaskOperations)),
    ("tasks", operations_of(bulk.BulkOperations)),
    ("tasks", operations_of(activity.ActivityOperations)),
    ("tasks", operations_of(replay.ReplayOperations)),
    ("workers", operations_of(execution.WorkerOperations)),
    ("steps", operations_of(steps.StepOperations)),
    ("steps", operations_of(waits.WaitOperations)),
    ("schedules", operations_of(schedules.ScheduleOperations)),
    ("sessions", operations_of(sessions.SessionOperations)),
    ("sessions", operations_of(session_values.SessionValueOperations)),
    ("authority", operations_of(grants.GrantOperations)),
    ("registry", operations_of(registry.RegistryOperations)),
    ("registry", operations_of(sandbox.SandboxOperations)),
    ("hebbian", learning.OPERATIONS),
    ("trust", learning.TRUST_OPERATIONS),
    ("trust", operations_of(trust.TrustOperations)),
    ("provenance", operations_of(provenance.ProvenanceOperations)),
    ("health", operations_of(monitoring.HealthOperations)),
    ("audit", operations_of(audit.AuditOperations)),
    ("alerts", operations_of(alerts.AlertOperations)),
    ("atp", operations_of(messaging.MessageOperations)),
    ("webhooks", operations_of(webhooks.WebhookOperations)),
    ("governance", operations_of(governance.GovernanceOperations)),
    ("keys", operations_of(keys.KeyOperations)),
    ("people", operations_of(people.PeopleOperations)),
    ("llm", operations_of(llm.LlmOperations)),
    ("llm", operations_of(calls.CallOperations)),
    ("llm", operations_of(model_settings.RuntimeSettingsOperations)),
    ("llm", operations_of(modelrouting.AnswerOperations)),
    ("memory", operations_of(memory.MemoryOperations)),
]
"""All operations by their OpenAPI tag. Routes are matched in this order, so frequent ones come first."""
OPERATIONS = [operation for _, table in TABLES for operation in table]
"""The same without their services, for clients that need to know only where an operation is."""


def operations(kernel: Kernel, context: SurfaceContext) -> dict[str, Operation]:
    """Return by name all operations that a kernel has, bound to its services."""
    services, agents, parts, infra = kernel.tasks, kernel.agents, kernel.governance, kernel.infra
    known_agents = agents.registry.agents
    # `bind` matches an owner to its operations by class, so the order here has no meaning.
    owners: list[object] = [
        tasks.TaskOperations(services.submission, services.service, services.reader, services.grades, known_agents),
        bulk.BulkOperations(services.service),
        activity.ActivityOperations(services.activity, services.reader.describe_wait_for_agent),
        replay.ReplayOperations(
            ReplayService(
                services.reader,
                services.steps,
                kernel.sessions,
                kernel.llm.gateway,
                kernel.command_agents.tools,
                known_agents,
            )
        ),
        execution.WorkerOperations(services.workers),
        steps.StepOperations(services.steps),
        waits.WaitOperations(services.waits),
        schedules.ScheduleOperations(kernel.schedules.service, infra.clock, agents.routing.find_capability_problem),
        sessions.SessionOperations(kernel.sessions),
        session_values.SessionValueOperations(kernel.sessions),
        grants.GrantOperations(services.grants, known_agents),
        registry.RegistryOperations(
            agents.registry,
            agents.trust_score,
            kernel.check_runtime,
            agents.last_seen,
            kernel.model_checks,
            services.reader.count_open,
        ),
        sandbox.SandboxOperations(agents.sandbox, known_agents),
        _learning_operations(agents),
        trust.TrustOperations(
            agents.trust, lambda caller, entity_id: agents.registry.authorize(caller, "trust", entity_id)
        ),
        kernel.provenance.operations(),
        monitoring.HealthOperations(kernel.health),
        audit.AuditOperations(infra.db, AuditService(infra.db, infra.runlog)),
        alerts.AlertOperations(kernel.alerts),
        messaging.MessageOperations(kernel.messaging.service),
        webhooks.WebhookOperations(kernel.webhooks.service, kernel.webhooks.delivery_log),
        governance.GovernanceOperations(
            parts.updates,
            parts.checkpoints,
            parts.rollbacks,
            parts.scoring,
            kernel.model_checks.check_patch,
            known_agents.find_name,
        ),
        keys.KeyOperations(kernel.keys, infra.clock),
        people.PeopleOperations(kernel.people),
        _llm_operations(kernel, context),
        calls.CallOperations(infra.db, kernel.llm.contents, _acts_for(known_agents)),
        model_settings.RuntimeSettingsOperations(kernel.llm.runtime_settings, infra.clock),
        modelrouting.AnswerOperations(kernel.llm.answers),
    ]
    if kernel.memory is not None:
        vaults = kernel.memory.registry(kernel.task_notes.maintenance if kernel.task_notes else None)
        owners.append(memory.MemoryOperations(vaults, kernel.memory.invalidations, infra.settings.memory.tenant))
    return {row.name: row for row in bind(OPERATIONS, *owners)}


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
