"""How many tasks wait for each agent, as processes on one database look at it once a second."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from stentor.domains.tasks.queues import queue_store
from tests.conftest import World
from tests.requirements import requirement

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


FILL = Sql(
    """insert into tasks (tenant, task_id, status, type, priority, assigned_agent, runtime_kind, created_at, queued_at,
        timeout_seconds, epoch, attempt_epoch, provenance_id, head_id, submitted_by, submitted_status, estimated_start,
        estimated_completion, body_hash, required_capabilities, metadata, input, learning_pending)
    select 'default', 't' || i, 'queued', 'x', 1, 'agent_' || i % 50, 'worker', i, i,
        300, 0, 0, 'e' || i, 'e' || i, 'admin', 'queued', 1,
        2, 'h', '["x"]', '{}', '{}', 0 from generate_series(1, 2000) as i"""
)
COUNT = Sql("insert into task_counts select tenant, -1, status, assigned_agent, count(*) from tasks group by 1, 3, 4")


def count_read(plan: dict[str, Any]) -> float:
    """Return how many rows the steps of an analyzed plan read, also those that they threw away."""
    rows: float = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return rows + sum(count_read(step) for step in plan.get("Plans", []))


@requirement("tasks.long-queues")
@pytest.mark.parametrize("is_analyzed", [True, False])
async def test_a_look_reads_few_rows_for_each_agent_however_many_wait(world: World, *, is_analyzed: bool) -> None:
    def read(tx: Tx) -> tuple[dict[str, int], float]:
        tx.run(FILL)
        tx.run(COUNT)
        if is_analyzed:
            tx.run(Sql("analyze tasks"))
        explain = Sql(f"explain (analyze, timing off, format json) {queue_store._QUEUE_DEPTHS.text}")
        answer = tx.rows(explain)[0][0]
        plan = json.loads(answer) if isinstance(answer, str) else answer
        return queue_store.read_queue_depths(tx), count_read(plan[0]["Plan"])

    depths, rows = await world.kernel.infra.db.write(read)
    assert depths == {f"agent_{n}": 40 for n in range(50)}
    assert rows < 1000
