"""The order of an agent's queue: by priority, then submitters take turns, each by age."""

from __future__ import annotations

from typing import Any

from tests.conftest import World
from tests.domains.execution.test_limits import claim, end, look
from tests.requirements import requirement


async def submit(world: World, key: str, **fields: Any) -> str:
    world.clock.advance(seconds=0.001)  # tasks of the same microsecond have no order among them
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"], **fields}
    answer = await world.clients[key].post("/api/v1/tasks", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["task_id"])


@requirement("tasks.fairness")
async def test_a_backlog_delays_the_single_task_of_another_submitter_by_one_task(world: World) -> None:
    agent, tasks = await world.register(), list[str]()
    for key in [*["ADMIN"] * 30, "SECOND"]:
        tasks.append(await submit(world, key))
    *backlog, single = tasks
    order = [task["task_id"] for task in await claim(world, agent, 5)]
    assert order == [backlog[0], single, *backlog[1:4]]


@requirement("tasks.fairness")
async def test_submitters_with_a_backlog_get_equal_shares_by_age_and_priority_comes_first(world: World) -> None:
    agent = await world.register()
    mine = [await submit(world, "ADMIN") for _ in range(6)]
    yours = [await submit(world, "SECOND") for _ in range(6)]
    urgent = await submit(world, "ADMIN", metadata={"priority": "high"})
    order = [task["task_id"] for task in await claim(world, agent, 9)]
    assert order[0] == urgent
    assert [task for task in order if task in mine] == mine[:4]
    assert [task for task in order if task in yours] == yours[:4]


@requirement("tasks.fairness")
async def test_tasks_that_wait_for_room_use_up_no_turns_of_their_submitter(world: World) -> None:
    agent = await world.register()
    limited = [await submit(world, "ADMIN", limit={"key": "k", "max": 1}) for _ in range(9)]
    (running,) = await claim(world, agent)
    yours = [await submit(world, "SECOND") for _ in range(4)]
    mine = [await submit(world, "ADMIN") for _ in range(2)]
    order = [task["task_id"] for task in await claim(world, agent, 5)]
    assert [task for task in order if task in mine] == mine
    assert [task for task in order if task in yours] == yours[:3]
    await end(world, running)
    await look(world)
    assert limited[1] in [task["task_id"] for task in await claim(world, agent, 2)]
