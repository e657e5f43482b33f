"""The LLM stream: models and agents, budgets, cancellation upstream, and streams that break off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from stentor.surfaces.grpc.generated import llm_pb2 as pb
from stentor.surfaces.grpc.generated import llm_pb2_grpc
from tests.conftest import Service
from tests.domains.llm.upstream import ANSWER, WORDS, Upstream, hanging_up, held, serving, silent, status
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, code_of, keyed

KEY = "canary-up-4e1f-secret"
Serve = Callable[..., Service]
Stream = Callable[..., Any]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with serving() as made:
        yield made


def start(serve: Serve, upstream: Upstream, **environ: str) -> Service:
    """A service whose OpenAI is the scripted server."""
    llm = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": upstream.v1, "SERVICE_LLM_RETRIES": "0"}
    return serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0", **llm, **environ)


def stub_of(channel: Any) -> Any:
    return llm_pb2_grpc.LlmServiceStub(channel)


@asynccontextmanager
async def chatting(service: Service) -> AsyncIterator[Stream]:
    """A function that begins a stream."""

    def stream(model: str = "openai/sea-large", content: str = "Why is the sea salty?", **options: Any) -> Any:
        message = pb.ChatMessage(role=pb.ROLE_USER, content=content)
        asked = pb.StreamChatRequest(messages=[message], model=model, options=pb.ChatOptions(**options))
        return stub.StreamChat(asked, metadata=keyed(), timeout=SECONDS)

    async with grpc.aio.insecure_channel(service.ready["grpc"]) as channel:
        stub = stub_of(channel)
        yield stream


async def whole(call: Any) -> list[pb.StreamChatResponse]:
    return [part async for part in call]


async def reading(call: Any, parts: list[pb.StreamChatResponse]) -> None:
    async for part in call:
        parts.append(part)


async def told(call: Any) -> tuple[StatusCode, str | None, str]:
    """How a stream that fails ends."""
    with pytest.raises(grpc.RpcError) as found:
        async for _ in call:
            pass
    return found.value.code(), code_of(found.value), str(found.value.details())


@requirement("scale.grpc-other-services")
async def test_a_model_answers_piece_by_piece(serve: Serve, upstream: Upstream) -> None:
    service = start(serve, upstream)
    async with chatting(service) as stream:
        parts = [part async for part in stream(temperature=0.5, max_tokens=50, stop=["."], seed=7)]
    started, *deltas, finished = parts
    assert started.started.model == "openai/sea-large"
    assert not started.started.degraded
    assert [part.delta.content for part in deltas] == WORDS
    assert finished.finished == pb.ChatFinished(
        finish_reason="stop", usage=pb.ChatUsage(input_tokens=11, output_tokens=7)
    )
    asked = upstream.asked[-1]["body"]
    assert (asked["temperature"], asked["max_tokens"], asked["stop"], asked["seed"]) == (0.5, 50, ["."], 7)
    with service.client() as http:
        assert http.get("/api/v1/llm/usage").json()["data"]["totalTokens"] == 18


@requirement("scale.grpc-other-services")
async def test_an_agent_answers_as_a_model(serve: Serve, upstream: Upstream) -> None:
    service = start(serve, upstream)
    async with chatting(service) as stream:
        started, *deltas, finished = [part async for part in stream("agent:summarize", "One thing. Another.")]
    text = "".join(part.delta.content for part in deltas)
    with service.client() as http:
        task = http.get(f"/api/v1/tasks/{started.started.task_id}").json()
    assert (task["status"], task["provenance_id"]) == ("completed", started.started.provenance_id)
    assert json.loads(text) == task["result"] if text.startswith("{") else text
    assert finished.finished.usage.estimated


@requirement("scale.grpc-other-services")
async def test_a_budget_that_is_spent_refuses_the_next_stream(serve: Serve, upstream: Upstream) -> None:
    service = start(serve, upstream, SERVICE_LLM_BUDGETS="key:admin:tokens/day=10")
    async with chatting(service) as stream:
        assert (await whole(stream()))[-1].finished.usage.output_tokens == 7
        found = await told(stream())
    assert found[:2] == (StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXCEEDED")
    assert len(upstream.asked) == 1


@requirement("scale.grpc-other-services")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (429, (StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")),
        (500, (StatusCode.UNKNOWN, "PROVIDER_ERROR")),
        (400, (StatusCode.UNKNOWN, "PROVIDER_ERROR")),
    ],
)
async def test_a_provider_that_fails_is_told_as_over_http(
    serve: Serve, upstream: Upstream, code: int, expected: tuple[StatusCode, str]
) -> None:
    upstream.mood = status(code)
    service = start(serve, upstream)
    async with chatting(service) as stream:
        found = await told(stream())
    assert found[:2] == expected
    body = {"messages": [{"role": "user", "content": "x"}], "model": "openai/sea-large"}

    def over_http() -> Any:
        with service.client() as http:
            return http.post("/api/v1/llm/stream", json=body).json()

    answer = await asyncio.to_thread(over_http)
    assert (answer if code == 429 else answer["error"])["code"] == expected[1]
    assert KEY not in str(found)


@requirement("scale.grpc-other-services")
async def test_a_stream_that_breaks_off_ends_without_its_last_part(serve: Serve, upstream: Upstream) -> None:
    upstream.mood = hanging_up
    parts: list[pb.StreamChatResponse] = []
    async with chatting(start(serve, upstream)) as stream:
        with pytest.raises(grpc.RpcError) as found:
            await reading(stream(), parts)
    assert [part.WhichOneof("part") for part in parts] == ["started", "delta"]
    assert code_of(found.value) in ("PROVIDER_ERROR", "SERVICE_UNAVAILABLE")
    assert "was interrupted" in str(found.value.details())


@requirement("scale.grpc-other-services")
@pytest.mark.parametrize("begun", [True, False], ids=["in the middle", "before it began"])
async def test_a_caller_that_leaves_ends_the_providers_work(serve: Serve, upstream: Upstream, *, begun: bool) -> None:
    service = start(serve, upstream)
    upstream.mood = None if begun else silent
    upstream.halting = begun
    if begun:
        upstream.go.clear()
    async with chatting(service) as stream, asyncio.timeout(SECONDS):
        call = stream()
        if begun:
            assert (await call.read()).HasField("started")
            assert (await call.read()).delta.content == WORDS[0]
        else:
            begin = asyncio.ensure_future(call.read())
            await upstream.arrived.wait()
        call.cancel()
        await upstream.broken_off.wait()
        if not begun:
            await asyncio.wait({begin})
            assert begin.cancelled() or begin.exception()


@requirement("scale.grpc-other-services")
async def test_a_deadline_ends_the_providers_work(serve: Serve, upstream: Upstream) -> None:
    upstream.mood = silent
    service = start(serve, upstream)
    async with grpc.aio.insecure_channel(service.ready["grpc"]) as channel, asyncio.timeout(SECONDS):
        await channel.channel_ready()
        stub = stub_of(channel)
        message = pb.ChatMessage(role=pb.ROLE_USER, content="Why?")
        asked = pb.StreamChatRequest(messages=[message], model="openai/sea-large")
        while not upstream.arrived.is_set():  # on a busy machine a deadline may end before the provider is asked
            assert (await told(stub.StreamChat(asked, metadata=keyed(), timeout=5)))[0] == StatusCode.DEADLINE_EXCEEDED
        await upstream.broken_off.wait()


@requirement("scale.grpc-other-services")
async def test_too_many_streams_are_refused_before_a_provider_is_asked(serve: Serve, upstream: Upstream) -> None:
    upstream.go.clear()
    upstream.mood = held(upstream)
    service = start(serve, upstream, SERVICE_MAX_STREAMS_PER_KEY="1")
    async with chatting(service) as stream, asyncio.timeout(SECONDS):
        first = asyncio.ensure_future(whole(stream()))
        await upstream.arrived.wait()
        assert (await told(stream()))[:2] == (StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        upstream.go.set()
        assert "".join(part.delta.content for part in await first) == ANSWER
    assert len(upstream.asked) == 1
