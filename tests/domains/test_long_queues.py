"""Queues that are longer than what one process holds in memory: after a restart, and while they are worked off."""

from __future__ import annotations

import pytest

from stentor.domains.execution import agent_queues
from tests.conftest import MakeWorld
from tests.domains.test_fairness import submit
from tests.domains.test_limits import claim


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_queues, "MAX_WINDOW", 4)
    monkeypatch.setattr(agent_queues, "MIN_WINDOW", 4)


async def test_after_a_restart_a_long_queue_delays_no_other_agent(make_world: MakeWorld) -> None:
    world = await make_world()
    _, other = [await world.register(name, capabilities=[name]) for name in ("busy", "other")]
    for _ in range(10):
        await world.submit(required_capabilities=["busy"])
    single = await world.submit(required_capabilities=["other"])
    restarted = await make_world()
    assert [task["task_id"] for task in await claim(restarted, other)] == [single]


async def test_after_a_restart_submitters_take_turns_in_a_long_queue(make_world: MakeWorld) -> None:
    world = await make_world()
    agent = await world.register()
    backlog = [await submit(world, "ADMIN") for _ in range(10)]
    single = await submit(world, "SECOND")
    restarted = await make_world()
    order = [task["task_id"] for task in await claim(restarted, agent, 3)]
    assert order == [backlog[0], single, backlog[1]]
