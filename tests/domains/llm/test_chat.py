"""Chat, complete, embed and stream through each format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate, asking, chat
from tests.domains.llm.upstream import ANSWER, VECTOR, WORDS, Upstream
from tests.requirements import requirement

MODELS = ["openai/sea-large", "anthropic/sea-large", "gemini/sea-large"]


@pytest.fixture
async def world(make_llm: Gate, upstream: Upstream) -> World:
    made = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    body = {"provider": "gemini", "apiKey": "gem-key-1", "baseUrl": upstream.url}
    assert (await made.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
    return made


def pieces(text: str) -> list[Any]:
    """The data lines of a stream, parsed; the last one as it is."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


@requirement("llm.chat", "llm.no-synthetic-success")
@pytest.mark.parametrize("model", MODELS)
async def test_chat_answers_what_the_provider_said_with_its_count(world: World, upstream: Upstream, model: str) -> None:
    answer = await chat(world, model, options={"temperature": 0.5, "max_tokens": 40})
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True
    data = answer.json()["data"]
    assert data["model"] == model
    assert data["content"] == ANSWER
    assert data["usage"] == {"input_tokens": 11, "output_tokens": 7}
    assert len(upstream.asked) == 1
    assert "Why is the sea salty?" in json.dumps(upstream.asked[0]["body"])


@requirement("llm.complete")
async def test_complete_answers_what_a_model_makes_of_a_prompt(world: World, upstream: Upstream) -> None:
    body = {"prompt": "The sea is", "model": "openai/sea-small", "options": {"max_tokens": 9}}
    answer = await world.admin.post("/api/v1/llm/complete", json=body)
    data = answer.json()["data"]
    assert (data["model"], data["content"], data["usage"]["output_tokens"]) == ("openai/sea-small", ANSWER, 7)
    sent = upstream.asked[0]["body"]
    assert sent["messages"] == [{"role": "user", "content": "The sea is"}]
    assert sent["max_tokens"] == 9


@requirement("llm.embed")
@pytest.mark.parametrize("model", ["openai/sea-vector", "gemini/sea-vector"])
async def test_embed_answers_the_vector_and_its_length(world: World, model: str) -> None:
    answer = await world.admin.post("/api/v1/llm/embed", json={"text": "salt", "model": model})
    data = answer.json()["data"]
    assert (data["model"], data["embedding"], data["dimensions"]) == (model, VECTOR, 3)


@requirement("llm.openai-embeddings")
async def test_more_texts_than_gemini_takes_at_once_are_sent_in_parts(world: World, upstream: Upstream) -> None:
    texts = [f"text {number}" for number in range(250)]
    answer = await world.admin.post("/v1/embeddings", json={"model": "gemini/sea-vector", "input": texts})
    sent = [[one["content"]["parts"][0]["text"] for one in call["body"]["requests"]] for call in upstream.asked]
    assert sent == [texts[:100], texts[100:200], texts[200:]]
    vectors = [row["embedding"] for row in answer.json()["data"]]
    assert vectors == [[value + number % 100 for value in VECTOR] for number in range(250)]


async def test_embed_with_a_provider_that_has_no_embeddings_is_the_callers_mistake(world: World) -> None:
    answer = await world.admin.post("/api/v1/llm/embed", json={"text": "salt", "model": "anthropic/sea"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("llm.stream")
@pytest.mark.parametrize("model", MODELS)
async def test_a_stream_has_a_line_per_piece_and_ends_with_done(world: World, model: str) -> None:
    answer = await world.admin.post("/api/v1/llm/stream", json=asking(model))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert pieces(answer.text) == [*({"delta": word} for word in WORDS), "[DONE]"]


@requirement("llm.reasoning-fallback")
@pytest.mark.parametrize("words", [[], [" ", "\n\n"]], ids=["nothing", "blanks"])
@pytest.mark.parametrize("model", MODELS)
async def test_reasoning_stands_in_for_an_answer_that_the_budget_left_no_room_for(
    world: World, upstream: Upstream, model: str, words: list[str]
) -> None:
    upstream.words, upstream.reasoning, upstream.finish = words, "Salt comes from rocks", "length"
    whole = (await chat(world, model)).json()["data"]["content"]
    assert whole.endswith("Salt comes from rocks")
    assert "token budget" in whole.removesuffix("Salt comes from rocks")
    streamed = await world.admin.post("/api/v1/llm/stream", json=asking(model))
    assert "".join(piece["delta"] for piece in pieces(streamed.text)[:-1]) == "".join(words) + whole


async def test_reasoning_is_no_answer_where_there_is_one_or_the_model_just_stopped(
    world: World, upstream: Upstream
) -> None:
    upstream.reasoning = "Salt comes from rocks"
    assert (await chat(world)).json()["data"]["content"] == ANSWER
    upstream.words = []
    assert (await chat(world)).json()["data"]["content"] == ""


async def test_tokens_that_the_provider_does_not_count_are_estimated_and_said_to_be(
    world: World, upstream: Upstream
) -> None:
    upstream.usage = False
    usage = (await chat(world)).json()["data"]["usage"]
    assert usage["estimated"] is True
    assert 5 <= usage["input_tokens"] <= 20
    assert 3 <= usage["output_tokens"] <= 10


@requirement("llm.chat", "llm.stream")
@pytest.mark.parametrize("thought", [[{"type": "text", "text": "Salt "}, {"type": "text", "text": "is."}], "Salt is."])
async def test_reasoning_in_the_content_of_mistrals_models_is_read(
    world: World, upstream: Upstream, thought: Any
) -> None:
    content = [{"type": "thinking", "thinking": thought, "closed": True}, {"type": "text", "text": "Rocks."}]
    body: dict[str, Any] = {"model": "openai/magistral", "messages": asking()["messages"]}
    choice = {"index": 0, "message": {"content": [*content, {"type": "thinking", "thinking": [7]}]}}
    upstream.mood = moods.raw(json.dumps({"choices": [{**choice, "finish_reason": "stop"}]}).encode())
    message = (await world.admin.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Salt is.", "Rocks.")
    chunks = [{"choices": [{"index": 0, "delta": {"content": [part]}}]} for part in content]
    chunks += [{"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}]
    upstream.mood = moods.raw(b"".join(map(moods.sse, chunks)) + b"data: [DONE]\n\n", "text/event-stream")
    streamed = pieces((await world.admin.post("/v1/chat/completions", json={**body, "stream": True})).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed[:-1]]
    for name, text in (("reasoning_content", "Salt is."), ("content", "Rocks.")):
        assert "".join(delta.get(name) or "" for delta in deltas) == text
