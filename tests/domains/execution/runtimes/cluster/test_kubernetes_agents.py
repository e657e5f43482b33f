"""Agents on Kubernetes, up to its API: a stand-in runs the programs of the Jobs."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stentor.core.settings import KubernetesSettings
from stentor.domains.execution.runtimes.cluster import (
    ClusterJob,
    ClusterUnavailable,
    JobEvent,
    kubernetes_jobs,
    kubernetes_objects,
)
from stentor.domains.execution.runtimes.cluster.driver import START_SHARE
from stentor.domains.execution.runtimes.cluster.kubernetes_jobs import MAX_ANSWER_BYTES, MAX_LINE_BYTES, KubernetesJobs
from stentor.domains.registry.model import KubernetesOptions
from tests.authority import Authority
from tests.conftest import MakeWorld, World
from tests.deploy import described
from tests.domains.execution.runtimes.cluster.kubernetes_api import NAMESPACE, TOKEN, KubernetesApi, cron_job
from tests.domains.streams import watch, watched
from tests.patience import soon
from tests.requirements import requirement

EXAMPLE = described.KUBERNETES / "jobs.example.yaml"
READ = "import json, os, sys; task = json.load(open(os.environ['STENTOR_TASK_FILE']));"
DOUBLE = READ + "print('a log line', file=sys.stderr); print(json.dumps({'result': task['input'] * 2}))"
TALK = READ + "print(open(task['input']).read(), flush=True); print('{\"result\": \"done\"}')"
ECHO = READ + "[print(line, end='', flush=True) for line in open(task['input'])]"
HANG = "import threading; print('waits', flush=True); threading.Event().wait()"


@pytest.fixture
async def api(tmp_path: Path) -> KubernetesApi:
    return KubernetesApi(tmp_path)


@pytest.fixture
async def world(api: KubernetesApi, make_world: MakeWorld, tmp_path: Path) -> AsyncIterator[World]:
    (token := tmp_path / "token").write_text(TOKEN + "\n")
    async with api.served() as url:
        made: World = await make_world(
            SERVICE_KUBERNETES_NAMESPACE=NAMESPACE,
            SERVICE_KUBERNETES_CRON_JOBS="agent-*",
            SERVICE_KUBERNETES_URL=url,
            SERVICE_KUBERNETES_TOKEN_FILE=str(token),
        )
        yield made


def runtime(name: str = "agent-one") -> dict[str, Any]:
    return {"kind": "kubernetes", "options": {"cron_job": name}}


async def run(world: World, api: KubernetesApi, program: str, input: Any = 1, **task: Any) -> dict[str, Any]:
    api.cron_jobs["agent-one"] = cron_job(program)
    await world.register(runtime=runtime())
    return await world.ended(await world.submit(input=input, **task))


@requirement("execution.kubernetes-runtime")
async def test_the_program_gets_the_task_as_a_file_and_its_last_line_is_the_result(
    world: World, api: KubernetesApi
) -> None:
    task = await run(world, api, DOUBLE, 21)
    assert (task["status"], task["result"], task["outcome_class"]) == ("completed", 42, "success"), task["error"]
    # A Job that has ended stays for people to look at; Kubernetes deletes it, and its Secret with it.
    [job] = api.jobs.values()
    assert job["metadata"]["name"] == f"stentor-{task['task_id']}-1"
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600
    assert job["spec"]["activeDeadlineSeconds"] > task["timeout_seconds"]


@requirement("execution.kubernetes-runtime")
async def test_the_example_runs_with_the_role_beside_it(world: World, api: KubernetesApi) -> None:
    documents = {document["kind"]: document for document in described.load(EXAMPLE)}
    container = documents["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    container["command"][0] = sys.executable
    api.cron_jobs["agent-one"] = documents["CronJob"]
    await world.register(runtime=runtime())
    task = await world.ended(await world.submit(input="the sea the sky"))
    assert task["result"] == {"the": 2, "sea": 1, "sky": 1}, task["error"]
    assert documents["CronJob"]["metadata"]["namespace"] == NAMESPACE
    rules = documents["Role"]["rules"]
    allowed = {(kind, verb) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}
    used = {api.right_for(call) for call in api.calls if "selfsubjectaccessreviews" not in call}
    assert used <= allowed
    # A Job is deleted only if it has not ended, and Pods are watched only until one has started.
    assert allowed - used <= {("jobs", "delete"), ("pods", "watch")}


@requirement("execution.kubernetes-runtime", "execution.tokens")
async def test_lines_with_a_token_go_to_the_readers_of_the_stream(
    world: World, api: KubernetesApi, tmp_path: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    api.cron_jobs["agent-one"] = cron_job(TALK)
    await world.register(runtime=runtime())
    reading = asyncio.create_task(watch(world, task_id := await world.submit(input=str(pipe))))
    await watched(world)
    await asyncio.to_thread(pipe.write_text, '{"token": "Think"}\nno token\n{"token": "ing."}')
    tokens = [frame.data["text"] for frame in await reading if frame.event == "token"]
    assert "".join(tokens) == "Thinking."
    assert (await world.task(task_id))["result"] == "done"


FAILURES = [
    (
        "import sys; print('the reason'); sys.exit(3)",
        "agent_failure",
        "CLUSTER_JOB_FAILED",
        "exit code 3 (Error).\nthe",
    ),
    ("pass", "agent_failure", "ANSWER_INVALID", "wrote no result"),
    ("print('no JSON')", "agent_failure", "ANSWER_INVALID", "The result is not valid"),
    ("print('{}')", "agent_failure", "ANSWER_INVALID", "no field 'result'"),
]


@requirement("execution.kubernetes-errors", "tasks.outcome-classes")
@pytest.mark.parametrize(("program", "outcome", "code", "text"), FAILURES)
async def test_a_failure_of_the_program_counts_against_the_agent(
    world: World, api: KubernetesApi, program: str, outcome: str, code: str, text: str
) -> None:
    task = await run(world, api, program)
    assert (task["outcome_class"], task["error"]["code"]) == (outcome, code)
    assert text in task["error"]["message"]


async def _started(api: KubernetesApi) -> str:
    found: str = await soon(
        lambda: next((job for job, pod in api.pods.items() if pod["status"]["phase"] == "Running"), None)
    )
    # The service knows the Pod: one that is deleted before has never been there for it.
    await soon(lambda: any(f"/pods/{found}-pod/log" in call for call in api.calls))
    return found


@requirement("execution.kubernetes-errors")
async def test_a_pod_that_was_deleted_or_evicted_does_not_count_against_the_agent(
    world: World, api: KubernetesApi
) -> None:
    api.cron_jobs["agent-one"] = cron_job(HANG)
    await world.register(runtime=runtime())
    task_id = await world.submit()
    await api.delete_pod(await _started(api))
    task = await world.ended(task_id)
    assert (task["outcome_class"], task["error"]["code"]) == ("provider_failure", "CLUSTER_LOST")
    api.jobs.clear()
    task_id = await world.submit()
    job = await _started(api)
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "a drain"}
    await api.change_pod(job, conditions=[disrupted])
    api._processes[job].terminate()
    task = await world.ended(task_id)
    assert (task["outcome_class"], task["error"]["code"]) == ("provider_failure", "CLUSTER_LOST")
    assert task["error"]["message"] == "EvictionByEvictionAPI: a drain"


PENDING = [
    ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
     "Unschedulable: 0/3 nodes"),
    ({"containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
     "ImagePullBackOff"),
]  # fmt: skip


@requirement("execution.kubernetes-errors")
@pytest.mark.parametrize(("status", "text"), PENDING)
async def test_a_job_that_is_not_started_says_why_and_is_deleted(
    world: World, api: KubernetesApi, status: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.pending = status
    deadlines: list[asyncio.Timeout] = []
    seen: list[Any] = []
    describe, timeout = kubernetes_objects.describe_wait, asyncio.timeout

    def timeout_of_start(seconds: float | None) -> asyncio.Timeout:
        made = timeout(seconds)
        if seconds == 600 * START_SHARE:
            deadlines.append(made)
        return made

    monkeypatch.setattr(asyncio, "timeout", timeout_of_start)
    monkeypatch.setattr(kubernetes_objects, "describe_wait", lambda pod: seen.append(pod) or describe(pod))
    ended = asyncio.create_task(run(world, api, DOUBLE, timeout_seconds=600))
    # The time is up as soon as the Pod is known, however long that took.
    await soon(lambda: seen)
    deadlines[0].reschedule(asyncio.get_running_loop().time())
    task = await ended
    assert (task["outcome_class"], task["error"]["code"]) == ("provider_failure", "CLUSTER_BUSY")
    assert text in task["error"]["message"]
    await soon(lambda: not api.jobs)


@requirement("execution.cancel-reaches-runtime", "execution.kubernetes-runtime")
async def test_a_cancel_and_a_deadline_delete_the_job(world: World, api: KubernetesApi) -> None:
    api.cron_jobs["agent-one"] = cron_job(HANG)
    await world.register(runtime=runtime())

    def is_gone() -> bool:
        return not api.jobs and not api.secrets and all(p.returncode is not None for p in api._processes.values())

    task_id = await world.submit()
    await _started(api)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")).status_code == 200
    await soon(is_gone)
    task = await world.ended(await world.submit(timeout_seconds=3))
    assert task["outcome_class"] in ("timeout", "provider_failure")  # the latter if the program was slow to start
    await soon(is_gone)


@requirement("execution.kubernetes-errors")
async def test_an_api_that_is_away_for_a_moment_costs_no_running_job(
    world: World, api: KubernetesApi, tmp_path: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    api.cron_jobs["agent-one"] = cron_job(TALK)
    await world.register(runtime=runtime())
    task_id = await world.submit(input=str(pipe))
    await _started(api)
    api.unreachable = 2
    await asyncio.to_thread(pipe.write_text, "a line")
    assert (await world.ended(task_id))["result"] == "done"
    assert api.unreachable == 0


REFUSALS = [
    ({"cron_jobs": {}}, 1, 'Kubernetes answered 404: cronjobs.batch "agent-one" not found'),
    ({"allowed": False}, 1, "Kubernetes answered 403: jobs.batch is forbidden"),
    ({"unreachable": 1}, 1, "Kubernetes answered 503: the API is being replaced"),
    (
        {"cron_jobs": {"agent-one": {"metadata": "x" * (MAX_ANSWER_BYTES + 1)}}},
        1,
        f"more than {MAX_ANSWER_BYTES} bytes",
    ),
    ({}, "x" * 1_000_001, "at most 1000000 in a Secret"),
]


@requirement("execution.kubernetes-errors")
@pytest.mark.parametrize(("api_has", "input", "text"), REFUSALS, ids=["missing", "forbidden", "away", "large", "long"])
async def test_what_kubernetes_refuses_says_so_and_does_not_count(
    world: World, api: KubernetesApi, api_has: dict[str, Any], input: Any, text: str
) -> None:
    api.cron_jobs["agent-one"] = cron_job(DOUBLE)
    for name, value in api_has.items():
        setattr(api, name, value)
    await world.register(runtime=runtime())
    task = await world.ended(await world.submit(input=input))
    assert (task["outcome_class"], task["error"]["code"]) == ("provider_failure", "CLUSTER_UNAVAILABLE")
    assert text in task["error"]["message"]
    assert TOKEN not in task["error"]["message"]


@requirement("execution.kubernetes-errors")
async def test_a_line_that_is_too_long_counts_against_the_agent(world: World, api: KubernetesApi) -> None:
    task = await run(world, api, f"print('x' * {MAX_LINE_BYTES + 100_000})")
    assert (task["outcome_class"], task["error"]["code"]) == ("agent_failure", "OUTPUT_TOO_LARGE")


def job_of(program: str, api: KubernetesApi, input: Any = 3) -> ClusterJob:
    api.cron_jobs["agent-one"] = cron_job(program)
    return ClusterJob("one", 1, {"input": input}, 60, KubernetesOptions("agent-one"))


@requirement("execution.kubernetes-runtime")
async def test_the_certificate_of_the_api_is_checked(api: KubernetesApi, tmp_path: Path) -> None:
    for folder in (folders := (tmp_path / "right", tmp_path / "wrong")):
        folder.mkdir()
    right, wrong = map(Authority, folders)
    right.issue("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(right.certificate_file, right.key_file)
    (token := tmp_path / "token").write_text(TOKEN)
    async with api.served(context) as url:
        settings = KubernetesSettings(NAMESPACE, url=url, token_file=token, ca_file=right.file)
        cluster = KubernetesJobs(settings)
        await cluster.submit(job_of(DOUBLE, api))
        assert [event.text async for event in cluster.watch("one-1")] == ["", '{"result": 6}']
        await cluster.close()
        stranger = KubernetesJobs(replace(settings, ca_file=wrong.file))
        with pytest.raises(ClusterUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await stranger.connect()
        await stranger.close()


@requirement("execution.kubernetes-runtime")
async def test_jobs_that_run_are_deleted_with_the_service(api: KubernetesApi, tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text(TOKEN)
    async with api.served() as url:
        cluster = KubernetesJobs(KubernetesSettings(NAMESPACE, url=url, token_file=token))
        await cluster.submit(job_of(HANG, api))
        await cluster.close()
        assert not api.jobs
        assert api.calls[-1].startswith(f"DELETE /apis/batch/v1/namespaces/{NAMESPACE}/jobs/stentor-one-1")


@pytest.fixture
async def cluster(api: KubernetesApi, tmp_path: Path) -> AsyncIterator[KubernetesJobs]:
    (token := tmp_path / "token").write_text(TOKEN)
    async with api.served() as url:
        opened = KubernetesJobs(KubernetesSettings(NAMESPACE, url=url, token_file=token))
        yield opened
        await opened.close()


@requirement("execution.kubernetes-errors")
async def test_a_log_that_is_cut_off_twice_and_loses_its_beginning_is_read_on(
    cluster: KubernetesJobs, api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An outage that has ended does not count for the next one, however late that comes.
    monkeypatch.setattr(kubernetes_jobs, "OUTAGE_SECONDS", 0)
    monkeypatch.setattr(kubernetes_jobs, "RETRY_SECONDS", 0)
    os.mkfifo(pipe := tmp_path / "pipe")
    await cluster.submit(job_of(ECHO, api, str(pipe)))
    events = cluster.watch("one-1")
    assert (await anext(events)).kind == "started"
    with await asyncio.to_thread(pipe.open, "w") as program:
        for removed, tokens in [(0, "abc"), (0, "d"), (2, "ef")]:
            await api.cut_logs(removed)
            program.writelines(f'{{"token": "{token}"}}\n' for token in tokens)
            program.flush()
            assert [(await anext(events)).text for _ in tokens] == list(tokens)
        program.write('{"result": "done"}\n')
    assert [(event.kind, event.text) async for event in events] == [("result", '{"result": "done"}')]


@requirement("execution.kubernetes-errors")
async def test_a_pod_that_fails_before_its_program_runs_says_why(cluster: KubernetesJobs, api: KubernetesApi) -> None:
    api.pending = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    await cluster.submit(job_of(DOUBLE, api))
    events = [event async for event in cluster.watch("one-1")]
    assert events[-1] == JobEvent("lost", "Evicted: The node was low on resource: memory.", "CLUSTER_LOST")
    assert not any("/log?" in call for call in api.calls)


@requirement("execution.kubernetes-errors")
async def test_a_program_that_ends_because_its_pod_is_deleted_does_not_count(
    cluster: KubernetesJobs, api: KubernetesApi
) -> None:
    await cluster.submit(job_of(HANG, api))
    events = cluster.watch("one-1")
    assert (await anext(events)).kind == "started"
    [pod] = api.pods.values()
    pod["metadata"]["deletionTimestamp"] = "2026-11-29T08:00:00Z"
    api._processes["stentor-one-1"].terminate()
    assert [event.kind async for event in events] == ["lost"]


@requirement("execution.kubernetes-errors")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_file_that_is_missing_is_named(tmp_path: Path, scheme: str) -> None:
    token, authorities = tmp_path / "token", tmp_path / "ca.crt"
    settings = KubernetesSettings(NAMESPACE, url=f"{scheme}://127.0.0.1:9", token_file=token, ca_file=authorities)
    cluster = KubernetesJobs(settings)
    missing = authorities if scheme == "https" else token
    with pytest.raises(ClusterUnavailable, match=f"{missing} cannot be read: No such file or directory"):
        await cluster.connect()
    await cluster.close()


NAMED = [
    ({"cron_job": "other"}, "SERVICE_KUBERNETES_CRON_JOBS does not allow 'other'. It allows: agent-*."),
    ({"cron_job": "agent-../x"}, "cron_job"),
    ({}, "cron_job"),
]


def registration(options: dict[str, Any]) -> dict[str, Any]:
    return {"name": "ann", "capabilities": ["echo"], "runtime": {"kind": "kubernetes", "options": options}}


@requirement("execution.kubernetes-registration")
@pytest.mark.parametrize(("options", "text"), NAMED)
async def test_a_registration_names_only_cron_jobs_of_the_settings(
    world: World, options: dict[str, Any], text: str
) -> None:
    answer = await world.admin.post("/api/v1/registry/agents", json=registration(options))
    assert answer.status_code == 400
    assert text in answer.text


@requirement("execution.kubernetes-registration")
async def test_without_a_namespace_there_are_no_agents_on_kubernetes(make_world: MakeWorld) -> None:
    world = await make_world()
    answer = await world.admin.post("/api/v1/registry/agents", json=registration({"cron_job": "agent-one"}))
    assert answer.status_code == 400
    assert "set SERVICE_KUBERNETES_NAMESPACE" in answer.text


@requirement("execution.kubernetes-registration")
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_probe_asks_whether_jobs_may_be_created(world: World, api: KubernetesApi, is_allowed: bool) -> None:
    api.allowed = is_allowed
    agent = world.kernel.agents.registry.agents.get("default", await world.register(runtime=runtime()))
    assert agent is not None
    result = await world.kernel.cluster_agents.probe(agent)
    assert result.is_ok is is_allowed
    assert is_allowed or "may not create Jobs in the namespace 'agents'" in result.detail
