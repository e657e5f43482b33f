"""What a process keeps in memory: a look at the rows takes in what others wrote, and undoes nothing that it wrote.

The clock stands still, so that no time tells the older from the newer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stentor.core.db import Sql
from tests.conftest import World

OTHERS_TRUST = Sql("update trust_scores set score = :score where entity_id = :id")
OTHERS_WEIGHT = Sql("update hebbian_weights set weight = :weight where agent_id = :id")
OTHERS_NAME = Sql("update agents set name = :name where agent_id = :id")


async def look(world: World, part: Any) -> Callable[[], None]:
    """Everything is read; what is read is not taken in yet."""
    taking: Callable[[], None] = await world.kernel.infra.db.read(part.poll_query(0))
    return taking


async def others(world: World, sql: Sql, **values: Any) -> None:
    """As another process does it: this one does not hear of it."""
    await world.kernel.infra.db.write(lambda tx: tx.run(sql, **values))


async def score(world: World, agent: str) -> float | None:
    return world.kernel.agents.trust.view.score("default", agent, world.clock.now())


async def trust(world: World, agent: str, value: float) -> None:
    assert (await world.admin.put(f"/api/v1/trust/{agent}", json={"score": value})).status_code == 200


async def test_of_trust(world: World) -> None:
    agent, other = [await world.register(f"agent{n}") for n in range(2)]
    for one in (agent, other):
        await trust(world, one, 0.2)
    take = await look(world, world.kernel.agents.trust.view)
    await trust(world, agent, 0.8)
    take()
    assert [await score(world, one) for one in (agent, other)] == [0.8, 0.2]
    await others(world, OTHERS_TRUST, score=0.6, id=agent)
    (await look(world, world.kernel.agents.trust.view))()
    assert await score(world, agent) == 0.6


async def test_of_weights(world: World) -> None:
    agent = await world.register()
    view = world.kernel.agents.learning.view
    await world.do(agent)
    take = await look(world, view)
    before = view.records("default", "echo").weights_by_agent[agent].weight
    await world.do(agent)
    after = view.records("default", "echo").weights_by_agent[agent].weight
    take()
    assert view.records("default", "echo").weights_by_agent[agent].weight == after != before
    await others(world, OTHERS_WEIGHT, weight=0.25, id=agent)
    (await look(world, view))()
    assert view.records("default", "echo").weights_by_agent[agent].weight == 0.25


async def test_of_agents(world: World) -> None:
    agent = await world.register("old")
    registry = world.kernel.agents.registry
    take = await look(world, registry)
    scored = await world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.9})
    assert scored.status_code == 200
    take()
    known = registry.agents.get("default", agent)
    assert known is not None
    assert known.accuracy_score == 0.9
    await others(world, OTHERS_NAME, name="theirs", id=agent)
    (await look(world, registry))()
    known = registry.agents.get("default", agent)
    assert known is not None
    assert known.name == "theirs"


async def test_of_two_looks_at_once_neither_undoes_anything(world: World) -> None:
    agent = await world.register()
    await trust(world, agent, 0.2)
    first = await look(world, world.kernel.agents.trust.view)
    second = await look(world, world.kernel.agents.trust.view)
    await trust(world, agent, 0.8)
    first()
    assert await score(world, agent) == 0.8
    second()
    assert await score(world, agent) == 0.8


async def test_a_look_that_failed_is_no_look(world: World) -> None:
    agent = await world.register()
    world.kernel.agents.trust.view.poll_query(0)  # its transaction never came
    await trust(world, agent, 0.3)
    await others(world, OTHERS_TRUST, score=0.7, id=agent)
    (await look(world, world.kernel.agents.trust.view))()
    assert await score(world, agent) == 0.7
