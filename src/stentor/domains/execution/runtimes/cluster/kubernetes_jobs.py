"""Kubernetes behind the port `Cluster`: one Job for each attempt, made from the template of a CronJob.

The admins of the cluster decide in the CronJob which image runs, as whom, and where. Added is the task, as a file from
a Secret that belongs to the Job. The log of the Job's container is its output. Source: docs/decisions, 0076.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import read_body
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module
from stentor.core.settings import KubernetesSettings
from stentor.domains.execution.model import AgentFailed
from stentor.domains.execution.runtimes.cluster import ClusterJob, ClusterUnavailable, JobEvent
from stentor.domains.execution.runtimes.cluster import kubernetes_objects as objects
from stentor.domains.registry.model import KubernetesOptions

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

MAX_TASK_BYTES = 1_000_000
"""Kubernetes limits a Secret to 1 MiB."""
MAX_ANSWER_BYTES = 10 * 1024 * 1024
MAX_LINE_BYTES = 10 * 1024 * 1024
CALL_SECONDS = 30.0
SILENT_SECONDS = 60.0
"""After so long without a byte of a log the Pod is looked at: the connection may be dead."""
WATCH_SECONDS = 50
"""After which Kubernetes ends a watch; less than SILENT_SECONDS."""
OUTAGE_SECONDS = 60.0
"""How long the API may be unreachable before a job that runs counts as lost."""
RETRY_SECONDS = 1.0
log = logging.getLogger(__name__)


class RequestRefused(ClusterUnavailable):
    """Kubernetes answered with an error of the client's: asking again would not help."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(objects.describe_error(status, body))
        self.status = status


@dataclass
class SubmittedJob:
    """A Job of this process. `creation` ends when its objects are made, or could not be."""

    name: str
    creation: asyncio.Task[None]
    pod: JsonObject | None = None
    waits_for: str = ""
    has_ended: bool = False


@dataclass
class Outage:
    """How long calls have failed in a row."""

    began: float | None = None

    def end(self) -> None:
        self.began = None

    async def wait(self, error: ClusterUnavailable) -> None:
        """Wait before the next attempt. Raises the error if Kubernetes refused the call, or after OUTAGE_SECONDS."""
        now = asyncio.get_running_loop().time()
        self.began = now if self.began is None else self.began
        if isinstance(error, RequestRefused) or now - self.began > OUTAGE_SECONDS:
            raise error
        await asyncio.sleep(RETRY_SECONDS)


