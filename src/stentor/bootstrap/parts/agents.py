"""Wires the knowledge of agents, and who gets a task: registry, trust, learning, routing, sandbox rules.

Also agents on clusters: Ray and Kubernetes as the settings say, the runtimes, and their probe.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.core.clock import Clock
from stentor.core.errors import InvalidRequest
from stentor.core.fanout import WorkerSeen
from stentor.core.security import policy as policy_files
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.core.settings import Settings
from stentor.domains.execution.runtimes.cluster import Cluster, ClusterUnavailable
from stentor.domains.execution.runtimes.cluster.driver import ClusterDriver, KubernetesCluster, RayClusters
from stentor.domains.execution.runtimes.cluster.kubernetes_jobs import KubernetesJobs
from stentor.domains.execution.runtimes.cluster.ray_cluster import RayCluster
from stentor.domains.governance.probes import ProbeResult
from stentor.domains.learning.service import LearningService
from stentor.domains.llm.service import LlmGateway
from stentor.domains.registry import authorization
from stentor.domains.registry.model import Agent, Runtime, RuntimeKind
from stentor.domains.registry.model_checks import ModelChecks
from stentor.domains.registry.presence import Presence
from stentor.domains.registry.service import AgentRegistry
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.model import PolicyCheck, RoutingPolicy, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.sandbox.service import SandboxService
from stentor.domains.trust.service import TrustService

MAX_POLICY_ANSWERS = 100_000
"""Answers of the policy file about candidates that are remembered, about 10 MB."""


@dataclass(frozen=True)
class AgentServices:
    """`policies` is None without a policy file."""

    registry: AgentRegistry
    trust: TrustService
    learning: LearningService
    presence: Presence
    routing: RoutingEngine
    sandbox: SandboxService
    policies: PolicySet | None
    clock: Clock

    def trust_score(self, tenant: str, agent_id: str) -> float | None:
        """Return the present score; None without one."""
        return self.trust.view.score(tenant, agent_id, self.clock.now())

    def last_seen(self, agent: Agent) -> tuple[bool, int | None]:
        """Return whether the agent is online and when it was last seen, in microseconds.

        A new worker gets tasks before its program has connected, and is not online all the same.
        """
        online = self.presence.is_online(agent) and not self.presence.is_unseen(agent)
        return online, self.presence.last_seen(agent.agent_id)


def open_agents(infra: Infrastructure) -> AgentServices:
    """Raises StartRefused for a policy file that cannot be read."""
    settings, db, clock, runlog = infra.settings, infra.db, infra.clock, infra.runlog
    policies = load_policies(settings)
    registry = AgentRegistry(db, clock, runlog)
    trust = TrustService(db, clock, runlog)
    learning = LearningService(db, clock, runlog, settings.routing.sentinel_threshold)
    policy = RoutingPolicy(
        settings.routing.alpha,
        settings.routing.beta,
        settings.routing.trust_floor,
        settings.routing.own_authority,
        routing_policy_check(policies),
    )
    routing = RoutingEngine(registry.agents, learning.view, trust.view, clock, policy)
    sandbox = SandboxService(db, registry, runlog, policies)
    return AgentServices(registry, trust, learning, _open_presence(infra), routing, sandbox, policies, clock)


def _open_presence(infra: Infrastructure) -> Presence:
    """Open what this process and the others know of the workers that can take work."""
    fanout = infra.fanout

    def announce(agent_id: str, at: int, *, left: bool = False) -> None:
        fanout.send(WorkerSeen(agent_id, at, left, fanout.own_id))

    presence = Presence(infra.clock, infra.settings.routing.worker_offline_seconds, announce)

    def hear(seen: WorkerSeen) -> None:
        record = presence.record_left_elsewhere if seen.left else presence.record_seen_elsewhere
        record(seen.agent_id, seen.at)

    fanout.subscribe(WorkerSeen, hear)
    return presence


def open_model_checks(agents: AgentServices, gateway: LlmGateway) -> ModelChecks:
    """Return what finds agents whose model no provider serves; it is told when providers or routes change."""
    checks = ModelChecks(agents.registry.agents, agents.presence, gateway.find_model_problem)
    gateway.provider_registry.listeners.append(checks.notice_change)
    gateway.routes.listeners.append(checks.notice_change)
    return checks


def load_policies(settings: Settings) -> PolicySet | None:
    """Load the policy file, if one is set. Raises StartRefused."""
    return (
        None if settings.governance.policy_file is None else policy_files.load_policies(settings.governance.policy_file)
    )


def routing_policy_check(policies: PolicySet | None) -> PolicyCheck | None:
    """Return what the policy file decides about a candidate; None if it has no rule for routing."""
    if policies is None or not policies.covers_action("route"):
        return None

    return RoutingPolicyCheck(policies).is_permitted


class RoutingPolicyCheck:
    """Evaluates the policy file for candidates, and remembers the answers.

    An evaluation takes 0.1 ms, and a routing decision needs one for each candidate. The policies stay the same while
    the process runs, so an answer is valid until the agent or its trust changes.
    """

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies
        self._answers: dict[tuple[str, tuple[str, ...], bool], dict[str, tuple[Agent, float | None, bool]]] = {}
        """By task type, required capabilities and whether an agent is preferred, then by agent."""
        self._count = 0

    def is_permitted(self, request: RoutingRequest, candidate: AgentCandidate) -> bool:
        """Return whether the policy file permits the candidate. An evaluation that failed is not remembered."""
        agent, trust, preferred = candidate.agent, candidate.trust, request.preferred_agent_id is not None
        kind = request.task_type, request.capabilities, preferred
        answers = self._answers.get(kind, {})
        known = answers.get(agent.agent_id)
        # Agents are frozen and replaced when they change, so identity tells whether the answer is still valid.
        if known is not None and known[0] is agent and known[1] == trust:
            return known[2]
        context = {"required_capabilities": request.capabilities, "preferred": preferred, "trust": trust}
        entity, task_type = authorization.to_policy_entity(agent), PolicyEntity("TaskType", request.task_type)
        decision = self._policies.authorize("route", entity, task_type, context)
        if not decision.failed:
            self._count += known is None
            if self._count > MAX_POLICY_ANSWERS:
                self._answers.clear()
                self._count = 1
            self._answers.setdefault(kind, {})[agent.agent_id] = agent, trust, decision.allowed
        return decision.allowed


class ClusterAgents:
    """The drivers of agents on clusters by runtime, and what registrations and deployments ask about them."""

    def __init__(self, drivers: Mapping[RuntimeKind, ClusterDriver], clusters: Collection[Cluster]) -> None:
        self.drivers = drivers
        self._clusters = clusters

    def check_runtime(self, runtime: Runtime) -> None:
        """Check the runtime of a registration; others are right. Raises InvalidRequest."""
        if (driver := self.drivers.get(runtime.kind)) is not None:
            driver.choose(runtime)

    async def probe(self, agent: Agent) -> ProbeResult:
        """Check the runtime and connect to its cluster; the agent's code itself is not called."""
        try:
            await self.drivers[agent.runtime.kind].connect(agent.runtime)
        except InvalidRequest as error:
            return ProbeResult(False, error.message)
        except ClusterUnavailable as error:
            return ProbeResult(False, f"The cluster cannot be used: {error}")
        return ProbeResult(True, "The cluster can be reached, and the settings allow what the agent runs.")

    async def close(self) -> None:
        """Close all connections; jobs that still run are stopped."""
        await asyncio.gather(*(cluster.close() for cluster in self._clusters))


def open_cluster_agents(infra: Infrastructure) -> ClusterAgents:
    """Return the agents on clusters. Nothing is started, opened or imported before the first job."""
    ray, kubernetes, redact = infra.settings.ray, infra.settings.kubernetes, infra.redactor.redact
    python = ray.python or Path(sys.executable)
    on_ray: dict[str, Cluster] = {address: RayCluster(address, python) for address in ray.addresses}
    on_kubernetes = KubernetesJobs(kubernetes) if kubernetes.namespace else None
    drivers: dict[RuntimeKind, ClusterDriver] = {
        "ray": ClusterDriver(RayClusters(on_ray, ray.entrypoints).choose, redact),
        "kubernetes": ClusterDriver(KubernetesCluster(on_kubernetes, kubernetes.cron_jobs).choose, redact),
    }
    return ClusterAgents(drivers, [*on_ray.values(), *([on_kubernetes] if on_kubernetes else ())])
