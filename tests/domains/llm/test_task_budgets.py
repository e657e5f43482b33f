"""What the model calls of a task and of its subtasks may cost together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import World
from tests.domains.llm.conftest import Gate, asking
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement

# A call of the scripted model costs one US dollar, whatever it says.
PRICES = {"SERVICE_LLM_PRICES": "openai/sea-large=1000000/0"}


@pytest.fixture
async def world(make_llm: Gate) -> World:
    return await make_llm(**PRICES)


async def working(world: World, agent_id: str, **fields: Any) -> str:
    task_id = await world.submit(**fields)
    assert (await world.claim(agent_id))["task_id"] == task_id
    return task_id


async def call(world: World, task_id: str, **fields: Any) -> Any:
    headers = {"X-Task-Id": task_id}
    return await world.admin.post("/v1/chat/completions", json=asking(**fields), headers=headers)


@requirement("llm.task-budgets")
async def test_the_calls_of_a_task_and_its_subtasks_count_against_its_budget(world: World) -> None:
    agent = await world.register()
    root = await working(world, agent, max_cost_usd=1e6)
    spent = (await call(world, root)).json()["usage"]["prompt_tokens"]
    root = await working(world, agent, max_cost_usd=2.5 * spent)
    child = await working(world, agent, metadata={"parent_task_id": root})
    grandchild = await working(world, agent, metadata={"parent_task_id": child})
    assert (await call(world, root)).status_code == 200
    assert (await call(world, grandchild)).status_code == 200
    assert (await call(world, child)).status_code == 200, "what is left is more than nothing"
    for task_id in (grandchild, root):
        refused = await call(world, task_id)
        assert refused.status_code == 429, refused.text
        assert refused.json()["error"]["code"] == "budget_exceeded"
        assert f"of task '{root}' and its subtasks is used up" in refused.text
    free = await working(world, agent)
    assert (await call(world, free)).status_code == 200


@requirement("llm.task-budgets")
async def test_nothing_of_a_task_with_a_budget_stays_in_memory_after_its_calls(world: World) -> None:
    agent = await world.register()
    ledger = world.kernel.llm.ledger
    for _ in range(2):
        task_id = await working(world, agent, max_cost_usd=1e6)
        assert (await call(world, task_id)).status_code == 200
    assert not ledger._reserved


@requirement("llm.task-budgets")
async def test_a_subtask_has_its_own_budget_within_that_of_its_parent(world: World) -> None:
    agent = await world.register()
    root = await working(world, agent, max_cost_usd=1e6)
    child = await working(world, agent, metadata={"parent_task_id": root}, max_cost_usd=0.5)
    assert (await world.task(child))["metadata"]["max_cost_usd"] == 0.5
    assert (await call(world, child)).status_code == 200
    assert (await call(world, child)).status_code == 429
    assert (await call(world, root)).status_code == 200


@requirement("llm.task-budgets")
async def test_an_agent_with_a_model_keeps_to_the_budget_of_its_task(world: World, upstream: Upstream) -> None:
    await world.register("writer", runtime={"kind": "llm", "options": {"model": "openai/sea-large"}})
    root = await world.submit(max_cost_usd=0.5)
    assert (await world.ended(root))["status"] == "completed"
    child = await world.submit(metadata={"parent_task_id": root})
    ended = await world.ended(child)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "BUDGET_EXCEEDED")
    assert len(upstream.asked) == 1


@requirement("llm.task-budgets")
async def test_a_model_without_a_price_is_not_called_for_a_task_with_a_budget(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm()
    agent = await world.register()
    task_id = await working(world, agent, max_cost_usd=1)
    refused = await call(world, task_id)
    assert (refused.status_code, "needs a price of openai/sea-large" in refused.text) == (400, True)
    assert not upstream.asked


@requirement("llm.task-budgets")
@pytest.mark.parametrize("wrong", [0, -1, 1e7, "1", True])
async def test_a_budget_is_a_positive_number(world: World, wrong: Any) -> None:
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"], "max_cost_usd": wrong}
    assert (await world.admin.post("/api/v1/tasks", json=body)).status_code == 400
