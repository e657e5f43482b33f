"""The sentinel: alerts open and resolve, and change nothing else."""

from __future__ import annotations

from stentor.domains.learning import store
from stentor.domains.learning.model import SentinelAlert
from stentor.domains.learning.service import EligibleOutcome
from tests.conftest import MakeWorld, World
from tests.requirements import requirement


async def teach(world: World, agent: str, outcomes: str) -> None:
    """One lesson for each letter: S is a success, F a failure. All in one transaction."""
    learning, start = world.kernel.agents.learning, len(await entries(world, agent))
    lessons = [
        EligibleOutcome("default", f"{agent}-{start + i}", 1, agent, "echo", letter == "S", 1.0, 10)
        for i, letter in enumerate(outcomes)
    ]
    await world.kernel.infra.db.write(lambda tx: [learning.learn(tx, lesson, "root") for lesson in lessons])


async def entries(world: World, agent: str) -> list[object]:
    return list((await world.kernel.agents.learning.list_history(agent, 1000))[0])


async def list_alerts(world: World, *, open_only: bool = False) -> list[SentinelAlert]:
    return await world.kernel.infra.db.read(
        lambda tx: store.list_tenant_alerts(tx, "default", open_only=open_only, limit=100)
    )


async def open_alerts(world: World) -> list[SentinelAlert]:
    return await list_alerts(world, open_only=True)


@requirement("learning.sentinel-alert")
async def test_an_alert_opens_with_the_fiftieth_swinging_outcome_and_resolves_when_calm(world: World) -> None:
    agent = await world.register()
    await teach(world, agent, "SF" * 24 + "S")
    assert await open_alerts(world) == []
    await teach(world, agent, "F")
    (alert,) = await open_alerts(world)
    assert (alert.agent_id, alert.task_type, alert.samples, alert.threshold) == (agent, "echo", 50, 0.4)
    assert alert.rate == 49 / 50
    await teach(world, agent, "F" * 20)
    assert len(await open_alerts(world)) == 1
    await teach(world, agent, "F" * 10)
    assert await open_alerts(world) == []
    (kept,) = await list_alerts(world)
    assert (kept.alert_id, kept.resolved_at) == (alert.alert_id, world.clock.now())


@requirement("learning.sentinel-alert")
async def test_an_alert_that_comes_back_is_a_new_one(world: World) -> None:
    agent = await world.register()
    await teach(world, agent, "SF" * 25 + "F" * 30 + "SF" * 25)
    found = await list_alerts(world)
    assert [alert.resolved_at is None for alert in found] == [True, False]


@requirement("learning.sentinel-alert")
async def test_an_alert_opens_again_with_the_outcomes_from_before_an_outage_of_all_agents(world: World) -> None:
    agent, other = await world.register(), await world.register("other")
    await teach(world, other, "SSS")
    await teach(world, agent, "FS" * 25)
    await teach(world, agent, "F" * 30)
    assert await open_alerts(world) == []
    await teach(world, other, "FF")
    await teach(world, other, "S")
    await teach(world, agent, "S")
    assert [alert.agent_id for alert in await open_alerts(world)] == [agent]


@requirement("dashboard.sentinel-threshold")
async def test_an_alert_follows_a_threshold_that_was_changed(make_world: MakeWorld) -> None:
    world: World = await make_world()
    agent = await world.register()
    await teach(world, agent, "SF" * 25)
    assert len(await open_alerts(world)) == 1
    higher: World = await make_world(SERVICE_SENTINEL_THRESHOLD="0.99")
    await teach(higher, agent, "S")
    assert await open_alerts(higher) == []
    lower: World = await make_world(SERVICE_SENTINEL_THRESHOLD="0.2")
    await teach(lower, agent, "F")
    (alert,) = await open_alerts(lower)
    assert alert.threshold == 0.2


@requirement("learning.sentinel-only-observes")
async def test_an_open_alert_changes_no_weight_no_routing_and_no_status(world: World) -> None:
    swinging = await world.register("swinging", alignment_score=0.9)
    calm = await world.register("calm", alignment_score=0, accuracy_score=0, efficiency_score=0)
    await teach(world, swinging, "SF" * 25)
    await teach(world, calm, "F" * 10)
    assert len(await open_alerts(world)) == 1
    agent = (await world.admin.get(f"/api/v1/registry/agents/{swinging}")).json()
    assert (agent["status"], agent["violation_count"]) == ("active", 0)
    before = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": swinging})).json()
    task = await world.task(await world.submit())
    assert task["assigned_agent"] == swinging
    after = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": swinging})).json()
    assert after == before
