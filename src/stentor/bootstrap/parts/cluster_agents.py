"""Wires agents on clusters: Ray and Kubernetes as the settings say, the runtimes, and their probe."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.core.errors import InvalidRequest
from stentor.domains.execution.runtimes.cluster import Cluster, ClusterUnavailable
from stentor.domains.execution.runtimes.cluster.driver import ClusterDriver, KubernetesCluster, RayClusters
from stentor.domains.execution.runtimes.cluster.kubernetes_jobs import KubernetesJobs
from stentor.domains.execution.runtimes.cluster.ray_cluster import RayCluster
from stentor.domains.governance.probes import ProbeResult
from stentor.domains.registry.model import Agent, Runtime, RuntimeKind


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
