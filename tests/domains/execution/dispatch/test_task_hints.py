"""Several processes on one PostgreSQL, of which one is told of a queued task. None of them polls the queues: what no
message leads to is never found, and its test fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stentor.core.db import Database
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.fanout import TaskQueued
from stentor.domains.execution.dispatch.postgres_dispatcher import PostgresDispatcher
from stentor.domains.tasks.queues import queue_store
from stentor.testing import FixedClock
from tests.conftest import World, build_world
from tests.domains import endpoint
from tests.patience import soon
from tests.requirements import requirement

pytestmark = [pytest.mark.only("postgresql", reason="one process has SQLite to itself")]


class Together:
    """Processes of one installation; `looks` has how many tasks each look in a queue found."""

    def __init__(self, url: str, clock: FixedClock, folder: Path, endpoint_url: str) -> None:
        self._url = url
        self._clock = clock
        self._folder = folder
        self.endpoint_url = endpoint_url
        self.worlds: list[World] = []
        self.looks: list[int] = []

    async def start(self, roles: str = "gateway", concurrency: int = 1) -> World:
        environ = {"SERVICE_DATABASE_URL": self._url, "SERVICE_ROLES": roles, "SERVICE_OUTBOUND_ALLOW": "127.0.0.1"}
        environ["SERVICE_AGENT_CONCURRENCY"] = str(concurrency)
        db = Database(PostgresDriver(self._url, self._clock))
        folder = self._folder / str(len(self.worlds))
        folder.mkdir()
        world = await build_world(db, self._clock, folder, **environ)
        self.worlds.append(world)
        dispatcher = dispatcher_of(world)
        await soon(lambda: world.kernel.infra.fanout.is_connected)
        await soon(lambda: "worker" not in roles or dispatcher._pump_task is not None)
        dispatcher._refill = lambda depths, changed: None  # type: ignore[method-assign] # pyrefly: ignore
        await asyncio.sleep(0.05)  # until its announcements have left
        return world

    async def register(self, world: World, kind: str = "worker") -> str:
        """An agent that all processes know."""
        runtime = {"kind": kind} if kind == "worker" else {"kind": kind, "endpoint": self.endpoint_url}
        agent_id = await world.register(kind, runtime=runtime)

        def known() -> bool:
            return all(one.kernel.agents.registry.agents.get("default", agent_id) for one in self.worlds)

        await soon(known)
        return agent_id

    @property
    def in_vain(self) -> int:
        return self.looks.count(0)


def dispatcher_of(world: World) -> PostgresDispatcher:
    dispatcher = world.kernel.tasks.dispatcher
    assert isinstance(dispatcher, PostgresDispatcher)
    return dispatcher


class Tasks:
    """An endpoint of agents. Each of its requests waits to be allowed to end."""

    def __init__(self) -> None:
        self.running: dict[Any, asyncio.Event] = {}
        self.started: list[Any] = []
        self.ends_at_once = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        what = (await request.json())["input"]
        self.started.append(what)
        self.running[what] = asyncio.Event()
        if not self.ends_at_once:
            await self.running[what].wait()
        del self.running[what]
        return web.json_response({"result": 1})

    async def until_started(self, number: int) -> None:
        await soon(lambda: len(self.started) >= number)

    def end_all(self) -> None:
        self.ends_at_once = True
        for event in self.running.values():
            event.set()


@pytest.fixture
async def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
async def together(
    tasks: Tasks, postgres_url: str, clock: FixedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Together]:
    async with endpoint.serving(tasks.handle) as server:
        made = Together(postgres_url, clock, tmp_path, server.url)
        for name in ("next_for_agent", "next_in_process"):
            monkeypatch.setattr(queue_store, name, counted(getattr(queue_store, name), made.looks))
        yield made
        tasks.end_all()
        for world in made.worlds:
            for client in world.clients.values():
                await client.aclose()
            await world.kernel.stop()


def counted(look: Callable[..., list[Any]], found: list[int]) -> Callable[..., list[Any]]:
    def run(*arguments: Any) -> list[Any]:
        tasks = look(*arguments)
        found.append(len(tasks))
        return tasks

    return run


@asynccontextmanager
async def running(*jobs: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    started = [asyncio.create_task(job) for job in jobs]
    try:
        yield started
    finally:
        for job in started:
            job.cancel()
        await asyncio.gather(*started, return_exceptions=True)


@requirement("scale.one-process-is-told")
async def test_one_of_the_working_processes_looks_for_a_task_and_no_other(together: Together, tasks: Tasks) -> None:
    gateway = await together.start()
    for _ in range(3):
        await together.start("worker")
    await together.register(gateway, "http")
    together.looks.clear()
    for number in range(3):
        await gateway.submit(input=number)
        await tasks.until_started(number + 1)
    assert together.looks == [1, 1, 1]


@requirement("scale.one-process-is-told")
async def test_a_process_without_room_passes_the_hint_on(together: Together, tasks: Tasks) -> None:
    gateway = await together.start()
    for _ in range(4):
        await together.start("worker")
    await together.register(gateway, "http")
    for number in range(4):
        await gateway.submit(input=number)
        await tasks.until_started(number + 1)
    assert len(tasks.running) == 4


@requirement("scale.one-process-is-told")
async def test_a_task_that_finds_all_processes_full_starts_where_the_first_one_ends(
    together: Together, tasks: Tasks
) -> None:
    gateway = await together.start()
    for _ in range(3):
        await together.start("worker")
    await together.register(gateway, "http")
    for number in range(5):
        await gateway.submit(input=number)
    await tasks.until_started(3)
    for done in (4, 5):
        first = next(iter(tasks.running))
        tasks.running[first].set()
        await tasks.until_started(done)
    assert sorted(tasks.started) == [0, 1, 2, 3, 4]


@requirement("scale.one-process-is-told")
async def test_a_burst_fills_all_processes_and_then_drains(together: Together, tasks: Tasks) -> None:
    gateway = await together.start()
    for _ in range(3):
        await together.start("gateway,worker", concurrency=2)
    await together.register(gateway, "http")
    await asyncio.gather(*(together.worlds[number % 4].submit(input=number) for number in range(30)))
    await tasks.until_started(6)
    assert len(tasks.running) == 6
    tasks.end_all()
    await tasks.until_started(30)


@requirement("scale.one-process-is-told")
async def test_what_a_process_finds_and_cannot_take_is_passed_on(together: Together, tasks: Tasks) -> None:
    gateway = await together.start()
    for _ in range(2):
        await together.start("worker")
    await together.register(gateway, "http")
    hints = dispatcher_of(gateway)._hints
    silent, tell = (lambda agent_id, inside: None), hints.tell
    hints.tell = silent  # type: ignore[method-assign] # pyrefly: ignore
    await gateway.submit(input=0)
    hints.tell = tell  # type: ignore[method-assign]
    await gateway.submit(input=1)
    await tasks.until_started(2)


async def test_a_task_that_is_parked_leaves_its_slot_to_the_next_one_of_the_same_claim(
    together: Together, tasks: Tasks
) -> None:
    gateway = await together.start()
    agent_id, worker = await together.register(gateway, "http"), await together.register(gateway)
    limit = {"key": "k", "max": 1}
    await gateway.submit(limit=limit, agent_preference=worker)
    await gateway.claim(worker)
    for number in range(3):
        await gateway.submit(input=number, limit=limit, agent_preference=agent_id)
    await gateway.submit(input="free", agent_preference=agent_id)
    together.looks.clear()
    await together.start("worker")
    await tasks.until_started(1)
    assert (tasks.started, together.looks) == (["free"], [4])


@requirement("scale.one-process-is-told")
async def test_a_process_that_joins_is_told_at_once_and_one_that_leaves_no_more(
    together: Together, tasks: Tasks
) -> None:
    gateway = await together.start()
    await together.start("worker")
    await together.register(gateway, "http")
    await gateway.submit(input=0)
    await tasks.until_started(1)
    joined = await together.start("worker", concurrency=9)
    await gateway.submit(input=1)
    await tasks.until_started(2)
    tasks.ends_at_once = True
    left = together.worlds.pop(1)
    for event in tasks.running.values():
        event.set()
    await left.kernel.stop()
    for number in range(2, 6):
        await gateway.submit(input=number)
        await tasks.until_started(number + 1)
    assert joined in together.worlds


@requirement("scale.one-process-is-told")
async def test_what_a_process_that_died_was_told_is_found_by_the_poll_of_another(
    together: Together, tasks: Tasks
) -> None:
    gateway = await together.start()
    dead, alive = await together.start("worker"), await together.start("worker")
    await together.register(gateway, "http")
    deaf = dead.kernel.infra.fanout
    deaf._handlers.pop(TaskQueued)
    together.looks.clear()
    for number in range(2):  # one for each, as they take turns
        await gateway.submit(input=number)
    await tasks.until_started(1)
    tasks.end_all()
    del dispatcher_of(alive)._refill
    await tasks.until_started(2)


@requirement("scale.one-process-is-told")
async def test_a_task_is_claimed_where_its_worker_waits_and_nowhere_else(together: Together) -> None:
    one, other, third = [await together.start() for _ in range(3)]
    agent_id = await together.register(one)
    third_agent = await one.register("third", capabilities=["else"])
    await soon(lambda: third.kernel.agents.registry.agents.get("default", third_agent))
    together.looks.clear()
    async with running(other.claim(agent_id, wait_seconds=60), idle(third, third_agent)) as (claim, _):
        await soon(lambda: together.looks == [0, 0])  # each poll looks once when it begins
        await one.submit()
        assert (await claim)["type"] == "echo"
    assert together.looks == [0, 0, 1]


async def idle(world: World, agent_id: str) -> None:
    await world.admin.post(f"/api/v1/agents/{agent_id}/claims", json={"wait_seconds": 60})


@requirement("scale.one-process-is-told")
async def test_two_tasks_at_once_reach_two_workers_that_wait_at_two_processes(together: Together) -> None:
    one, other, third = [await together.start() for _ in range(3)]
    agent_id = await together.register(one)
    together.looks.clear()
    async with running(*(world.claim(agent_id, wait_seconds=60) for world in (other, third))) as claims:
        await soon(lambda: together.looks == [0, 0])
        ids = await asyncio.gather(one.submit(), one.submit())
        assert sorted([(await claim)["task_id"] for claim in claims]) == sorted(ids)


@requirement("scale.one-process-is-told")
async def test_two_tasks_at_once_reach_two_workers_that_wait_at_one_process(together: Together) -> None:
    one, other = [await together.start() for _ in range(2)]
    agent_id = await together.register(one)
    together.looks.clear()
    async with running(*(other.claim(agent_id, wait_seconds=60, max=1) for _ in range(2))) as claims:
        await soon(lambda: together.looks == [0, 0])
        ids = await asyncio.gather(one.submit(), one.submit())
        assert sorted([(await claim)["task_id"] for claim in claims]) == sorted(ids)


@requirement("scale.one-process-is-told")
async def test_a_task_that_came_while_the_worker_was_busy_is_there_at_its_next_claim_anywhere(
    together: Together,
) -> None:
    one, other, third = [await together.start() for _ in range(3)]
    agent_id = await together.register(one)
    await one.submit()
    await other.claim(agent_id)
    await one.submit()
    await asyncio.sleep(0.05)
    assert (await third.claim(agent_id))["type"] == "echo"


@requirement("scale.one-process-is-told")
async def test_a_hint_reaches_the_worker_that_waits_also_when_others_were_seen_elsewhere_since(
    together: Together,
) -> None:
    worlds = [await together.start() for _ in range(5)]
    agent_id = await together.register(worlds[0])
    together.looks.clear()
    async with running(worlds[1].claim(agent_id, wait_seconds=60)) as (claim,):
        await soon(lambda: together.looks == [0])
        for world in worlds[2:]:
            await world.admin.post(f"/api/v1/agents/{agent_id}/claims", json={})
        await asyncio.sleep(0.05)
        await worlds[0].submit()
        assert (await claim)["type"] == "echo"


@requirement("scale.one-process-is-told")
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_comes_where_each_task_reaches_a_worker(together: Together, seed: int) -> None:
    dice = random.Random(seed)
    worlds = [await together.start() for _ in range(3)]
    agent_id = await together.register(worlds[0])
    taken: list[str] = []

    async def work() -> None:
        while True:
            body = {"wait_seconds": 60, "max": dice.randint(1, 3)}
            answer = await dice.choice(worlds).admin.post(f"/api/v1/agents/{agent_id}/claims", json=body)
            taken.extend(task["task_id"] for task in answer.json()["tasks"])
            await asyncio.sleep(dice.choice([0, 0, 0.01, 0.05]))

    async with running(*(work() for _ in range(4))):
        ids: list[str] = []
        for _ in range(40):
            number = dice.choice([1, 1, 2, 5])
            ids += await asyncio.gather(*(dice.choice(worlds).submit() for _ in range(number)))
            await asyncio.sleep(dice.choice([0, 0.01, 0.05]))
        await soon(lambda: len(taken) >= len(ids))
    assert sorted(taken) == sorted(ids)
