"""The driver of agents on a cluster: one job per attempt, which ends when the attempt ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.execution import runtimes
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.execution.runtimes.cluster import Cluster, ClusterJob, ClusterUnavailable, JobEvent
from stentor.domains.registry.model import Agent, KubernetesOptions, RayOptions, Runtime
from stentor.domains.tasks.model import TaskClaim

START_SHARE = 0.9
"""Part of a task's time that its job may wait for resources; the rest tells that from a job that takes too long."""
MAX_MESSAGE_CHARS = 2_000
Options = TypeVar("Options", RayOptions, KubernetesOptions)


class ChosenCluster(NamedTuple):
    cluster: Cluster
    options: RayOptions | KubernetesOptions


ChooseCluster = Callable[[Runtime], ChosenCluster]
"""Returns the cluster of a runtime, and its options. Raises InvalidRequest if the settings do not allow it."""


class RayClusters:
    """The clusters of `clusters` by address, of which the first is the default, for functions of `entrypoints`.

    Without a cluster every runtime is refused.
    """

    def __init__(self, clusters: Mapping[str, Cluster], entrypoints: Collection[str]) -> None:
        self._clusters, self._entrypoints = dict(clusters), tuple(entrypoints)

    def choose(self, runtime: Runtime) -> ChosenCluster:
        """Return the cluster for a runtime and its options. Raises InvalidRequest if the settings do not allow it."""
        options = _parse_options(runtime, RayOptions)
        if not self._clusters:
            raise InvalidRequest("Agents on Ray are disabled: set SERVICE_RAY_ADDRESSES to the clusters they may use.")
        if options.address is not None and options.address not in self._clusters:
            raise InvalidRequest(
                f"SERVICE_RAY_ADDRESSES does not list {options.address!r}. It lists: {', '.join(self._clusters)}."
            )
        _require_allowed(options.entrypoint, self._entrypoints, "SERVICE_RAY_ENTRYPOINTS")
        return ChosenCluster(self._clusters[options.address or next(iter(self._clusters))], options)


class KubernetesCluster:
    """The one cluster, for CronJobs of `cron_jobs`. Without it every runtime is refused."""

    def __init__(self, cluster: Cluster | None, cron_jobs: Collection[str]) -> None:
        self._cluster, self._cron_jobs = cluster, tuple(cron_jobs)

    def choose(self, runtime: Runtime) -> ChosenCluster:
        """Return the cluster for a runtime and its options. Raises InvalidRequest if the settings do not allow it."""
        options = _parse_options(runtime, KubernetesOptions)
        if self._cluster is None:
            raise InvalidRequest(
                "Agents on Kubernetes are disabled: set SERVICE_KUBERNETES_NAMESPACE to the namespace of their Jobs."
            )
        _require_allowed(options.cron_job, self._cron_jobs, "SERVICE_KUBERNETES_CRON_JOBS")
        return ChosenCluster(self._cluster, options)


def _parse_options(runtime: Runtime, kind: type[Options]) -> Options:
    try:
        return msgspec.convert(runtime.options, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The options of a {runtime.kind} runtime are invalid: {error}.") from None


def _require_allowed(name: str, patterns: tuple[str, ...], setting: str) -> None:
    # Compared without fnmatch's normalization of the case, which differs between systems.
    if not any(fnmatchcase(name, pattern) for pattern in patterns):
        raise InvalidRequest(f"{setting} does not allow {name!r}. It allows: {', '.join(patterns) or 'nothing'}.")


class ClusterDriver:
    """Runs tasks on the clusters that `choose` returns. `redact` removes secrets from messages of the agent's code."""

    def __init__(self, choose: ChooseCluster, redact: Callable[[str], str]) -> None:
        self.choose = choose
        self._redact = redact

    async def connect(self, runtime: Runtime) -> None:
        """Return when the agent's cluster can be reached. Raises InvalidRequest, ClusterUnavailable."""
        await self.choose(runtime).cluster.connect()

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Run the job. Raises AgentFailed, or ProviderFailed for a cluster or node that is lost or has no room."""
        try:
            # Again, because the settings may have changed since the registration.
            cluster, options = self.choose(agent.runtime)
        except InvalidRequest as error:
            raise AgentFailed("AGENT_MISCONFIGURED", error.message) from None
        job = ClusterJob(claim.task_id, claim.epoch, runtimes.task_payload(claim), claim.timeout_seconds, options)
        try:
            return await self._run(cluster, job, emit)
        except ClusterUnavailable as error:
            reason = self._redact(str(error))[:MAX_MESSAGE_CHARS]
            raise ProviderFailed("CLUSTER_UNAVAILABLE", f"The cluster cannot be used: {reason}") from None
        finally:
            await cluster.cancel(job.job_id)

    async def _run(self, cluster: Cluster, job: ClusterJob, emit: EmitToken) -> AttemptOutcome:
        start_seconds = job.timeout_seconds * START_SHARE
        try:
            async with asyncio.timeout(start_seconds) as waiting:
                await cluster.submit(job)
                async for event in cluster.watch(job.job_id):
                    waiting.reschedule(None)
                    if event.is_last:
                        return self._outcome(event)
                    if event.kind == "token":
                        emit(event.text)
                        # many may be buffered; without this, nothing else would run until they are read
                        await asyncio.sleep(0)
        except TimeoutError:
            raise ProviderFailed(
                "CLUSTER_BUSY",
                f"The job was not started within {start_seconds:g} s: {cluster.describe_wait(job)}.",
            ) from None
        raise AssertionError("a job's last event was missing")

    def _outcome(self, event: JobEvent) -> AttemptOutcome:
        if event.kind == "result":
            try:
                return runtimes.parse_outcome(jsontext.decode(event.text.encode()))
            except InvalidRequest as error:
                raise AgentFailed("ANSWER_INVALID", f"The result is not valid. {error.message}") from None
        failure = ProviderFailed if event.kind == "lost" else AgentFailed
        raise failure(event.code, self._redact(event.text)[:MAX_MESSAGE_CHARS])
