"""Agents that run on a cluster: the port to it in this file, the driver that uses it, and Ray and Kubernetes behind it.

`driver.py` knows neither. `ray_cluster.py` keeps a program with the connection, which is `ray_program.py`;
`kubernetes_jobs.py` calls the API of Kubernetes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.registry.model import KubernetesOptions, RayOptions


class ClusterUnavailable(Exception):
    """The cluster cannot be reached, refuses the job, or the connection to it was lost. The message says why."""


@dataclass(frozen=True)
class ClusterJob:
    """One attempt at a task, whose JSON is `payload`. `options` are those of the agent's runtime."""

    task_id: str
    epoch: int
    payload: JsonObject
    timeout_seconds: float
    options: RayOptions | KubernetesOptions

    @property
    def job_id(self) -> str:
        return f"{self.task_id}-{self.epoch}"


class JobEvent(msgspec.Struct, frozen=True):
    """What happened to a job: it started, wrote a token, and last one of `result`, `failed` and `lost`.

    `failed` is a failure of the job's own code, `lost` one of the cluster; `code` and `text` say why. The text of a
    result is its JSON.
    """

    kind: Literal["started", "token", "result", "failed", "lost"]
    text: str = ""
    code: str = ""

    @property
    def is_last(self) -> bool:
        return self.kind not in ("started", "token")


class Cluster(Protocol):
    """Whatever runs jobs: Ray, or Jobs of Kubernetes."""

    async def connect(self) -> None:
        """Return when the cluster can be reached. Raises ClusterUnavailable."""
        ...

    async def submit(self, job: ClusterJob) -> None:
        """Hand a job over; it may wait in the cluster for resources. Raises ClusterUnavailable."""
        ...

    def watch(self, job_id: str) -> AsyncIterator[JobEvent]:
        """Yield the events of a submitted job up to its last one. A lost connection is the last event `lost`."""
        ...

    def describe_wait(self, job: ClusterJob) -> str:
        """Say why a job has not started, as the end of a sentence; it may wait, or not have been submitted."""
        ...

    async def cancel(self, job_id: str) -> None:
        """Stop a job and forget it. One that has ended or is unknown is not an error."""
        ...

    async def close(self) -> None:
        """End the connection, and with it all jobs."""
        ...
