"""The two ways to the gateway keep the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import pytest
import uvicorn

from stentor.bootstrap.operations import OPERATIONS, operations
from stentor.core.errors import ServiceUnavailable
from stentor.domains.tasks.model import TaskStreamStep
from stentor.surfaces.dashboard.gateway import (
    GatewayClient,
    GatewayError,
    InProcessGatewayClient,
)
from stentor.surfaces.dashboard.gateway_http import GatewayAddress, HttpGatewayClient
from tests.conftest import World
from tests.patience import soon
from tests.requirements import requirement

ROWS = {row.name: row for row in OPERATIONS}
ADMIN, READER = "admin-key-7c1e", "reader-key-7c1e"


@pytest.fixture(params=["in process", "over http"])
async def caller(request: pytest.FixtureRequest, world: World) -> AsyncIterator[GatewayClient]:
    if request.param == "in process":
        rows = operations(world.kernel, world.context)
        yield InProcessGatewayClient(rows, world.kernel.tasks.activity, world.ring)
        return
    server = uvicorn.Server(uvicorn.Config(world.app, port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await soon(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    made = HttpGatewayClient(ROWS, lambda: GatewayAddress(f"http://127.0.0.1:{port}"))
    yield made
    await made.close()
    server.should_exit = True
    await serving


@requirement("dashboard.calls")
async def test_a_call_has_the_output_and_the_permissions_of_its_key(caller: GatewayClient, world: World) -> None:
    await world.register("ann")
    body = {"id": "a/b ü", "type": "echo", "input": "hi", "required_capabilities": ["echo"]}
    assert (await caller.call(ADMIN, "tasks.submit", {"body": body}))["task_id"] == "a/b ü"
    assert (await caller.call(READER, "tasks.get", {"task_id": "a/b ü"}))["status"] == "queued"
    listed = await caller.call(READER, "tasks.list", {"status": "failed", "limit": 5})
    assert (listed["total"], listed["limit"]) == (0, 5)
    for key, operation, arguments, status, code in (
        (READER, "tasks.submit", {"body": body}, 403, "FORBIDDEN"),
        (ADMIN, "tasks.submit", {"body": {"type": "echo"}}, 400, "INVALID_REQUEST"),
        (READER, "tasks.get", {"task_id": "none"}, 404, "NOT_FOUND"),
        (READER, "tasks.list", {"limit": 0}, 400, "INVALID_REQUEST"),
    ):
        with pytest.raises(GatewayError) as refused:
            await caller.call(key, operation, arguments)
        assert (refused.value.status, refused.value.code) == (status, code)
    with pytest.raises(GatewayError) as refused:
        await caller.call("nobody", "tasks.list", {})
    assert refused.value.status == 401


@requirement("dashboard.calls")
async def test_an_output_in_an_envelope_comes_without_it(caller: GatewayClient) -> None:
    assert set(await caller.call(READER, "messages.queue", {})) == {"depth", "oldest", "counts"}


@requirement("dashboard.calls")
async def test_a_stream_comes_as_it_happens_and_goes_on_where_it_was(caller: GatewayClient, world: World) -> None:
    agent = await world.register("ann")
    task_id = await world.submit()
    steps = caller.stream_task(READER, task_id)
    seen: list[TaskStreamStep] = []
    while "task_queued" not in [step.data.get("event_type") for step in seen]:
        seen.append(await anext(steps))
    claim = await world.claim(agent)
    done = {"epoch": claim["epoch"], "result": "hi"}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=done)).status_code == 200
    seen += [step async for step in steps]
    assert seen[-1].kind == "complete"
    last = [step.id for step in seen if step.id][-1]
    again = [step async for step in caller.stream_task(READER, task_id, last)]
    assert "task_queued" not in [step.data.get("event_type") for step in again]
    assert again[-1].kind == "complete"


@requirement("dashboard.calls")
async def test_a_stream_that_is_refused_has_no_step(caller: GatewayClient) -> None:
    for key, status in ((READER, 404), ("nobody", 401)):
        with pytest.raises(GatewayError) as refused:
            await anext(caller.stream_task(key, "none"))
        assert refused.value.status == status


@requirement("dashboard.calls")
async def test_a_reader_who_leaves_ends_the_stream_and_not_the_work(caller: GatewayClient, world: World) -> None:
    await world.register("ann")
    task_id = await world.submit()
    steps = caller.stream_task(READER, task_id)
    await anext(steps)
    assert isinstance(steps, AsyncGenerator)
    await steps.aclose()
    await soon(lambda: not world.kernel.infra.hub._watchers)
    assert (await world.task(task_id))["status"] == "queued"


@requirement("dashboard.calls")
@pytest.mark.parametrize("address", [None, "http://127.0.0.1:9"])
async def test_without_a_gateway_a_call_says_so(address: str | None) -> None:
    client = HttpGatewayClient(ROWS, lambda: None if address is None else GatewayAddress(address))
    with pytest.raises(ServiceUnavailable):
        await client.call(ADMIN, "tasks.list", {})
    with pytest.raises(ServiceUnavailable):
        await anext(client.stream_task(ADMIN, "x"))
    with suppress(ServiceUnavailable):
        await client.close()
