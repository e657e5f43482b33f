"""Model calls that a worker makes for its task: the header X-Task-Id puts them into the task's record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import World
from tests.domains.execution.test_costs_of_failures import FAILED, learned_cost, metered_cost
from tests.domains.llm.conftest import Gate, asking
from tests.requirements import requirement

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": asking(),
    "/v1/completions": {"model": "openai/sea-large", "prompt": "Salt?"},
    "/v1/responses": {"model": "openai/sea-large", "input": "Salt?"},
    "/v1/embeddings": {"model": "openai/sea-large", "input": "Salt?"},
    "/api/v1/llm/chat": asking(),
    "/api/v1/llm/complete": {"model": "openai/sea-large", "prompt": "Salt?"},
    "/api/v1/llm/embed": {"model": "openai/sea-large", "text": "Salt?"},
    "/api/v1/llm/stream": asking(),
}
STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


async def working(world: World) -> tuple[str, str]:
    """A task that the worker with the key BOB has claimed, and the worker's agent."""
    agent_id = await world.register("ann", key_name="BOB")
    task_id = await world.submit()
    assert (await world.claim(agent_id))["task_id"] == task_id
    return task_id, agent_id


async def call(world: World, path: str, task_id: str, who: str = "BOB", **fields: Any) -> Any:
    headers = {"X-Task-Id": task_id}
    return await world.clients[who].post(path, json=BODIES[path] | fields, headers=headers)


@requirement("llm.task-calls")
@pytest.mark.parametrize(
    ("path", "fields"), [*((path, {}) for path in BODIES), *((path, {"stream": True}) for path in STREAMS)]
)
async def test_a_call_for_a_task_is_a_part_of_its_record_and_counts_for_its_agent(
    world: World, path: str, fields: dict[str, Any]
) -> None:
    task_id, agent_id = await working(world)
    started = (await world.events(task_id))[-1]
    response = await call(world, path, task_id, **fields)
    assert response.status_code == 200, response.text
    (recorded,) = (await world.admin.get(f"/api/v1/llm/calls?task_id={task_id}")).json()["calls"]
    assert (recorded["key"], recorded["agent_id"], recorded["outcome"]) == ("bob", agent_id, "ok")
    event = (await world.events(task_id))[-1]
    assert event["event_type"] == "llm_called"
    assert event["parent_provenance_id"] == started["provenance_id"]


@requirement("llm.task-calls", "llm.budgets")
@pytest.mark.parametrize("path", BODIES)
async def test_a_call_without_a_task_counts_for_the_only_agent_of_its_key(world: World, path: str) -> None:
    _, agent_id = await working(world)
    bob = world.clients["BOB"]
    assert (await bob.post(path, json=BODIES[path])).status_code == 200
    (recorded,) = (await world.admin.get("/api/v1/llm/calls")).json()["calls"]
    assert (recorded["key"], recorded["agent_id"], recorded["task_id"]) == ("bob", agent_id, None)
    limit = {"kind": "agent", "subject": agent_id, "unit": "tokens", "period": "day", "limit": 1}
    assert (await world.admin.post("/api/v1/llm/budgets", json=limit)).status_code == 200
    assert (await bob.post(path, json=BODIES[path])).status_code == 429
    assert (await world.admin.post(path, json=BODIES[path])).status_code == 200
    await world.register("second", key_name="bob")
    assert (await bob.post(path, json=BODIES[path])).status_code == 200, "whose call it is cannot be known"


@requirement("registry.stopped-key")
async def test_the_key_of_a_suspended_agent_calls_models_only_for_a_task_that_it_executes(world: World) -> None:
    task_id, agent_id = await working(world)
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/suspend", json={"reason": "x"})
    for path in BODIES:
        assert (await call(world, path, task_id)).status_code == 200, path
        answer = await world.clients["BOB"].post(path, json=BODIES[path])
        assert (answer.status_code, "suspended or quarantined" in answer.text) == (403, True), path


@requirement("llm.task-calls")
async def test_a_call_names_no_task_that_its_caller_does_not_work_on(world: World) -> None:
    task_id, _ = await working(world)
    other = await world.register("other", capabilities=["other"], key_name="SECOND")
    others = await world.submit(type="other", required_capabilities=["other"])
    await world.claim(other)
    path = "/v1/chat/completions"
    assert (await call(world, path, "none")).status_code == 404
    assert (await call(world, path, "x" * 300)).status_code == 404
    assert (await call(world, path, task_id, who="OTHER")).status_code == 404, "another tenant"
    refused = await call(world, path, others)
    assert refused.status_code in (403, 404)
    ended = await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": 1, "result": 1})
    assert ended.status_code == 200, ended.text
    late = await call(world, path, task_id)
    assert late.status_code == 409
    assert "completed" in late.json()["error"]["message"]
    assert (await world.admin.get("/api/v1/llm/calls")).json()["calls"] == []


@requirement("llm.task-calls")
async def test_an_agent_as_a_model_does_a_subtask_of_the_task(world: World) -> None:
    task_id, _ = await working(world)
    runtime = {"kind": "llm", "options": {"model": "openai/sea-large"}}
    await world.register("sailor", capabilities=["explain"], runtime=runtime)
    response = await call(world, "/v1/chat/completions", task_id, model="agent:explain")
    assert response.status_code == 200, response.text
    subtasks = (await world.admin.get(f"/api/v1/tasks?parent_task_id={task_id}")).json()["tasks"]
    assert [task["type"] for task in subtasks] == ["explain"]


ENDS: list[tuple[str, dict[str, Any]]] = [("complete", {"result": 1}), ("fail", FAILED)]


@requirement("execution.metered-cost")
@pytest.mark.parametrize(("verb", "body"), ENDS)
@pytest.mark.parametrize(("reported", "share"), [(None, 1), (0, 1), (1_000, None)])
async def test_the_calls_of_an_attempt_are_its_cost_unless_the_worker_reports_more(
    make_llm: Gate, verb: str, body: dict[str, Any], reported: float | None, share: int | None
) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000")
    task_id, agent_id = await working(world)
    for _ in range(2):
        assert (await call(world, "/api/v1/llm/chat", task_id)).status_code == 200
    metered = await metered_cost(world, task_id)
    assert metered
    report = {"epoch": 1, **body} | ({} if reported is None else {"cost": reported})
    assert (await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/{verb}", json=report)).status_code == 200
    expected = pytest.approx(metered if share else reported)
    assert await learned_cost(world, agent_id) == expected
    (ended,) = [e for e in await world.events(task_id) if e["event_type"] in ("task_completed", "task_failed")]
    assert ended["metadata"]["cost"] == expected


@requirement("execution.metered-cost")
async def test_the_calls_of_an_earlier_attempt_do_not_count_again(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000")
    task_id, agent_id = await working(world)
    assert (await call(world, "/api/v1/llm/chat", task_id)).status_code == 200
    world.clock.advance(seconds=1)
    report = {"epoch": 1, **FAILED}
    assert (await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/fail", json=report)).status_code == 200
    first = await learned_cost(world, agent_id)
    assert first
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202
    claim = await world.claim(agent_id)
    report = {"epoch": claim["epoch"], "result": 1}
    assert (await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/complete", json=report)).status_code == 200
    assert await learned_cost(world, agent_id) == first


@requirement("execution.metered-cost")
async def test_the_calls_of_an_attempt_that_timed_out_are_its_cost(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000")
    task_id, agent_id = await working(world)
    assert (await call(world, "/api/v1/llm/chat", task_id)).status_code == 200
    world.clock.advance(seconds=1_000)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["outcome_class"] == "timeout"
    assert await learned_cost(world, agent_id)
