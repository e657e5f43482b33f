"""Agents on a Ray cluster, up to Ray itself: a stand-in for its package runs the functions."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from stentor.domains.execution.runtimes.cluster import ClusterJob
from stentor.domains.execution.runtimes.cluster.driver import MAX_MESSAGE_CHARS
from stentor.domains.execution.runtimes.cluster.ray_cluster import RayCluster
from stentor.domains.registry.model import RayOptions
from tests.conftest import MakeWorld, World
from tests.domains.execution.runtimes.cluster.stand_in import write_interpreter
from tests.domains.streams import watch, watched
from tests.patience import soon
from tests.requirements import requirement

HEAD, CLIENT, DOWN, SLOW = "head:6379", "ray://head:10001", "down:6379", "slow:6379"
JOBS = "tests.domains.execution.runtimes.cluster.jobs"


@pytest.fixture
async def world(make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("SERVICE_API_KEY_ADMIN", "secret")
    made: World = await make_world(
        SERVICE_RAY_ADDRESSES=f"{HEAD},{CLIENT},{DOWN},{SLOW}",
        SERVICE_RAY_ENTRYPOINTS=f"{JOBS}:*,other.module:one",
        SERVICE_RAY_PYTHON=str(write_interpreter(tmp_path)),
    )
    return made


def runtime(function: str, **options: Any) -> dict[str, Any]:
    return {"kind": "ray", "options": {"entrypoint": f"{JOBS}:{function}", **options}}


async def run(world: World, function: str, input: Any = 1, **options: Any) -> dict[str, Any]:
    await world.register(function, runtime=runtime(function, **options))
    return await world.ended(await world.submit(input=input))


@requirement("execution.ray-runtime")
@pytest.mark.parametrize("address", [None, CLIENT])
async def test_the_function_gets_the_task_and_returns_the_result(world: World, address: str | None) -> None:
    task = await run(world, "double", 21, **({"address": address} if address else {}))
    assert (task["status"], task["result"], task["outcome_class"]) == ("completed", 42, "success")


@requirement("execution.ray-runtime", "execution.tokens")
async def test_what_a_generator_yields_goes_to_the_readers_of_the_stream(world: World, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    await world.register(runtime=runtime("talk"))
    reading = asyncio.create_task(watch(world, task_id := await world.submit(input=str(pipe))))
    await watched(world)
    await asyncio.to_thread(pipe.write_text, "go on")
    tokens = [frame.data["text"] for frame in await reading if frame.event == "token"]
    assert "".join(tokens) == "Thinking. ?"
    assert (await world.task(task_id))["status"] == "completed"


@requirement("execution.ray-runtime")
async def test_a_long_text_of_a_generator_and_a_long_result_cost_no_connection(world: World) -> None:
    assert (await run(world, "shout"))["result"] == "done"
    await world.register("long", capabilities=["long"], runtime=runtime("answer_with"))
    task = await world.ended(await world.submit(input="long", required_capabilities=["long"]))
    assert task["status"] == "completed", task["error"]
    assert len(task["result"]) == 5_000_000


FAILURES = [
    ("fail", 7, {}, "agent_failure", "CLUSTER_JOB_FAILED", "ValueError: no 7"),
    ("missing", 1, {}, "agent_failure", "CLUSTER_JOB_FAILED", "AttributeError"),
    ("fail", "\0x", {}, "agent_failure", "CLUSTER_JOB_FAILED", "ValueError: no \ufffdx"),
    ("fail", "x" * 9_000, {}, "agent_failure", "CLUSTER_JOB_FAILED", "ValueError"),
    ("answer_with", "text", {}, "agent_failure", "ANSWER_INVALID", "no field 'result'"),
    ("answer_with", "number", {}, "agent_failure", "CLUSTER_JOB_FAILED", "not JSON compliant"),
    ("answer_with", "half", {}, "agent_failure", "ANSWER_INVALID", "The result is not valid"),
    ("fail_at_length", 1, {}, "agent_failure", "CLUSTER_JOB_FAILED", "ValueError"),
    ("lost", 1, {}, "provider_failure", "CLUSTER_LOST", "the node was lost"),
    ("leave", 1, {}, "provider_failure", "CLUSTER_LOST", "The connection to the cluster was lost"),
    ("double", 1, {"address": DOWN}, "provider_failure", "CLUSTER_UNAVAILABLE", "no cluster at down:6379"),
]


@requirement("execution.ray-errors", "tasks.outcome-classes")
@pytest.mark.parametrize(("function", "input", "options", "outcome", "code", "text"), FAILURES)
async def test_only_a_failure_of_the_function_counts_against_the_agent(
    world: World, function: str, input: Any, options: dict[str, Any], outcome: str, code: str, text: str
) -> None:
    task = await run(world, function, input, **options)
    assert (task["outcome_class"], task["error"]["code"]) == (outcome, code)
    assert text in task["error"]["message"]
    assert len(task["error"]["message"]) <= MAX_MESSAGE_CHARS
    assert task["learning_eligible"] is (outcome == "agent_failure")


@requirement("execution.ray-errors")
async def test_a_task_that_gets_no_resources_says_so_and_does_not_count(world: World) -> None:
    await world.register(runtime=runtime("double", num_gpus=1))
    task = await world.ended(await world.submit(timeout_seconds=1))
    assert (task["outcome_class"], task["error"]["code"]) == ("provider_failure", "CLUSTER_BUSY")
    assert "1 CPUs and 1 GPUs" in task["error"]["message"]


@requirement("execution.ray-errors")
async def test_after_a_lost_connection_the_next_task_makes_a_new_one(world: World) -> None:
    await run(world, "leave")
    await world.register("doubler", capabilities=["double"], runtime=runtime("double"))
    task = await world.ended(await world.submit(input=2, required_capabilities=["double"]))
    assert task["result"] == 4


@requirement("execution.ray-errors")
async def test_a_task_that_ends_before_the_connection_is_made_leaves_it_to_the_next(
    world: World, tmp_path: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    await world.register(runtime=runtime("double", address=SLOW))
    first = await world.ended(await world.submit(timeout_seconds=1))
    assert first["error"]["code"] == "CLUSTER_BUSY"
    task_id = await world.submit(input=2)
    await asyncio.to_thread(pipe.write_text, "go on")
    assert (await world.ended(task_id))["result"] == 4
    assert (tmp_path / "starts").read_text() == "start\n"


@requirement("execution.cancel-reaches-runtime", "execution.ray-runtime")
async def test_a_cancel_and_a_deadline_stop_the_job_by_force(world: World, tmp_path: Path) -> None:
    await world.register(runtime=runtime("hang"))
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    task_id = await world.submit(input=str(started))

    async def exists(path: Path) -> bool:
        return path.exists()

    await soon(lambda: exists(started))
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")).status_code == 200
    await soon(lambda: exists(cancelled))
    assert cancelled.read_text() == "force=True"
    cancelled.unlink()
    for seconds in (1, 5, 25, 125):  # longer each time that the job had not begun yet
        task = await world.ended(await world.submit(input=str(started), timeout_seconds=seconds))
        if task["outcome_class"] == "timeout":
            break
    assert task["outcome_class"] == "timeout"
    await soon(lambda: exists(cancelled))


@requirement("execution.ray-secrets")
async def test_the_program_with_the_connection_gets_no_variable_of_the_service(world: World) -> None:
    names = (await run(world, "environment"))["result"]
    assert "PATH" in names
    assert [name for name in names if name.startswith(("SERVICE_", "STENTOR"))] == []
    assert set(names) <= {"PATH", "HOME", "LANG", "TMPDIR", "LC_CTYPE", "PWD", "SHLVL", "_"}


REFUSED = [
    ({"entrypoint": "os:system"}, "SERVICE_RAY_ENTRYPOINTS does not allow"),
    ({"entrypoint": "other.module:two"}, "SERVICE_RAY_ENTRYPOINTS does not allow"),
    ({"entrypoint": f"{JOBS}:double", "address": "elsewhere:6379"}, "SERVICE_RAY_ADDRESSES does not list"),
    ({"entrypoint": f"{JOBS}:double", "runtime_env": {}}, "unknown field"),
    ({"entrypoint": "os.system"}, "options of a ray runtime are invalid: entrypoint must be module:function"),
    ({"entrypoint": f"{JOBS}:double", "num_gpus": -1}, "options of a ray runtime"),
    ({}, "entrypoint"),
]


@requirement("execution.ray-registration")
@pytest.mark.parametrize(("options", "text"), REFUSED)
async def test_a_registration_names_only_what_the_settings_allow(
    world: World, options: dict[str, Any], text: str
) -> None:
    body = {"name": "ann", "capabilities": ["echo"], "runtime": {"kind": "ray", "options": options}}
    answer = await world.admin.post("/api/v1/registry/agents", json=body)
    assert answer.status_code == 400
    assert text in answer.text


@requirement("execution.ray-registration")
async def test_without_settings_there_are_no_agents_on_ray(make_world: MakeWorld) -> None:
    world = await make_world()
    body = {"name": "ann", "capabilities": ["echo"], "runtime": runtime("double")}
    answer = await world.admin.post("/api/v1/registry/agents", json=body)
    assert answer.status_code == 400
    assert "SERVICE_RAY_ADDRESSES" in answer.text


@requirement("execution.ray-registration")
@pytest.mark.parametrize(("address", "is_ok"), [(HEAD, True), (DOWN, False)])
async def test_a_probe_connects_to_the_cluster(world: World, address: str, is_ok: bool) -> None:
    agent_id = await world.register(runtime=runtime("double", address=address))
    agent = world.kernel.agents.registry.agents.get("default", agent_id)
    assert agent is not None
    result = await world.kernel.cluster_agents.probe(agent)
    assert result.is_ok is is_ok, result.detail


@requirement("execution.ray-runtime")
async def test_the_connection_ends_with_the_service(tmp_path: Path) -> None:
    cluster = RayCluster(HEAD, write_interpreter(tmp_path))
    await cluster.connect()
    connection = cluster._connection
    assert connection is not None
    await cluster.close()
    assert connection._process.returncode == 0


@requirement("execution.ray-errors")
async def test_a_program_that_writes_something_else_than_events_is_ended(tmp_path: Path) -> None:
    cluster = RayCluster(HEAD, write_interpreter(tmp_path))
    await cluster.submit(ClusterJob("one", 1, {}, 60, RayOptions(f"{JOBS}:babble")))
    connection = cluster._connection
    assert connection is not None
    assert [event.kind async for event in cluster.watch("one-1")][-1] == "lost"
    async with asyncio.timeout(60):
        await connection._process.wait()
    await cluster.connect()
    assert cluster._connection is not connection
    await cluster.close()


@requirement("execution.ray-errors")
async def test_a_job_for_a_connection_that_was_lost_meanwhile_is_lost(tmp_path: Path) -> None:
    cluster = RayCluster(HEAD, write_interpreter(tmp_path))
    await cluster.connect()
    connection = cluster._connection
    assert connection is not None
    await connection.close()
    await connection.submit(ClusterJob("one", 1, {}, 60, RayOptions(f"{JOBS}:double")))
    async with asyncio.timeout(60):
        assert [event.kind async for event in connection.watch("one-1")] == ["lost"]
    await cluster.close()
