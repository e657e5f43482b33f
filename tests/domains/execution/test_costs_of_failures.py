"""What an attempt cost counts however it ended: as its agent says, and at least what its model calls cost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from stentor.core.db import Sql
from stentor.domains.execution.runtimes import http
from stentor.domains.llm.queries import read_task_calls
from stentor.domains.routing.explain import check_decision
from tests.conftest import MakeWorld, World
from tests.domains.endpoint import Handler, answering, serving, streaming
from tests.domains.routing.test_routing_learns import routing_of
from tests.patience import PATIENCE_SECONDS
from tests.requirements import requirement

COST = Sql("select mean_cost from hebbian_weights where agent_id = :agent")
FAILED = {"error": {"code": "NO_SOURCE", "message": "The page is gone."}}
MODEST: dict[str, Any] = {"alignment_score": 0.5, "accuracy_score": 0.5, "efficiency_score": 0.5}


async def learned_cost(world: World, agent: str) -> float | None:
    (cost,) = await world.kernel.infra.db.read(lambda tx: tx.row(COST, agent=agent)) or (None,)
    return cost


async def metered_cost(world: World, task_id: str) -> float | None:
    return (await world.kernel.infra.db.read(lambda tx: read_task_calls(tx, "default", task_id))).dollars


async def fail(world: World, agent: str, **fields: Any) -> Any:
    task_id = await world.submit(agent_preference=agent)
    epoch = (await world.claim(agent))["epoch"]
    return await world.admin.post(f"/api/v1/tasks/{task_id}/fail", json={"epoch": epoch, **FAILED, **fields})


@requirement("execution.cost-of-failure")
async def test_the_reported_cost_of_a_failure_is_learned_and_is_in_its_event(world: World) -> None:
    agent = await world.register()
    response = await fail(world, agent, cost=0.25)
    assert response.status_code == 200, response.text
    assert await learned_cost(world, agent) == 0.25
    (failed,) = [e for e in await world.events(response.json()["task_id"]) if e["event_type"] == "task_failed"]
    assert failed["metadata"]["cost"] == 0.25


@requirement("execution.cost-of-failure")
@pytest.mark.parametrize("cost", [-0.01, 1_000_001, "much", [1], True])
async def test_a_cost_that_is_no_number_of_dollars_is_400(world: World, cost: Any) -> None:
    response = await fail(world, await world.register(), cost=cost)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("execution.cost-of-failure")
async def test_a_failure_of_a_provider_teaches_no_cost(world: World) -> None:
    agent = await world.register()
    assert (await fail(world, agent, cost=0.25, outcome_class="provider_failure")).status_code == 200
    assert await learned_cost(world, agent) is None


@requirement("execution.cost-of-failure")
@pytest.mark.parametrize("has_cost", [False, True])
async def test_a_cheap_agent_whose_first_task_fails_is_still_known_as_cheap(world: World, has_cost: bool) -> None:
    dear, cheap = await world.register("a", **MODEST), await world.register("b", **MODEST)
    costs, chosen = {dear: 0.1, cheap: 0.01}, Counter[str]()
    for _ in range(40):
        task = await world.task(await world.submit(metadata={"prefer": "cheap"}))
        agent = str(task["assigned_agent"])
        epoch = (await world.claim(agent))["epoch"]
        chosen[agent] += 1
        if agent == cheap and chosen[cheap] == 1:
            verb, body = "fail", {"epoch": epoch, **FAILED, **({"cost": costs[agent]} if has_cost else {})}
        else:
            verb, body = "complete", {"epoch": epoch, "result": 1, "cost": costs[agent]}
        assert (await world.admin.post(f"/api/v1/tasks/{task['task_id']}/{verb}", json=body)).status_code == 200
    assert (chosen[cheap] > 30) is has_cost, chosen
    decision = await routing_of(world, await world.submit(metadata={"prefer": "cheap"}))
    assert check_decision(decision).is_reproduced


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


ANSWERS: list[tuple[Handler, str, float | None]] = [
    (answering({"error": "no source", "cost": 0.25}, status=500), "ENDPOINT_STATUS", 0.25),
    (answering({"cost": 0.25}, status=422), "ENDPOINT_STATUS", 0.25),
    (answering({"cost": -1}, status=500), "ENDPOINT_STATUS", None),
    (answering([0.25], status=500), "ENDPOINT_STATUS", None),
    (answering({"cost": 0.25, "why": "x" * 100_000}, status=500), "ENDPOINT_STATUS", None),
    (answering({"error": "no source", "cost": 0.25}), "ANSWER_INVALID", 0.25),
    (answering({"result": 1, "performance": 7, "cost": 0.25}), "ANSWER_INVALID", 0.25),
    (answering({"result": 1, "cost": "much"}), "ANSWER_INVALID", None),
    (streaming(event("error", {"message": "no source", "cost": 0.25})), "AGENT_ERROR", 0.25),
    (streaming(event("error", "no source")), "AGENT_ERROR", None),
]


async def remote(make_world: MakeWorld, port: int, url: str) -> tuple[World, str]:
    world = await make_world(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{port}")
    return world, await world.register("remote", runtime={"kind": "http", "endpoint": url})


@requirement("execution.cost-of-failure")
@pytest.mark.parametrize(("handler", "code", "cost"), ANSWERS)
async def test_an_endpoint_says_what_a_failure_cost(
    make_world: MakeWorld, handler: Handler, code: str, cost: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ERROR_BODY_SECONDS", PATIENCE_SECONDS)
    async with serving(handler) as endpoint:
        world, agent = await remote(make_world, endpoint.port, endpoint.url)
        task = await world.ended(await world.submit())
        assert (task["status"], task["error"]["code"]) == ("failed", code)
        assert await learned_cost(world, agent) == cost


@requirement("execution.cost-of-failure")
@pytest.mark.parametrize("body", [b'{"cost": 0.25', b"no JSON", b"[" * 100_000, b"\xff\xfe", b""])
async def test_a_failed_request_with_a_broken_body_ends_as_without_one(
    make_world: MakeWorld, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that never ends, and ones that are no JSON."""
    monkeypatch.setattr(http, "ERROR_BODY_SECONDS", 0.05)

    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(
            status=500, headers={"Content-Type": "application/json", "Content-Length": "999999"}
        )
        await answer.prepare(request)
        await answer.write(body)
        await answer.write(b" ")
        if body.startswith(b"{"):
            await asyncio.sleep(600)
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with serving(broken) as endpoint:
        world, agent = await remote(make_world, endpoint.port, endpoint.url)
        task = await world.ended(await world.submit())
        assert (task["status"], task["error"]["code"]) == ("failed", "ENDPOINT_STATUS")
        assert await learned_cost(world, agent) is None
