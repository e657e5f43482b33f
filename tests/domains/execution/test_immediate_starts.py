"""Tasks that start at once: stored and claimed in one transaction, and never more of them than allowed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from stentor.core.db import Sql, Tx
from stentor.core.runlog import RunLogEvent
from stentor.domains.execution.executor import Reservation
from tests.conftest import MakeWorld, World
from tests.core.test_database import held
from tests.domains import endpoint
from tests.patience import soon
from tests.requirements import requirement

OUTDATED = Sql("update agents set updated_at = updated_at + 1 where agent_id = :agent_id")


class Gate:
    """Holds the requests of an endpoint until it is open; counts how many are there at a time."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.active = self.most = 0
        self.inputs: list[Any] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.active += 1
        self.most = max(self.most, self.active)
        self.inputs.append((await request.json())["input"])
        try:
            await self.open.wait()
        finally:
            self.active -= 1
        return web.json_response({"result": 1})


@asynccontextmanager
async def gated(make_world: MakeWorld, concurrency: int, **environ: str) -> AsyncIterator[tuple[World, Gate]]:
    """A world whose only agent holds what it gets until its gate is open."""
    gate = Gate()
    async with endpoint.serving(gate.handle) as server:
        environ |= {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_AGENT_CONCURRENCY": str(concurrency)}
        world: World = await make_world(**environ)
        await world.register("held", runtime={"kind": "http", "endpoint": server.url})
        try:
            yield world, gate
        finally:
            gate.open.set()


def watch(world: World) -> dict[str, Tx]:
    """Return the transaction of the last event of each type; filled while the world goes on."""
    seen: dict[str, Tx] = {}

    def note(tx: Tx, _tenant: str, events: list[RunLogEvent]) -> None:
        seen.update({event.event_type: tx for event in events})

    world.runlog.append_hooks.append(note)
    return seen


async def arrivals(gate: Gate, count: int) -> None:
    async def there() -> bool | None:
        return len(gate.inputs) >= count or None

    await soon(there)


@requirement("execution.start-at-once")
async def test_a_task_with_room_is_claimed_in_the_transaction_that_stores_it(make_world: MakeWorld) -> None:
    async with gated(make_world, 2) as (world, gate):
        seen = watch(world)
        task_id = await world.submit()
        await arrivals(gate, 1)
        assert seen["task_started"] is seen["prompt_received"]
        task = await world.task(task_id)
        assert (task["status"], task["attempts"]) == ("executing", 1)
        gate.open.set()
        assert (await world.ended(task_id))["status"] == "completed"
        kinds = [event["event_type"] for event in await world.events(task_id)]
        assert kinds[:5] == ["prompt_received", "routing_decision", "task_queued", "task_started", "task_completed"]
        counted = await world.admin.get("/api/v1/tasks", params={"status": "queued"})
        assert counted.json()["total"] == 0


@requirement("execution.start-at-once")
async def test_no_more_tasks_run_than_the_agent_may_run_at_a_time(make_world: MakeWorld) -> None:
    async with gated(make_world, 2) as (world, gate):
        ids = await asyncio.gather(*(world.submit(input=n) for n in range(8)))
        await arrivals(gate, 2)
        gate.open.set()
        assert {(await world.ended(task_id))["status"] for task_id in ids} == {"completed"}
        assert gate.most == 2


async def test_what_a_start_needed_is_freed_without_the_garbage_collector(make_world: MakeWorld) -> None:
    async with gated(make_world, 1) as (world, gate):
        gate.open.set()
        gc.collect()  # what other tests have left
        gc.disable()
        try:
            assert (await world.ended(await world.submit()))["status"] == "completed"
            await soon(lambda: not any(type(found) is Reservation for found in gc.get_objects()))
        finally:
            gc.enable()


async def test_a_task_waits_behind_those_that_wait_already(make_world: MakeWorld) -> None:
    async with gated(make_world, 1) as (world, gate):
        for n in range(3):
            await world.submit(input=n)
        await arrivals(gate, 1)
        gate.open.set()
        last = await world.submit(input=3)
        await world.ended(last)
        assert gate.inputs == [0, 1, 2, 3]


async def test_a_submission_that_stores_nothing_gives_its_room_back(make_world: MakeWorld) -> None:
    async with gated(make_world, 1) as (world, gate):
        gate.open.set()
        await world.ended(await world.submit(id="first"))
        await soon(lambda: world.kernel.tasks.dispatcher.count_running() == 0)
        seen = watch(world)
        body = {"id": "first", "type": "echo", "input": "hello", "required_capabilities": ["echo"]}
        assert (await world.admin.post("/api/v1/tasks", json=body)).status_code == 202
        assert (await world.admin.post("/api/v1/tasks", json=body | {"input": "other"})).status_code == 409
        assert seen == {}
        await world.ended(await world.submit())
        assert seen["task_started"] is seen["prompt_received"]


async def test_a_caller_that_leaves_during_the_transaction_keeps_its_room_until_the_end(
    make_world: MakeWorld,
) -> None:
    async with gated(make_world, 1) as (world, gate):
        holding, go_on = await held(world.kernel.infra.db)
        dispatcher = world.kernel.tasks.dispatcher
        leaving = asyncio.create_task(world.submit(id="left"))
        agent_id = (await world.admin.get("/api/v1/registry/agents")).json()["agents"][0]["agent_id"]

        async def is_reserved() -> bool | None:
            room = dispatcher.reserve(agent_id, "http")
            if room is not None:
                room.release()
            return room is None or None

        await soon(is_reserved)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await is_reserved(), "the transaction goes on"
        go_on.set()
        await holding
        await arrivals(gate, 1)
        second = await world.submit(input="second")
        gate.open.set()
        assert {(await world.ended(task_id))["status"] for task_id in ("left", second)} == {"completed"}
        assert gate.most == 1


async def test_a_task_whose_limit_is_reached_waits(make_world: MakeWorld) -> None:
    async with gated(make_world, 5) as (world, gate):
        limit = {"key": "customer", "max": 1}
        first, second = [await world.submit(limit=limit, input=n) for n in range(2)]
        await arrivals(gate, 1)
        assert (await world.task(second))["status"] == "queued"
        gate.open.set()
        for task_id in (first, second):
            assert (await world.ended(task_id))["status"] == "completed"
        assert gate.most == 1


@pytest.mark.only("postgresql", reason="no other process changes the registry")
async def test_a_task_is_not_started_by_an_outdated_copy_of_its_agent(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(make_world, 2) as (world, gate):
        agent_id = (await world.admin.get("/api/v1/registry/agents")).json()["agents"][0]["agent_id"]
        refresh, waits, may_refresh = world.kernel.views.refresh, asyncio.Event(), asyncio.Event()

        async def held_refresh(since: int) -> int:
            waits.set()
            await may_refresh.wait()
            return await refresh(since)

        monkeypatch.setattr(world.kernel.views, "refresh", held_refresh)
        world.kernel.tasks.freshness.on_stale()
        # Now no refresh is under way that might read the change.
        await waits.wait()
        await world.kernel.infra.db.write(lambda tx: tx.run(OUTDATED, agent_id=agent_id))
        seen = watch(world)
        task_id = await world.submit()
        stored = seen["prompt_received"]
        assert "task_started" not in seen
        assert world.kernel.tasks.freshness._skips[agent_id] == 1
        may_refresh.set()
        gate.open.set()
        assert (await world.ended(task_id))["status"] == "completed"
        assert seen["task_started"] is not stored
