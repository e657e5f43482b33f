"""Idempotency-Key on submits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from stentor.core.db import Sql, Tx
from tests.conftest import World
from tests.requirements import requirement

PATH = "/api/v1/tasks"
BODY: dict[str, Any] = {"type": "echo", "input": "hi", "required_capabilities": ["echo"]}


async def post(world: World, key: str = "k1", client: str = "ADMIN", **fields: Any) -> Any:
    return await world.clients[client].post(PATH, json={**BODY, **fields}, headers={"Idempotency-Key": key})


async def total(world: World) -> int:
    return int((await world.admin.get(PATH)).json()["total"])


@requirement("http.idempotency-replays")
async def test_the_same_key_and_body_answer_the_stored_answer(world: World) -> None:
    await world.register()
    first = await post(world)
    world.clock.advance(seconds=60)
    again = await post(world)
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert await total(world) == 1


@requirement("http.idempotency-replays")
async def test_a_denial_is_replayed_too(world: World) -> None:
    first = await post(world)
    await world.register()
    again = await post(world)
    for answer in (first, again):
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "ROUTING_CAPABILITY_UNAVAILABLE")
    assert first.json()["error"]["details"] == again.json()["error"]["details"]
    assert await total(world) == 1


@requirement("http.idempotency-conflicts")
async def test_the_same_key_with_another_body_is_422(world: World) -> None:
    await world.register()
    await post(world)
    other = await post(world, input="other")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert await total(world) == 1


@requirement("http.idempotency-conflicts")
async def test_while_the_first_request_runs_the_same_key_is_409(world: World) -> None:
    await world.register()
    held, go_on = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        held.set()
        go_on.wait(60)

    holding = asyncio.create_task(world.kernel.infra.db.write(hold))
    await asyncio.to_thread(held.wait, 60)
    first = asyncio.create_task(post(world))
    while not world.kernel.tasks.submission._running:
        await asyncio.sleep(0)
    second = await post(world)
    go_on.set()
    await holding
    assert (second.status_code, second.json()["error"]["code"]) == (409, "CONFLICT")
    answer = await first
    assert answer.status_code == 202
    assert (await post(world)).json() == answer.json()


@requirement("http.idempotency-scope-and-age")
async def test_a_key_is_kept_for_24_hours(world: World) -> None:
    await world.register()
    first = (await post(world)).json()["task_id"]
    world.clock.advance(seconds=86_399)
    assert (await post(world)).json()["task_id"] == first
    world.clock.advance(seconds=1)
    fresh = (await post(world, input="other")).json()["task_id"]
    assert fresh != first
    assert (await post(world, input="other")).json()["task_id"] == fresh


@requirement("http.idempotency-scope-and-age")
async def test_a_key_is_private_to_its_api_key(world: World) -> None:
    await world.register()
    answers = [await post(world, client=client) for client in ("ADMIN", "WRITER")]
    assert len({answer.json()["task_id"] for answer in answers}) == 2


async def test_old_keys_are_forgotten_by_the_reconciler(world: World) -> None:
    await world.register()
    await post(world)
    kept = Sql("select count(*) from idempotency_keys")
    world.clock.advance(days=1)
    await world.kernel.tasks.reconciler.tick(3_599)
    assert await world.kernel.infra.db.read(lambda tx: tx.row(kept)) == (0,)


@requirement("activity.log-is-fail-closed")
async def test_a_submit_that_could_not_be_recorded_is_not_replayed(world: World) -> None:
    await world.register()
    world.runlog.broken = True
    assert (await post(world)).status_code == 503
    world.runlog.broken = False
    assert await total(world) == 0
    assert (await post(world)).status_code == 202


async def test_a_key_is_1_to_255_characters(world: World) -> None:
    await world.register()
    for key, status in (("k" * 255, 202), ("k" * 256, 400), ("", 400)):
        answer = await post(world, key)
        assert answer.status_code == status
        assert status == 202 or list(answer.json()["error"]["details"]["fields"]) == ["header.Idempotency-Key"]
    assert await total(world) == 1
