"""How many tasks wait for each agent, as processes on one database look at it once a second."""

from __future__ import annotations

import pytest

from stentor.domains.tasks import queue_store
from tests.conftest import World

pytestmark = pytest.mark.only("postgresql", reason="a process alone knows what waits")


async def test_each_agent_that_something_waits_for_is_counted_and_no_other(world: World) -> None:
    assert await world.kernel.infra.db.read(queue_store.read_queue_depths) == {}
    agents = [await world.register(f"agent{n}", capabilities=[f"do{n}"]) for n in range(5)]
    for n, agent in enumerate(agents):
        for _ in range(n):
            await world.submit(required_capabilities=[f"do{n}"], agent_preference=agent)
    assert await world.kernel.infra.db.read(queue_store.read_queue_depths) == {
        agent: n for n, agent in enumerate(agents) if n
    }
    await world.claim(agents[1])
    await world.claim(agents[3])
    assert await world.kernel.infra.db.read(queue_store.read_queue_depths) == {agents[2]: 2, agents[3]: 2, agents[4]: 4}


async def test_a_look_does_not_undo_what_happened_here_while_it_was_under_way(world: World) -> None:
    agent, other = [await world.register(f"agent{n}", capabilities=[f"do{n}"]) for n in range(2)]
    for which in (0, 0, 1):
        await world.submit(required_capabilities=[f"do{which}"])
    engine, db = world.kernel.tasks.dispatcher, world.kernel.infra.db
    take_up = await db.read(engine.refill_query())
    await world.claim(agent)
    await world.submit(required_capabilities=["do1"])
    take_up()
    assert (engine.count_ahead(agent), engine.count_ahead(other)) == (1, 2)
    take_up = await db.read(engine.refill_query())
    take_up()
    assert (engine.count_ahead(agent), engine.count_ahead(other)) == (1, 2)


async def test_agents_of_all_tenants_are_counted(world: World) -> None:
    ours = await world.register("ours", capabilities=["write"])
    await world.submit(required_capabilities=["write"])
    made = await world.clients["OTHER"].post(
        "/api/v1/registry/agents", json={"name": "theirs", "capabilities": ["write"], "trust_tier": "auto"}
    )
    theirs = made.json()["agent_id"]
    body = {"type": "echo", "input": "x", "required_capabilities": ["write"]}
    assert (await world.clients["OTHER"].post("/api/v1/tasks", json=body)).status_code == 202
    assert await world.kernel.infra.db.read(queue_store.read_queue_depths) == {ours: 1, theirs: 1}
