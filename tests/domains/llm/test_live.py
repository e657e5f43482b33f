"""A real service before a real provider: heartbeats, callers that leave, pieces that come one by one, and secrets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from stentor.web import sse
from tests.conftest import Service, World
from tests.databases import content
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import KEY, Gate, asking
from tests.domains.llm.test_usage import evidence, usage
from tests.domains.llm.upstream import ANSWER, Upstream
from tests.patience import soon
from tests.requirements import requirement

HEADERS = {"X-API-Key": "admin-key-7c1e"}
OTHER_KEY = "canary-api-77aa-secret"


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """The world's gateway on a socket, in this process."""
    server = uvicorn.Server(uvicorn.Config(world.app, port=0, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve())
    await soon(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=200) as client:
            yield client
    finally:
        server.should_exit = True
        await running


async def recorded(world: World, outcome: str, count: int = 1) -> None:
    """Wait until so many calls with this outcome are in the run log."""

    async def known() -> bool:
        return [one["outcome"] for one in await evidence(world)].count(outcome) >= count

    await soon(known)


@requirement("llm.stream-heartbeats")
async def test_an_idle_stream_beats_and_its_pieces_come_as_the_provider_sends_them(
    make_llm: Gate, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.02)
    world = await make_llm()
    upstream.halting = True
    upstream.go.clear()
    for path, body in (("/api/v1/llm/stream", asking()), ("/v1/chat/completions", asking(stream=True))):
        async with listening(world) as client, client.stream("POST", path, json=body) as answer:
            lines = answer.aiter_lines()
            beat = "event: heartbeat" if path.startswith("/api") else ": heartbeat"
            first = [line async for line in _until(lines, beat)]
            assert any("The sea " in line for line in first)
            upstream.go.set()
            rest = [line async for line in _until(lines, "data: [DONE]")]
            assert any("is salty." in line for line in rest)
            if path.startswith("/api"):
                said = [json.loads(line[6:]) for line in first + rest if line.startswith("data: {")]
                assert {} not in said
                assert "".join(one["delta"] for one in said) == ANSWER
        upstream.go.clear()


async def _until(lines: AsyncIterator[str], last: str) -> AsyncIterator[str]:
    """Lines up to this one; a heartbeat counts once there was data."""
    data = False
    async for line in lines:
        yield line
        data = data or "sea" in line or "heartbeat" not in last
        if data and line == last:
            return


@requirement("llm.cancel-upstream")
async def test_a_reader_that_leaves_a_stream_ends_the_providers_work_and_is_accounted_for(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm()
    upstream.halting = True
    upstream.go.clear()
    async with listening(world) as client:
        async with client.stream("POST", "/api/v1/llm/stream", json=asking()) as answer:
            assert "The sea " in await anext(answer.aiter_lines())
        await asyncio.wait_for(upstream.broken_off.wait(), 60)
        await recorded(world, "CANCELLED")
    found = await usage(world)
    assert (found["totalRequests"], found["estimatedRequests"]) == (1, 1)
    assert found["outputTokens"] > 0


@requirement("registry.stopped-key")
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/api/v1/llm/stream", {}),
        ("/v1/chat/completions", {"stream": True}),
        ("/v1/responses", {"stream": True, "input": "Why?"}),
        ("/v1/messages", {"stream": True, "max_tokens": 9}),
    ],
)
async def test_an_agent_that_is_suspended_during_a_stream_does_not_get_the_rest(
    make_llm: Gate, upstream: Upstream, path: str, more: dict[str, Any]
) -> None:
    world = await make_llm()
    agent_id = await world.register(key_name="bob")
    upstream.halting = True
    upstream.go.clear()
    key = {"X-API-Key": world.clients["BOB"].headers["X-API-Key"]}
    async with listening(world) as client, client.stream("POST", path, json=asking(**more), headers=key) as answer:
        lines = answer.aiter_lines()
        while "The sea " not in await anext(lines):
            pass
        await world.admin.post(f"/api/v1/registry/agents/{agent_id}/suspend", json={"reason": "x"})
        upstream.go.set()
        rest = "".join([line async for line in lines])
    assert "suspended or quarantined" in rest
    assert "is salty" not in rest
    await recorded(world, "FORBIDDEN")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/api/v1/llm/stream", {}),
        ("/v1/chat/completions", {"stream": True}),
        ("/v1/responses", {"stream": True, "input": "Why?"}),
    ],
)
async def test_a_stream_too_many_is_429_and_no_provider_is_asked(
    make_llm: Gate, upstream: Upstream, path: str, more: dict[str, Any]
) -> None:
    world = await make_llm(SERVICE_MAX_STREAMS_PER_KEY="1")
    upstream.halting = True
    upstream.go.clear()
    async with listening(world) as client, client.stream("POST", "/api/v1/llm/stream", json=asking()) as answer:
        lines = answer.aiter_lines()
        assert "The sea " in await anext(lines)
        second = await client.post(path, json=asking(**more))
        assert second.status_code == 429
        assert "event streams open" in second.text
        upstream.go.set()
        assert "data: [DONE]" in [line async for line in lines]
    assert len(upstream.asked) == 1


