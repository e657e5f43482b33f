"""Agents of the runtime `http` with `repeat: hold`: a request whose outcome is unknown is not sent again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from aiohttp import web

from stentor.core.db import Tx
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog import RunLogEvent
from tests.conftest import MakeWorld, Service, World
from tests.domains.endpoint import Endpoint, Handler, answering, hanging, serving, streaming
from tests.patience import soon
from tests.requirements import requirement
from tests.service import SHORT_LEASE

Place = Callable[[Handler], Awaitable[tuple[World, Endpoint]]]
HOLD: dict[str, Any] = {"repeat": "hold"}


@pytest.fixture
async def place(make_world: MakeWorld) -> AsyncIterator[Place]:
    """Builds an endpoint and a world in which an agent that holds is called there."""
    async with AsyncExitStack() as stack:

        async def build(handler: Handler) -> tuple[World, Endpoint]:
            endpoint = await stack.enter_async_context(serving(handler))
            world = await make_world(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{endpoint.port}")
            await world.register("remote", runtime={"kind": "http", "endpoint": endpoint.url, "options": HOLD})
            return world, endpoint

        yield build


async def held(world: World) -> list[tuple[str, str]]:
    """What waits for a person: the step, and its kind."""
    answer = await world.admin.get("/api/v1/decisions")
    return [(step["key"], step["kind"]) for step in answer.json()["steps"]]


async def resolve(world: World, task_id: str, **body: Any) -> None:
    path = f"/api/v1/tasks/{task_id}/steps/request/resolve"
    answer = await world.admin.post(path, json={"reason": "seen", **body})
    assert answer.status_code == 200, answer.text


async def retried(world: World, task_id: str) -> dict[str, Any]:
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202
    return await world.ended(task_id)


def keys(endpoint: Endpoint) -> list[str]:
    return [call["headers"]["Idempotency-Key"] for call in endpoint.calls]


async def lose_first_attempt(world: World, endpoint: Endpoint) -> dict[str, Any]:
    """Let the lease of a running attempt expire, as after a crash between sending and recording."""
    task_id = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    world.clock.advance(seconds=61)
    await world.kernel.tasks.reconciler.tick(1)
    return await world.ended(task_id)


@requirement("execution.http-hold")
async def test_a_request_without_an_outcome_is_held_until_a_person_knows(place: Place) -> None:
    world, endpoint = await place(hanging)
    task = await lose_first_attempt(world, endpoint)
    assert (task["status"], task["error"]["code"], task["attempts"]) == ("failed", "EFFECT_UNKNOWN", 2)
    assert task["outcome_class"] == "provider_failure"
    assert keys(endpoint)[0] in task["error"]["message"]
    assert await held(world) == [("request", "effect")]
    assert (await retried(world, task["task_id"]))["error"]["code"] == "EFFECT_UNKNOWN"  # a retry alone sends nothing
    await resolve(world, task["task_id"], happened=True, value={"booking": "A-17"})
    done = await retried(world, task["task_id"])
    assert (done["status"], done["result"]) == ("completed", {"booking": "A-17"})
    assert len(endpoint.calls) == 1
    assert await held(world) == []


@requirement("execution.http-hold")
async def test_a_request_that_did_not_happen_is_sent_again_with_its_key(place: Place) -> None:
    world, endpoint = await place(hanging)
    task = await lose_first_attempt(world, endpoint)
    endpoint.handler = answering({"result": "now"})
    await resolve(world, task["task_id"], happened=False)
    assert (await retried(world, task["task_id"]))["result"] == "now"
    first, second = keys(endpoint)
    assert first == second


@requirement("execution.http-hold")
async def test_a_response_is_recorded_before_the_outcome_and_used_by_the_next_attempt(place: Place) -> None:
    world, endpoint = await place(answering({"result": {"error": 1}, "performance": 0.5, "degraded": True, "cost": 2}))
    refused: list[str] = []

    def refuse_outcomes(tx: Tx, tenant: str, events: list[RunLogEvent]) -> None:
        if any(event.event_type == "task_completed" for event in events):
            refused.append(tenant)
            raise StoreUnavailable("The disk is full.")

    world.runlog.append_hooks.append(refuse_outcomes)
    task_id = await world.submit()
    await soon(lambda: refused)
    await soon(lambda: not world.kernel.tasks.dispatcher.count_running())
    world.runlog.append_hooks.remove(refuse_outcomes)
    world.clock.advance(seconds=61)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.ended(task_id)
    assert (task["status"], task["attempts"], task["result"]) == ("completed", 2, {"error": 1})
    assert task["outcome_class"] == "degraded_success"
    completed = next(event for event in await world.events(task_id) if event["event_type"] == "task_completed")
    assert (completed["metadata"]["performance"], completed["metadata"]["cost"]) == (0.5, 2)
    assert len(endpoint.calls) == 1


async def cut_off(request: web.Request) -> web.StreamResponse:
    """Do the task, and lose the connection before the response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@requirement("execution.http-hold")
