"""Queues that are longer than what one process holds in memory, after a restart."""

from __future__ import annotations

import pytest

from stentor.core.db import Sql
from stentor.domains.execution.dispatch import agent_queues
from tests.conftest import MakeWorld
from tests.domains.execution.dispatch.test_fairness import submit
from tests.domains.execution.test_limits import claim
from tests.domains.monitoring.metrics_scrape import scrape
from tests.requirements import requirement


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_queues, "MAX_WINDOW", 4)
    monkeypatch.setattr(agent_queues, "MIN_WINDOW", 4)


@requirement("tasks.long-queues")
async def test_a_long_queue_delays_no_other_agent(make_world: MakeWorld) -> None:
    world = await make_world()
    _, other = [await world.register(name, capabilities=[name]) for name in ("busy", "other")]
    for _ in range(10):
        await world.submit(required_capabilities=["busy"])
    single = await world.submit(required_capabilities=["other"])
    restarted = await make_world()
    assert [task["task_id"] for task in await claim(restarted, other)] == [single]


@requirement("tasks.long-queues", "tasks.fairness")
async def test_submitters_take_turns_and_priority_comes_first(make_world: MakeWorld) -> None:
    world = await make_world()
    agent = await world.register()
    backlog = [await submit(world, "ADMIN") for _ in range(10)]
    single = await submit(world, "SECOND")
    urgent = await submit(world, "ADMIN", metadata={"priority": "high"})
    restarted = await make_world()
    order = [task["task_id"] for _ in range(4) for task in await claim(restarted, agent, 3)]
    assert order == [urgent, backlog[0], single, *backlog[1:]]


@requirement("tasks.long-queues", "monitoring.tasks")
async def test_depths_and_the_age_of_the_oldest_task_are_those_of_the_whole_queue(make_world: MakeWorld) -> None:
    world = await make_world()
    agent = await world.register()
    for _ in range(10):
        await world.submit()
        world.clock.advance(seconds=1)
    for running in (world, await make_world()):
        assert running.kernel.tasks.dispatcher.count_ahead(agent) == 10
        assert running.kernel.tasks.dispatcher.queue_depths() == {agent: 10}
        scraped = await scrape(running)
        assert (scraped.value("queue_depth"), scraped.value("queue_oldest_seconds")) == (10, 10)
    assert len(await claim(running, agent, 2)) == 2
    await running.kernel.tasks.reconciler.tick(0)
    assert running.kernel.tasks.dispatcher.count_ahead(agent) == 8


@requirement("tasks.long-queues")
@pytest.mark.only("sqlite", reason="only a process that is alone keeps what waits in memory")
async def test_a_task_that_a_queue_lost_is_found_by_the_next_refill(make_world: MakeWorld) -> None:
    world = await make_world()
    agent = await world.register()
    tasks = [await world.submit() for _ in range(3)]
    world.kernel.tasks.dispatcher.stop("default", tasks[0], None)
    world.kernel.tasks.dispatcher.stop("default", tasks[1], None)
    await world.kernel.tasks.reconciler.tick(0)
    assert [task["task_id"] for task in await claim(world, agent)] == tasks


@requirement("tasks.long-queues")
@pytest.mark.only("sqlite", reason="PostgreSQL has an index for each order")
async def test_neither_a_refill_nor_a_read_of_a_queue_sorts_or_scans(make_world: MakeWorld) -> None:
    from stentor.domains.tasks.queues import lane_store

    world = await make_world()
    for name in ("_LIST_HEADS", "_OLDEST", "_LIST_LANE"):
        text = getattr(lane_store, name).text
        params = {"agent_id": "a", "priority": 1, "submitter": "s", "queued_at": 0, "task_id": "", "limit": 9}
        plan = await world.kernel.infra.db.read(lambda tx: tx.rows(Sql(f"explain query plan {text}"), **params))  # noqa: B023
        steps = [row[-1] for row in plan]
        assert not any("TEMP B-TREE" in step for step in steps)
        assert all("INDEX tasks_in_lanes" in step or "PRIMARY KEY" in step for step in steps if "tasks" in step)
        assert any("INDEX tasks_in_lanes (assigned_agent=? AND priority=? AND submitted_by" in step for step in steps)
