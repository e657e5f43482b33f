"""Wires agents on Ray: the clusters of the settings, the runtime `ray`, and its probe."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.core.errors import InvalidRequest
from stentor.domains.execution.runtimes.cluster import Cluster, ClusterUnavailable
from stentor.domains.execution.runtimes.cluster.driver import ClusterDriver
from stentor.domains.execution.runtimes.cluster.ray_cluster import RayCluster
from stentor.domains.governance.probes import ProbeResult
from stentor.domains.registry.model import Agent, Runtime


class RayAgents:
    """The driver of agents on `clusters`, and what registrations and deployments ask about them."""

    def __init__(self, driver: ClusterDriver, clusters: dict[str, Cluster]) -> None:
        self.driver = driver
        self._clusters = clusters

    def check_runtime(self, runtime: Runtime) -> None:
        """Check the runtime of a registration; others than `ray` are right. Raises InvalidRequest."""
        if runtime.kind == "ray":
            self.driver.check_runtime(runtime)

    async def probe(self, agent: Agent) -> ProbeResult:
        """Check the runtime and connect to its cluster; the function itself is not called."""
        try:
            await self.driver.connect(agent.runtime)
        except InvalidRequest as error:
            return ProbeResult(False, error.message)
        except ClusterUnavailable as error:
            return ProbeResult(False, f"The cluster cannot be used: {error}")
        return ProbeResult(True, "The cluster can be reached, and the settings allow the function.")

    async def close(self) -> None:
        """Close all connections; jobs that still run are stopped."""
        await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))


def open_ray_agents(infra: Infrastructure) -> RayAgents:
    """Return the agents on Ray. Nothing is started or imported before the first job."""
    settings = infra.settings.ray
    python = settings.python or Path(sys.executable)
    clusters: dict[str, Cluster] = {address: RayCluster(address, python) for address in settings.addresses}
    return RayAgents(ClusterDriver(clusters, settings.entrypoints, infra.redactor.redact), clusters)