@pytest.mark.parametrize(
    "handler",
    [
        cut_off,
        answering({}, 500),
        answering({}, 504),
        answering([1]),
        answering({"result": 1, "performance": 7}),
        streaming(b'event: token\ndata: {"text": "x"}\n\n'),
        streaming(b'event: error\ndata: {"secret": "x"}\n\n'),
    ],
    ids=["connection lost", "500", "504 of a proxy", "no result", "wrong performance", "half a stream", "stream error"],
)
async def test_what_may_have_happened_is_held(place: Place, handler: Handler) -> None:
    world, endpoint = await place(handler)
    task = await world.ended(await world.submit())
    assert (task["status"], task["error"]["code"]) == ("failed", "EFFECT_UNKNOWN")
    assert not task["error"]["message"].startswith("It is not known"), "it says first what happened"
    assert "secret" not in str(task)
    assert await held(world) == [("request", "effect")]
    await retried(world, task["task_id"])
    assert len(endpoint.calls) == 1


@requirement("execution.http-hold")
async def test_a_request_that_took_too_long_or_was_cancelled_is_held(place: Place) -> None:
    world, endpoint = await place(hanging)
    late: dict[str, Any] = {}
    while not endpoint.arrived.is_set():  # on a busy machine the time may be over before the endpoint is asked
        late = await world.ended(await world.submit(timeout_seconds=1))
        assert (late["status"], late["error"]["code"]) == ("aborted", "TIMEOUT")
    late_ones = len(await held(world))
    endpoint.arrived.clear()
    other = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    assert (await world.admin.post(f"/api/v1/tasks/{other}/cancel")).status_code == 200
    assert await held(world) == [("request", "effect")] * (late_ones + 1)
    assert (await retried(world, late["task_id"]))["error"]["code"] == "EFFECT_UNKNOWN"
    assert len(endpoint.calls) == 2


@requirement("execution.http-hold")
@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (404, "ENDPOINT_STATUS", "agent_failure"),
        (302, "ENDPOINT_STATUS", "agent_failure"),
        (429, "AGENT_BUSY", "provider_failure"),
        (503, "AGENT_BUSY", "provider_failure"),
    ],
)
async def test_a_refused_request_is_not_held_and_is_sent_again_after_a_retry(
    place: Place, status: int, code: str, outcome: str
) -> None:
    world, endpoint = await place(answering({}, status))
    task = await world.ended(await world.submit())
    assert (task["error"]["code"], task["outcome_class"]) == (code, outcome)
    assert await held(world) == []
    endpoint.handler = answering({"result": "now"})
    assert (await retried(world, task["task_id"]))["result"] == "now"
    first, second = keys(endpoint)
    assert first != second


@requirement("execution.http-hold")
async def test_an_endpoint_that_is_not_there_has_done_nothing(make_world: MakeWorld) -> None:
    async with serving(answering({"result": 1})) as gone:
        url = gone.url
    world = await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1")
    await world.register(runtime={"kind": "http", "endpoint": url, "options": HOLD})
    task = await world.ended(await world.submit())
    assert task["error"]["code"] == "ENDPOINT_UNREACHABLE"
    assert await held(world) == []


@requirement("execution.http-hold")
@pytest.mark.parametrize("options", [{"repeat": "never"}, {"repeat": None}, {"repeat": True}])
async def test_another_value_of_the_option_is_refused(world: World, options: dict[str, Any]) -> None:
    runtime = {"kind": "http", "endpoint": "https://example.com/", "options": options}
    answer = await world.admin.post("/api/v1/registry/agents", json={"name": "ann", "runtime": runtime})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert "repeat" in answer.text


@requirement("execution.http-hold")
async def test_a_request_is_held_when_the_service_is_killed_before_it_recorded_the_response(
    serve: Callable[..., Service],
) -> None:
    environ = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", **SHORT_LEASE}
    async with serving(hanging) as endpoint:
        service = await asyncio.to_thread(lambda: serve(**environ))
        runtime = {"kind": "http", "endpoint": endpoint.url}
        async with httpx.AsyncClient(base_url=service.address, headers={"X-API-Key": service.key}) as api:
            for name, options in (("held", HOLD), ("sent", {})):
                body = {"name": name, "capabilities": [name], "runtime": runtime | {"options": options}}
                (await api.post("/api/v1/registry/agents", json=body)).raise_for_status()
                body = {"id": name, "type": "pay", "input": name, "required_capabilities": [name]}
                (await api.post("/api/v1/tasks", json=body)).raise_for_status()
        await soon(lambda: len(endpoint.calls) == 2)
        service.kill()
        endpoint.handler = answering({"result": "again"})
        again = await asyncio.to_thread(lambda: serve(service.data_dir, **environ))
        async with httpx.AsyncClient(base_url=again.address, headers={"X-API-Key": again.key}) as api:

            async def ended(task_id: str) -> dict[str, Any]:
                async def find() -> dict[str, Any] | None:
                    task = dict((await api.get(f"/api/v1/tasks/{task_id}")).json())
                    return task if task["status"] in ("completed", "failed") else None

                return dict(await soon(find))

            task, other = await ended("held"), await ended("sent")
            (step,) = (await api.get("/api/v1/decisions")).json()["steps"]
        assert (task["status"], task["error"]["code"], task["attempts"]) == ("failed", "EFFECT_UNKNOWN", 2)
        assert (step["task_id"], step["kind"]) == ("held", "effect")
        assert (other["status"], other["result"]) == ("completed", "again")
        requests = sorted((call["body"]["input"], call["headers"]["Idempotency-Key"]) for call in endpoint.calls)
        assert requests == [("held", step["provenance_id"]), ("sent", "sent:1"), ("sent", "sent:1")]
