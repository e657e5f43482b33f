"""What fails under `auto`: who answers instead, and what is learned from it."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from stentor.core.db import Sql
from tests.conftest import World
from tests.domains.llm.conftest import asking
from tests.domains.llm.upstream import ANSWER, raw, sse, status
from tests.domains.modelrouting.conftest import (
    QUESTION,
    Make,
    Providers,
    ask,
    free,
    grade,
    openai_client,
    outcomes,
    status_of,
)
from tests.patience import soon
from tests.requirements import requirement

TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@requirement("modelrouting.failures")
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_next_best_answers_when_the_first_fails_and_the_failure_is_evidence(
    client: openai.AsyncOpenAI, world: World, providers: Providers, streamed: bool
) -> None:
    providers["east"].mood = status(503)
    if streamed:
        chunks = [chunk async for chunk in await ask(client, stream=True)]
        model, why = chunks[0].model, chunks[0].stentor["why"]
    else:
        answer = await ask(client)
        model, why = answer.model, answer.stentor["why"]
    assert model == "west/m"
    assert why.endswith("It failed, and west/m answered.")
    assert await outcomes(world) == [("east/m", 0.0), ("west/m", 1.0)]


@requirement("modelrouting.recovery")
@pytest.mark.parametrize("requests", [8, 20])
async def test_after_an_outage_of_its_provider_a_cheaper_model_gets_its_requests_back(
    make_auto: Make, providers: Providers, requests: int
) -> None:
    world = await make_auto(SERVICE_LLM_PRICES="east/*=1/1,west/*=400/400")
    client = openai_client(world)
    for _ in range(requests):
        await ask(client)
    providers["east"].mood = status(503)
    assert {(await ask(client)).model for _ in range(8)} == {"west/m"}
    providers["east"].mood = None
    world.clock.advance(seconds=300)
    assert [(await ask(client)).model for _ in range(6)] == ["east/m"] * 6


@requirement("modelrouting.recovery")
async def test_many_requests_that_fail_at_once_are_one_outage(make_auto: Make, providers: Providers) -> None:
    world = await make_auto(SERVICE_LLM_PRICES="east/*=1/1,west/*=400/400")
    client = openai_client(world)
    for _ in range(20):
        await ask(client)
    providers["east"].mood = status(503)
    await asyncio.gather(*(ask(client) for _ in range(20)))
    providers["east"].mood = None
    world.clock.advance(seconds=300)
    assert [(await ask(client)).model for _ in range(6)] == ["east/m"] * 6


@requirement("modelrouting.recovery")
async def test_a_model_that_fails_on_is_tried_ever_more_rarely(make_auto: Make, providers: Providers) -> None:
    world = await make_auto(SERVICE_LLM_PRICES="east/*=1/1,west/*=400/400")
    client = openai_client(world)
    for _ in range(20):
        await ask(client)
    providers["east"].mood, before = status(503), len(providers["east"].asked)
    for _ in range(40):
        world.clock.advance(seconds=600)
        assert (await ask(client)).model == "west/m"
    assert 5 < len(providers["east"].asked) - before < 15


@requirement("modelrouting.failures")
async def test_a_request_that_two_models_call_wrong_is_the_callers_and_teaches_nothing(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    for one in providers.values():
        one.mood = status(400)
    code, _ = await status_of(ask(client, model="auto:all"))
    assert code == 400
    assert sum(len(one.asked) for one in providers.values()) == 2, "not all are asked what two call wrong"
    assert await outcomes(world) == []


@requirement("modelrouting.failures")
async def test_a_model_that_refuses_what_another_takes_is_left(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    """As one that knows no tools does: its 400 says nothing about the request."""
    providers["east"].mood = status(400)
    for _ in range(20):
        await ask(client, tools=[TOOL])
    assert 1 <= len(providers["east"].asked) <= 5
    assert ("east/m", 0.0) in await outcomes(world)


@requirement("modelrouting.failures")
async def test_a_model_whose_api_has_no_such_request_is_passed_over_and_nothing_is_learned_of_it(
    world: World, providers: Providers
) -> None:
    body = {"provider": "east", "apiKey": "k", "baseUrl": providers["east"].url, "format": "gemini"}
    assert (await world.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
    seen = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}]
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": seen},
    ]
    for _ in range(2):
        answer = await world.admin.post("/v1/chat/completions", json={"model": "auto", "messages": said})
        assert (answer.status_code, answer.json()["model"]) == (200, "west/m")
    alone = await world.admin.post("/v1/chat/completions", json={"model": "east/m", "messages": said})
    assert alone.status_code == 400
    assert await outcomes(world) == [("west/m", 1.0)] * 2


@requirement("modelrouting.failures")
async def test_a_busy_provider_is_left_alone_for_as_long_as_it_says_and_nothing_is_learned(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    providers["east"].mood = status(429, None, **{"Retry-After": "60"})
    for _ in range(4):
        assert (await ask(client)).model == "west/m"
    assert len(providers["east"].asked) == 1
    assert set(await outcomes(world)) == {("west/m", 1.0)}
    assert [await free(world, await ask(client)) for _ in range(2)] == [["west/m"]] * 2
    world.clock.jump(-365 * 86_400)  # its wait does not become longer if the clock is set back
    world.clock.advance(seconds=61)
    assert sorted(await free(world, await ask(client))) == ["east/m", "west/m"]


@requirement("modelrouting.failures")
async def test_a_provider_that_is_left_alone_is_not_chosen_while_another_is_there(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    providers["east"].mood = status(503)
    for _ in range(5):
        await status_of(ask(client, model="east/m"))
    calls = len(providers["east"].asked)
    assert (await ask(client)).model == "west/m"
    assert len(providers["east"].asked) == calls
    assert await outcomes(world) == [("west/m", 1.0)], "what was not called did not fail"


@requirement("modelrouting.failures")
async def test_when_all_fail_the_caller_reads_the_first_failure(
    client: openai.AsyncOpenAI, providers: Providers
) -> None:
    for one in providers.values():
        one.mood = status(500)
    code, body = await status_of(ask(client, model="auto:all"))
    assert (code, body["code"]) == (502, "provider_error")


@requirement("modelrouting.failures")
async def test_a_spent_budget_is_429_and_teaches_nothing(make_auto: Make) -> None:
    world = await make_auto(SERVICE_LLM_BUDGETS="key:admin:tokens/day=10")
    client = openai_client(world)
    await ask(client)
    code, _ = await status_of(ask(client))
    assert code == 429
    assert [reward for _, reward in await outcomes(world)] == [1.0]


@requirement("modelrouting.failures")
async def test_a_stream_that_breaks_off_is_a_failure_and_cannot_be_graded(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    begun = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "The "}}]}
    providers["east"].mood = raw(sse(begun), "text/event-stream")
    stream = await ask(client, stream=True)
    first = await anext(aiter(stream))
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    assert await outcomes(world) == [("east/m", 0.0)]
    assert (await grade(world, first.id, 0.5)).status_code == 404


@requirement("modelrouting.failures")
async def test_a_caller_that_leaves_a_stream_is_no_failure_of_the_model(world: World, providers: Providers) -> None:
    for one in providers.values():
        one.halting = True
        one.go.clear()
    body = asking("auto")
    left = asyncio.create_task(world.admin.post("/api/v1/llm/stream", json=body))
    await asyncio.wait(
        {asyncio.create_task(one.arrived.wait()) for one in providers.values()}, return_when="FIRST_COMPLETED"
    )
    left.cancel()
    await asyncio.wait({left})

    async def cancelled() -> bool:
        sql = Sql("select outcome from llm_calls")
        return await world.kernel.infra.db.read(lambda tx: tx.rows(sql)) == [("CANCELLED",)]

    await soon(cancelled)
    assert await outcomes(world) == []


@requirement("modelrouting.failures")
async def test_nothing_is_called_when_the_decision_cannot_be_recorded(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    world.runlog.broken = True
    code, _ = await status_of(ask(client))
    assert code == 503
    assert not any(one.asked for one in providers.values())
    world.runlog.broken = False
    answer = await ask(client)
    decision = (await world.admin.get(f"/api/v1/llm/answers/{answer.id}")).json()["decision"]
    assert [each["ahead"] for each in decision["candidates"]] == [0, 0], "what was not called is not under way"


@requirement("modelrouting.failures")
async def test_an_answer_is_given_though_nothing_can_be_learned_from_it(
    client: openai.AsyncOpenAI, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql("drop table model_weights")))
    answer = await ask(client)
    assert answer.choices[0].message.content == ANSWER
    assert (await grade(world, answer.id, 0.5)).status_code == 404