class KubernetesJobs:
    """The port to the cluster whose API the settings name. Nothing is opened before the first call."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._batch = f"/apis/batch/v1/namespaces/{settings.namespace}"
        self._core = f"/api/v1/namespaces/{settings.namespace}"
        self._session: aiohttp.ClientSession | None = None
        self._jobs: dict[str, SubmittedJob] = {}
        self._deletions: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        attributes = {"namespace": self._settings.namespace, "verb": "create", "group": "batch", "resource": "jobs"}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            raise ClusterUnavailable(f"the token may not create Jobs in the namespace {self._settings.namespace!r}")

    async def submit(self, job: ClusterJob) -> None:
        name = f"stentor-{job.job_id}"
        creation = asyncio.create_task(self._create(job, name))
        self._jobs[job.job_id] = SubmittedJob(name, creation)
        # Shielded: a deletion waits for it, and would otherwise overtake a request that is on its way.
        await asyncio.shield(creation)

    async def watch(self, job_id: str) -> AsyncIterator[JobEvent]:
        job = self._jobs[job_id]
        output = objects.JobOutput()
        async for pod in self._pods(job.name):
            job.pod = pod
            if pod is None or objects.has_started(pod):
                break
            job.waits_for = objects.describe_wait(pod)
        if job.pod is not None:
            yield JobEvent("started")
        if job.pod is not None and objects.has_run(job.pod):
            async for token in self._read_log(job, job.pod, output):
                yield JobEvent("token", token)
        job.has_ended = True
        yield objects.POD_DELETED if job.pod is None else objects.last_event(job.pod, output)

    def describe_wait(self, job: ClusterJob) -> str:
        submitted = self._jobs.get(job.job_id)
        if submitted is None:
            return "Kubernetes did not answer"
        see = f"see `kubectl describe job {submitted.name} --namespace {self._settings.namespace}`"
        return submitted.waits_for or f"it has no Pod yet, {see}"

    async def cancel(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None and not job.has_ended:
            # Not waited for: the attempt has ended, whether or not Kubernetes can be reached.
            self._deletions.add(deletion := asyncio.create_task(self._delete(job)))
            deletion.add_done_callback(self._deletions.discard)

    async def close(self) -> None:
        for job_id in list(self._jobs):
            await self.cancel(job_id)
        await asyncio.gather(*self._deletions)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _create(self, job: ClusterJob, name: str) -> None:
        assert isinstance(job.options, KubernetesOptions)
        task = jsontext.encode(job.payload)
        if len(task) > MAX_TASK_BYTES:
            raise ClusterUnavailable(
                f"the task has {len(task)} bytes, and Kubernetes holds at most {MAX_TASK_BYTES} in a Secret; put the "
                "data elsewhere and its address into the task"
            )
        cron_job = await self._call("GET", f"{self._batch}/cronjobs/{job.options.cron_job}")
        made = await self._call("POST", f"{self._batch}/jobs", objects.make_job(cron_job, job, name))
        # Created after the Job that owns it; the Pod waits for it.
        await self._call("POST", f"{self._core}/secrets", objects.make_secret(made, task))

    async def _delete(self, job: SubmittedJob) -> None:
        await asyncio.gather(job.creation, return_exceptions=True)
        try:
            await self._call("DELETE", f"{self._batch}/jobs/{job.name}", {"propagationPolicy": "Background"})
        except ClusterUnavailable as error:
            if not (isinstance(error, RequestRefused) and error.status == 404):
                log.warning("kubernetes: job not deleted, it ends at its deadline name=%s reason=%s", job.name, error)

    async def _pods(self, name: str) -> AsyncIterator[JsonObject | None]:
        """Yield the Job's Pod each time it changes, and None when it was deleted."""
        outage, seen = Outage(), False
        while True:
            try:
                pods = await self._list_pods(name)
                outage.end()
                if seen or pods["items"]:
                    yield next(iter(pods["items"]), None)
                    seen = True
                version = pods["metadata"]["resourceVersion"]
                query = {"watch": "true", "timeoutSeconds": str(WATCH_SECONDS), "resourceVersion": version}
                async for line in self._read_lines(f"{self._core}/pods", _of_job(name) | query, outage):
                    event = jsontext.decode(line)
                    if event["type"] == "ERROR":  # such as a version that is too old
                        await asyncio.sleep(RETRY_SECONDS)
                        break
                    yield None if event["type"] == "DELETED" else event["object"]
                    seen = True
            except ClusterUnavailable as error:
                await outage.wait(error)

    async def _read_log(self, job: SubmittedJob, pod: JsonObject, output: objects.JobOutput) -> AsyncIterator[str]:
        """Yield the tokens in the log until the container has ended and its log is complete, or its Pod is gone."""
        path = f"{self._core}/pods/{pod['metadata']['name']}/log"
        query = {"container": objects.container_name(pod), "timestamps": "true"}
        outage, position = Outage(), objects.LogPosition()
        while True:
            try:
                # Checked before the reading: a log that is read after the end is complete.
                job.pod = next(iter((await self._list_pods(job.name))["items"]), None)
                if job.pod is None:
                    return
                ended = objects.has_ended(job.pod)
                position.rewind()
                async for line in self._read_lines(path, query | {"follow": str(not ended).lower()}, outage):
                    text = position.advance(line)
                    if text is not None and (token := output.feed(text)) is not None:
                        yield token
                if ended:
                    return
            except ClusterUnavailable as error:
                await outage.wait(error)

    async def _list_pods(self, name: str) -> JsonObject:
        return await self._call("GET", f"{self._core}/pods", query=_of_job(name))

    async def _read_lines(self, path: str, query: dict[str, str], outage: Outage) -> AsyncIterator[bytes]:
        """Yield the lines of an answer that has no end of its own; a silence of SILENT_SECONDS is one."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS, sock_read=SILENT_SECONDS)
        line = bytearray()
        async with self._open("GET", path, timeout=timeout, params=query) as response:
            # Not only after the last line: a response that lasts for hours may be cut off more than once.
            outage.end()
            try:
                async for chunk in response.content.iter_any():
                    line += chunk
                    # Split only when a line has ended: a long one comes in thousands of chunks.
                    *ended, line = line.split(b"\n") if b"\n" in chunk else (line,)
                    if max(map(len, (line, *ended))) > MAX_LINE_BYTES:
                        raise AgentFailed("OUTPUT_TOO_LARGE", f"A line of output has more than {MAX_LINE_BYTES} bytes.")
                    for part in ended:
                        yield bytes(part)
            except TimeoutError:
                return
        # A followed response may be cut off, and is then read again.
        if line and query.get("follow") == "false":
            yield bytes(line)

    async def _call(
        self, method: str, path: str, body: JsonObject | None = None, *, query: dict[str, str] | None = None
    ) -> JsonObject:
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        async with self._open(method, path, timeout=timeout, params=query, json=body) as response:
            data = await read_body(response, MAX_ANSWER_BYTES)
        if data is None:
            raise ClusterUnavailable(f"the response of Kubernetes has more than {MAX_ANSWER_BYTES} bytes")
        try:
            answer: JsonObject = jsontext.decode(data)
        except InvalidRequest as error:
            raise ClusterUnavailable(f"the response of Kubernetes is not valid: {error.message}") from None
        return answer

    @asynccontextmanager
    async def _open(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request. Raises RequestRefused for a status of 4xx but 429, ClusterUnavailable for what else fails."""
        try:
            session = self._open_session()
            # Read for each call: Kubernetes replaces it about every hour.
            token = self._settings.token_file.read_text().strip()
        except OSError as error:
            # The errors of the ssl module have no file name.
            file = error.filename or self._settings.ca_file
            raise ClusterUnavailable(f"{file} cannot be read: {error.strerror}.") from None
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        url = self._settings.url.rstrip("/") + path
        try:
            async with session.request(method, url, headers=headers, allow_redirects=False, **options) as response:
                if response.status >= 400:
                    refused = RequestRefused(response.status, await response.content.read(65_536))
                    if response.status >= 500 or response.status == 429:
                        raise ClusterUnavailable(str(refused))
                    raise refused
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterUnavailable(f"{url}: {str(error) or 'no response in time'}") from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = ssl.create_default_context(cafile=self._settings.ca_file) if self._uses_tls else False
            connector = aiohttp.TCPConnector(ssl=context, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session

    @property
    def _uses_tls(self) -> bool:
        return self._settings.url.startswith("https://")


def _of_job(name: str) -> dict[str, str]:
    return {"labelSelector": f"job-name={name}"}
