"""The two ways to the gateway keep the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import uvicorn

from stentor.core.errors import ServiceUnavailable
from stentor.surfaces.dashboard.gateway import (
    GatewayClient,
    GatewayError,
    InProcessGatewayClient,
    build_target,
    quote_segment,
)
from stentor.surfaces.dashboard.gateway_http import HttpGatewayClient
from tests.conftest import World
from tests.patience import soon
from tests.requirements import requirement

ADMIN, READER = "admin-key-7c1e", "reader-key-7c1e"


@pytest.fixture(params=["in process", "over http"])
async def caller(request: pytest.FixtureRequest, world: World) -> AsyncIterator[GatewayClient]:
    if request.param == "in process":
        yield InProcessGatewayClient(world.app, world.ring.find)
        return
    server = uvicorn.Server(uvicorn.Config(world.app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await soon(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    made = HttpGatewayClient(lambda: f"http://127.0.0.1:{port}")
    yield made
    await made.close()
    server.should_exit = True
    await serving


@requirement("dashboard.calls")
async def test_a_call_answers_with_status_and_json_and_the_permissions_of_its_key(
    caller: GatewayClient, world: World
) -> None:
    await world.register("ann")
    body = {"id": "a/b ü", "type": "echo", "input": "hi", "required_capabilities": ["echo"]}
    made = await caller.call(ADMIN, "POST", build_target("/tasks"), body)
    assert (made.status, made.data["task_id"]) == (202, "a/b ü")
    found = await caller.call(READER, "GET", build_target(f"/tasks/{quote_segment('a/b ü')}"))
    assert (found.status, found.data["status"]) == (200, "queued")
    listed = await caller.call(READER, "GET", build_target("/tasks", {"status": "failed", "agent_id": "", "limit": 5}))
    assert (listed.data["total"], listed.data["limit"]) == (0, 5)
    refused = await caller.call(READER, "POST", build_target("/tasks"), body)
    assert (refused.status, GatewayError(refused).code) == (403, "FORBIDDEN")
    assert (await caller.call("nobody", "GET", build_target("/tasks"))).status == 401


@requirement("dashboard.calls")
async def test_a_stream_comes_as_it_happens_and_goes_on_where_it_was(caller: GatewayClient, world: World) -> None:
    agent = await world.register("ann")
    task_id = await world.submit()
    address = build_target(f"/tasks/{task_id}/stream")
    frames = caller.stream(READER, address)
    text = ""
    while "task_queued" not in text:
        text += (await anext(frames)).decode()
    claim = await world.claim(agent)
    done = {"epoch": claim["epoch"], "result": "hi"}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=done)).status_code == 200
    async for chunk in frames:
        text += chunk.decode()
    assert "event: complete" in text
    last = [line[4:] for line in text.splitlines() if line.startswith("id: ")][-1]
    again = b"".join([chunk async for chunk in caller.stream(READER, address, last)]).decode()
    assert "task_queued" not in again
    assert "event: complete" in again


@requirement("dashboard.calls", "dashboard.sign-in")
async def test_a_key_is_known_as_long_as_the_gateway_takes_it(caller: GatewayClient) -> None:
    assert await caller.is_key_valid(READER, "default")
    assert not await caller.is_key_valid(READER, "other")
    assert not await caller.is_key_valid("nobody", "default")


@requirement("dashboard.calls")
async def test_a_stream_that_is_refused_begins_with_no_chunk(caller: GatewayClient, world: World) -> None:
    for key, path, status in ((READER, "/tasks/none/stream", 404), ("nobody", "/tasks/none/stream", 401)):
        with pytest.raises(GatewayError) as refused:
            await anext(caller.stream(key, build_target(path)))
        assert refused.value.status == status


@requirement("dashboard.calls")
async def test_a_reader_who_leaves_ends_the_stream_and_not_the_work(caller: GatewayClient, world: World) -> None:
    await world.register("ann")
    task_id = await world.submit()
    frames = caller.stream(READER, build_target(f"/tasks/{task_id}/stream"))
    await anext(frames)
    await frames.aclose()  # type: ignore[attr-defined]
    await soon(lambda: not world.kernel.hub._watchers)
    assert (await world.task(task_id))["status"] == "queued"


@requirement("dashboard.calls")
@pytest.mark.parametrize("address", [None, "http://127.0.0.1:9"])
async def test_without_a_gateway_a_call_says_so(address: str | None) -> None:
    made = HttpGatewayClient(lambda: address)
    with pytest.raises(ServiceUnavailable):
        await made.call(ADMIN, "GET", build_target("/tasks"))
    with pytest.raises(ServiceUnavailable):
        await anext(made.stream(ADMIN, build_target("/tasks/x/stream")))
    assert await made.is_key_valid(ADMIN, "default")
    with suppress(ServiceUnavailable):
        await made.close()