@requirement("llm.cancel-upstream")
async def test_a_caller_that_leaves_before_the_answer_ends_the_providers_work(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm()
    upstream.mood = moods.silent
    for path, body in (
        ("/api/v1/llm/chat", asking()),
        ("/api/v1/llm/stream", asking()),
        ("/v1/chat/completions", asking()),
        ("/v1/embeddings", {"input": "x", "model": "openai/sea"}),
    ):
        upstream.arrived.clear()
        upstream.broken_off.clear()
        async with listening(world) as client:
            asked = asyncio.create_task(client.post(path, json=body))
            await asyncio.wait_for(upstream.arrived.wait(), 60)
            asked.cancel()
            await asyncio.wait_for(upstream.broken_off.wait(), 60)
    assert {one["outcome"] for one in await evidence(world)} == {"CANCELLED"}


@requirement("llm.cancel-upstream", "llm.budgets")
async def test_a_caller_that_leaves_each_call_early_uses_up_its_budget(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:*:tokens/day=1000")
    upstream.mood = moods.silent
    async with listening(world) as client:
        for count in range(2):
            upstream.arrived.clear()
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=asking(max_tokens=500)))
            await asyncio.wait_for(upstream.arrived.wait(), 60)
            asked.cancel()
            await recorded(world, "CANCELLED", count + 1)
        assert (await usage(world))["outputTokens"] == 1000
        refused = await client.post("/v1/chat/completions", json=asking(max_tokens=500))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")


@requirement("llm.provider-keys-protected")
async def test_no_key_of_a_provider_comes_out_of_a_service_anywhere(
    serve: Callable[..., Service], upstream: Upstream
) -> None:
    service = await asyncio.to_thread(
        serve,
        OPENAI_API_KEY=KEY,
        OPENAI_BASE_URL=upstream.v1,
        SERVICE_LLM_RETRIES="0",
        SERVICE_LOG_LEVEL="debug",
        SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}",
    )
    seen = []
    async with httpx.AsyncClient(base_url=service.address, headers=HEADERS, timeout=200) as client:
        body = {"provider": "acme", "apiKey": OTHER_KEY, "baseUrl": upstream.v1}
        seen.append(await client.post("/api/v1/llm/provider", json=body))
        assert seen[0].json()["data"]["apiKeyConfigured"] is True
        echo = moods.status(400, {"error": {"message": f"keys {KEY} and {OTHER_KEY}"}, "key": KEY})
        for mood in (None, echo, moods.status(401, {"error": f"{KEY} {OTHER_KEY}"}), moods.hanging_up):
            upstream.mood = mood
            for model in ("openai/sea-large", "acme/sea-large"):
                for path in ("/api/v1/llm/chat", "/api/v1/llm/stream", "/v1/chat/completions", "/v1/responses"):
                    extra = {"input": "x", "model": model} if path == "/v1/responses" else asking(model)
                    seen.append(await client.post(path, json=extra))
            seen += [await client.get(f"/api/v1/llm/{what}") for what in ("providers", "models", "config", "usage")]
        seen.append(await client.get("/metrics"))
    assert ANSWER in seen[1].text
    assert {call["headers"]["authorization"] for call in upstream.asked} == {f"Bearer {KEY}", f"Bearer {OTHER_KEY}"}
    service.process.terminate()
    out, err = await asyncio.to_thread(lambda: service.process.communicate(timeout=200))
    files = [path for path in service.data_dir.rglob("*") if path.is_file()]
    for key in (KEY, OTHER_KEY):
        assert key not in out + err
        assert not [answer for answer in seen if key in answer.text or key in json.dumps(dict(answer.headers))]
        assert not [path for path in files if key.encode() in path.read_bytes()]
        assert key.encode() not in content(service.database)
