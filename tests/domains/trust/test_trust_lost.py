"""Trust that cannot be read: routing goes on without it, says so, and comes back."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.bootstrap.kernel import build
from stentor.core.db import Sql
from stentor.domains.execution.reconciler import RELEARN_TICKS
from tests.conftest import MakeWorld, World
from tests.patience import soon
from tests.requirements import requirement

AWAY = Sql("alter table trust_scores rename to trust_gone")
BACK = Sql("alter table trust_gone rename to trust_scores")


async def available(world: World) -> bool:
    task_id = await world.submit()
    events: list[dict[str, Any]] = await world.events(task_id)
    (decided,) = [event for event in events if event["event_type"] == "routing_decision"]
    return bool(decided["metadata"]["routing"]["trust_available"])


async def run(world: World, sql: Sql) -> None:
    await world.kernel.infra.db.write(lambda tx: tx.run(sql))


@requirement("routing.trust-lost-while-running")
async def test_trust_that_goes_away_is_left_out_until_it_is_back(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_SNAPSHOT_REFRESH_SECONDS="0.1")
    agent_id = await world.register()
    await world.admin.put(f"/api/v1/trust/{agent_id}", json={"score": 0.8})
    assert await available(world)
    await run(world, AWAY)

    async def lost() -> bool:
        return not await available(world)

    await soon(lost)
    claim = await world.claim(agent_id)
    done = {"epoch": claim["epoch"], "result": "hi"}  # what is learned from it cannot be kept now
    assert (await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=done)).status_code == 200
    world.clock.advance(seconds=5)
    later = build(world.kernel.infra.settings, world.kernel.infra.db, world.clock)
    await later.views.load()
    await later.tasks.reconciler.recover(is_single_process=False)
    assert not later.agents.trust.view.is_available
    assert later.agents.registry.agents.get("default", agent_id) is not None
    await run(world, BACK)
    await later.views.refresh(world.clock.now())
    assert later.agents.trust.view.is_available
    known = later.agents.trust.view.score("default", agent_id, world.clock.now())
    assert known == pytest.approx(0.8, abs=0.01), "written before this process began"
    await soon(lambda: available(world))
    await later.tasks.reconciler.tick(RELEARN_TICKS)
    history = (await world.admin.get(f"/api/v1/hebbian/history/{agent_id}")).json()
    assert history["total_entries"] == 1, "the lesson that waited"
