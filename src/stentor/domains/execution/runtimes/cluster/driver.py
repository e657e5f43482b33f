"""The driver of agents on a cluster: one job per attempt, which ends when the attempt ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.execution import runtimes
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.execution.runtimes.cluster import Cluster, ClusterJob, ClusterUnavailable, JobEvent
from stentor.domains.registry.model import Agent, RayOptions, Runtime
from stentor.domains.tasks.model import TaskClaim

START_SHARE = 0.9
"""Part of a task's time that its job may wait for resources; the rest tells that from a job that takes too long."""
MAX_MESSAGE_CHARS = 2_000


class ClusterDriver:
    """Runs the functions that `entrypoints` allows, on the clusters of `clusters` by address; the first is the default.

    `redact` removes secrets from messages of the agent's code. Without a cluster every runtime is refused.
    """

    def __init__(
        self, clusters: Mapping[str, Cluster], entrypoints: Collection[str], redact: Callable[[str], str]
    ) -> None:
        self._clusters = dict(clusters)
        self._entrypoints = tuple(entrypoints)
        self._redact = redact

    def check_runtime(self, runtime: Runtime) -> RayOptions:
        """Return the options. Raises InvalidRequest if the settings do not allow the cluster or the function."""
        try:
            options = msgspec.convert(runtime.options, RayOptions)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The options of a ray runtime are invalid: {error}.") from None
        if not self._clusters:
            raise InvalidRequest("Agents on Ray are disabled: set SERVICE_RAY_ADDRESSES to the clusters they may use.")
        if options.address is not None and options.address not in self._clusters:
            raise InvalidRequest(
                f"SERVICE_RAY_ADDRESSES does not list {options.address!r}. It lists: {', '.join(self._clusters)}."
            )
        # Compared without fnmatch's normalization of the case, which differs between systems.
        if not any(fnmatchcase(options.entrypoint, pattern) for pattern in self._entrypoints):
            raise InvalidRequest(
                f"SERVICE_RAY_ENTRYPOINTS does not allow {options.entrypoint!r}. It allows: "
                f"{', '.join(self._entrypoints) or 'nothing'}."
            )
        return options

    async def connect(self, runtime: Runtime) -> None:
        """Return when the agent's cluster can be reached. Raises InvalidRequest, ClusterUnavailable."""
        await self._find_cluster(self.check_runtime(runtime)).connect()

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Run the job. Raises AgentFailed, or ProviderFailed for a cluster or node that is lost or has no room."""
        try:
            # Again, because the settings may have changed since the registration.
            options = self.check_runtime(agent.runtime)
        except InvalidRequest as error:
            raise AgentFailed("AGENT_MISCONFIGURED", error.message) from None
        cluster = self._find_cluster(options)
        job = ClusterJob(
            f"{claim.tenant}/{claim.task_id}/{claim.epoch}",
            options.entrypoint,
            runtimes.task_payload(claim),
            options.num_cpus,
            options.num_gpus,
        )
        try:
            return await self._run(cluster, job, claim.timeout_seconds * START_SHARE, emit)
        except ClusterUnavailable as error:
            raise ProviderFailed("CLUSTER_UNAVAILABLE", f"The cluster cannot be used: {error}") from None
        finally:
            await cluster.cancel(job.job_id)

    def _find_cluster(self, options: RayOptions) -> Cluster:
        return self._clusters[options.address or next(iter(self._clusters))]

    async def _run(self, cluster: Cluster, job: ClusterJob, start_seconds: float, emit: EmitToken) -> AttemptOutcome:
        try:
            async with asyncio.timeout(start_seconds) as waiting:
                await cluster.submit(job)
                async for event in cluster.watch(job.job_id):
                    waiting.reschedule(None)
                    if event.is_last:
                        return self._outcome(event)
                    if event.kind == "token":
                        emit(event.text)
                        await asyncio.sleep(0)  # many may be buffered; nothing else would run until they are read
        except TimeoutError:
            raise ProviderFailed(
                "CLUSTER_BUSY",
                f"The job was not started within {start_seconds:g} s: the cluster has no node with "
                f"{job.num_cpus:g} CPUs and {job.num_gpus:g} GPUs to spare, or was not connected yet.",
            ) from None
        raise AssertionError("a job's last event was missing")

    def _outcome(self, event: JobEvent) -> AttemptOutcome:
        if event.kind == "result":
            try:
                return runtimes.parse_outcome(jsontext.decode(event.text.encode()))
            except InvalidRequest as error:
                raise AgentFailed(
                    "ANSWER_INVALID", f"The result of the function is not valid. {error.message}"
                ) from None
        failure = ProviderFailed if event.kind == "lost" else AgentFailed
        raise failure(event.code, self._redact(event.text)[:MAX_MESSAGE_CHARS])
