"""What is written to the API of Kubernetes for a job, and what its answers say about one. Knows no HTTP.

Source: https://kubernetes.io/docs/reference/kubernetes-api/.
"""

from __future__ import annotations

import base64
import math
from collections import deque

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.execution import runtimes
from stentor.domains.execution.runtimes.cluster import ClusterJob, JobEvent

TASK_FOLDER = "/var/run/stentor"
TASK_FILE = "task.json"
MANAGED_BY = {"app.kubernetes.io/managed-by": "stentor"}
DEADLINE_EXTRA_SECONDS = 60
"""How much longer than its task a Job may run: it ends by itself if the service, which would delete it, has died."""
KEEP_SECONDS = 3600
"""How long a Job that has ended stays, with its log, unless the template says so."""
CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""Names the container that does the task: what injects sidecars may put its own before it."""
MAX_TAIL_LINES = 20
JOB_FAILED, CLUSTER_LOST = "CLUSTER_JOB_FAILED", "CLUSTER_LOST"
POD_DELETED = JobEvent("lost", "The Pod was deleted.", code=CLUSTER_LOST)


def make_job(cron_job: JsonObject, job: ClusterJob, name: str) -> JsonObject:
    """Return the Job: the CronJob's template, run once, with the task as a file in its first container."""
    template = cron_job["spec"]["jobTemplate"]
    metadata, spec = template.get("metadata", {}), template["spec"]
    # No retries by Kubernetes: Stentor decides about attempts, and records each.
    spec |= {"backoffLimit": 0, "completions": 1, "parallelism": 1, "suspend": False}
    for field in ("podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes"):
        spec.pop(field, None)
    spec["activeDeadlineSeconds"] = math.ceil(job.timeout_seconds) + DEADLINE_EXTRA_SECONDS
    spec.setdefault("ttlSecondsAfterFinished", KEEP_SECONDS)
    pod = spec["template"]["spec"]
    pod["restartPolicy"] = "Never"
    pod["volumes"] = [*pod.get("volumes", ()), {"name": "stentor-task", "secret": {"secretName": name}}]
    container = pod["containers"][0]
    annotations = spec["template"].setdefault("metadata", {}).setdefault("annotations", {})
    annotations[CONTAINER_ANNOTATION] = container["name"]
    mount = {"name": "stentor-task", "mountPath": TASK_FOLDER, "readOnly": True}
    container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    variable = {"name": "STENTOR_TASK_FILE", "value": f"{TASK_FOLDER}/{TASK_FILE}"}
    container["env"] = [*container.get("env", ()), variable]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**metadata.get("labels", {}), **MANAGED_BY},
            "annotations": metadata.get("annotations", {}),
        },
        "spec": spec,
    }


def make_secret(job: JsonObject, task: bytes) -> JsonObject:
    """Return the Secret with the task, which is deleted with its Job."""
    metadata = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": metadata["name"], "labels": MANAGED_BY, "ownerReferences": [owner]},
        "data": {TASK_FILE: base64.b64encode(task).decode()},
    }


def container_name(pod: JsonObject) -> str:
    """Return the name of the container that does the task: the first of the template."""
    return str(pod["metadata"]["annotations"][CONTAINER_ANNOTATION])


def has_started(pod: JsonObject) -> bool:
    return has_run(pod) or has_ended(pod)


def has_run(pod: JsonObject) -> bool:
    """Return whether the container has been started: without, it has no log, and a request for it is refused."""
    return bool(_state(pod).keys() & {"running", "terminated"})


def has_ended(pod: JsonObject) -> bool:
    return "terminated" in _state(pod) or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def describe_wait(pod: JsonObject) -> str:
    """Say why the Pod has not started, such as `Unschedulable: 0/3 nodes are available`."""
    waiting = _state(pod).get("waiting", {})
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return _join(waiting["reason"], waiting.get("message"))
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _join(condition.get("reason", "not scheduled"), condition.get("message"))
    return "its Pod is being started"


def last_event(pod: JsonObject, output: JobOutput) -> JobEvent:
    """Return the last event of a Pod that has ended. Only an exit of the program itself counts against the agent."""
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        # Set for an eviction, a drain, a preemption, and the loss of the node.
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return JobEvent("lost", _join(condition.get("reason", "disrupted"), condition.get("message")), CLUSTER_LOST)
    ended = _state(pod).get("terminated")
    if ended is None:
        return JobEvent("lost", _join(status.get("reason", "the Pod failed"), status.get("message")), CLUSTER_LOST)
    if ended["exitCode"] != 0:
        if "deletionTimestamp" in pod["metadata"]:
            return POD_DELETED
        reason = f"The program ended with exit code {ended['exitCode']} ({ended.get('reason', 'Error')})."
        return JobEvent("failed", "\n".join((reason, *output.tail)), JOB_FAILED)
    if output.result is None:
        text = "The program wrote no result: the last line of its output must be a JSON object with 'result'."
        return JobEvent("failed", text, "ANSWER_INVALID")
    return JobEvent("result", output.result)


class LogPosition:
    """How far a log with timestamps was read, of which the node may remove the beginning between two readings."""

    def __init__(self) -> None:
        self._time = b""
        self._read = self._passed = 0
        """Lines with that time, of which a node writes several: those read, and those that this reading came past."""

    def rewind(self) -> None:
        """Begin another reading."""
        self._passed = 0

    def advance(self, line: bytes) -> bytes | None:
        """Return the text of a line, or None if it was read before or is a message of the node in place of the log."""
        time, _, text = line.partition(b" ")
        if time < self._time or not time[:1].isdigit():
            return None
        if time > self._time:
            self._time, self._read, self._passed = time, 0, 0
        self._passed += 1
        if self._passed <= self._read:
            return None
        self._read = self._passed
        return text


class JobOutput:
    """Reads the lines of a log: `{"token": "..."}` is a token, and the last of the others the result.

    Kubernetes keeps standard output and standard error in one log, so what a program logs may stand before its result.
    """

    def __init__(self) -> None:
        self.result: str | None = None
        self.tail: deque[str] = deque(maxlen=MAX_TAIL_LINES)

    def feed(self, line: bytes) -> str | None:
        """Take a line; return its token, if it is one."""
        if (token := runtimes.parse_token_line(line)) is not None:
            return token
        if text := line.decode("utf-8", "replace").strip():
            self.result = text
            self.tail.append(text[:500])
        return None


def describe_error(status: int, body: bytes) -> str:
    """Return the message of an answer that is an error: a `Status` of Kubernetes, or whatever a proxy sent."""
    try:
        message = jsontext.decode(body)["message"]
    except Exception:  # noqa: BLE001 - any body is possible
        message = body.decode("utf-8", "replace")
    return f"Kubernetes answered {status}: {str(message).strip()[:500]}"


def _state(pod: JsonObject) -> JsonObject:
    name = container_name(pod)
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((status.get("state", {}) for status in statuses if status["name"] == name), {})


def _join(reason: str, message: str | None) -> str:
    return f"{reason}: {message}" if message else reason
