"""Fields and parts that only OpenAI's API has, to and from providers that have them too, read with its own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_contents import API_KEY, REDACTING, newest
from tests.domains.llm.test_conversations import ok
from tests.domains.llm.test_key_models import limited
from tests.domains.llm.test_openai_surface import ASKED, MODELS, TOOL, client_of
from tests.domains.llm.test_openai_surface import client as client
from tests.domains.llm.test_openai_surface import world as world
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement

SEA: Any = MODELS[0]
HEAD = {"id": "chatcmpl-up-1", "created": 1, "model": "sea-large", "system_fingerprint": "fp_1", "service_tier": "flex"}


def asking_with(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Which sea?"}, *parts]}]}


ONLY_OPENAI: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "content of type 'file'": asking_with({"type": "file", "file": {"file_id": "file-1"}}),
    "content of type 'input_audio'": asking_with(
        {"type": "input_audio", "input_audio": {"data": "A" * 64, "format": "wav"}}
    ),
}
"""What only OpenAI's format has, by its name in the error."""


def answers(upstream: Upstream, *choices: Any, **fields: Any) -> None:
    """Have the upstream answer with the choices, each as a whole and as the chunk of a stream."""

    async def answer(request: Any) -> Any:
        if not (await request.json()).get("stream"):
            return await moods.raw(json.dumps({**HEAD, **fields, "choices": choices}).encode())(request)
        chunks = [{**HEAD, "choices": [{"delta": one["message"], **one} for one in [choice]]} for choice in choices]
        body = b"".join(map(moods.sse, [*chunks, {**HEAD, "choices": [], **fields}]))
        return await moods.raw(body + b"data: [DONE]\n\n", "text/event-stream")(request)

    upstream.mood = answer


def choice(finish: str | None = "stop", logprobs: Any = None, **message: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **message}
    return {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}


async def chunks_of(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    options: Any = {"include_usage": True}
    asked: Any = {"model": SEA, "messages": ASKED, **fields}
    return [chunk async for chunk in await client.chat.completions.create(stream=True, stream_options=options, **asked)]


@requirement("llm.openai-compatible")
async def test_what_the_provider_says_of_a_completion_reaches_the_client(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    usage = {
        "prompt_tokens": 90,
        "completion_tokens": 60,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 70},
        "completion_tokens_details": {
            "reasoning_tokens": 4,
            "audio_tokens": 30,
            "accepted_prediction_tokens": 6,
            "rejected_prediction_tokens": 5,
        },
    }
    answers(upstream, choice(content="Salt."), usage=usage)
    whole = await client.chat.completions.create(model=SEA, messages=ASKED, service_tier="flex")
    chunks = await chunks_of(client, service_tier="flex")
    assert [(one.system_fingerprint, one.service_tier) for one in (whole, *chunks[1:])] == [("fp_1", "flex")] * 4
    for counted in (whole.usage, chunks[-1].usage):
        assert counted is not None
        assert counted.to_dict() == usage


@requirement("llm.openai-compatible")
@pytest.mark.parametrize("count", [1.5, "many", [1]])
async def test_no_reply_is_lost_for_a_malformed_count_of_sound(
    client: openai.AsyncOpenAI, upstream: Upstream, count: Any
) -> None:
    details = {"audio_tokens": count, "rejected_prediction_tokens": count}
    usage = {"prompt_tokens": 9, "completion_tokens": 6, "completion_tokens_details": details}
    answers(upstream, choice(content="Salt."), usage={**usage, "prompt_tokens_details": details})
    whole = await client.chat.completions.create(model=SEA, messages=ASKED)
    assert whole.choices[0].message.content == "Salt."
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (9, 6)


@requirement("llm.openai-compatible", "llm.budgets")
async def test_sound_counts_if_its_stream_ends_before_the_usage(world: World, upstream: Upstream) -> None:
    sound = {"id": "audio_1", "data": "A" * 64_000, "transcript": "Salt of the sea."}
    upstream.mood = moods.raw(moods.sse({"choices": [{"index": 0, "delta": {"audio": sound}}]}), "text/event-stream")
    body = {"model": SEA, "messages": ASKED, "stream": True}
    answer = await world.admin.post("/v1/chat/completions", json=body)
    assert "The stream was interrupted" in answer.text
    call = (await world.admin.get("/api/v1/llm/calls")).json()["calls"][0]
    assert call["output_tokens"] == 64 + 4


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.25, "bytes": list(text.encode()), "top_logprobs": []}


@requirement("llm.openai-compatible")
async def test_the_log_probabilities_of_tokens_reach_the_client(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    first, last = ({"content": [token(text)], "refusal": None} for text in ("Sa", "lt."))
    both = {"content": [*first["content"], *last["content"]], "refusal": None}
    asked: Any = {"model": SEA, "messages": ASKED, "logprobs": True, "top_logprobs": 3}
    answers(upstream, choice(logprobs=both, content="Salt."))
    whole = await client.chat.completions.create(**asked)
    # As for a call of a tool, a chunk may have nothing else.
    answers(upstream, choice(None, first, content="Sa"), choice(None, last), choice())
    chunks = await chunks_of(client, logprobs=True)
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.to_dict() == both
    streamed = [one.logprobs.to_dict() for chunk in chunks for one in chunk.choices if one.logprobs]
    assert streamed == [first, last]
    sent = [(call["body"]["logprobs"], call["body"].get("top_logprobs")) for call in upstream.asked]
    assert sent == [(True, 3), (True, None)]


@requirement("llm.openai-compatible", "llm.retries")
async def test_a_provider_of_another_format_is_not_called_for_what_only_openais_has(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(
        SERVICE_LLM_GROUPS="both=anthropic/sea-large|openai/sea-large",
        SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}",
    )
    await world.register("writer", capabilities=["write"])
    for name, fields in ONLY_OPENAI.items():
        for model in ("anthropic/sea-large", "agent:write"):
            for stream in (False, True):
                body = {"model": model, "messages": ASKED, "stream": stream, **fields}
                refused = await world.admin.post("/v1/chat/completions", json=body)
                assert refused.status_code == 400, (name, model, refused.text)
                assert f"cannot take {name}: only providers with OpenAI's API format can." in refused.text
        assert upstream.asked == []
        for model in ("both", "auto:both"):
            for _ in range(3):
                body = {"model": model, "messages": ASKED, **fields}
                answer = await world.admin.post("/v1/chat/completions", json=body)
                assert (answer.status_code, answer.json().get("model")) == (200, "openai/sea-large"), answer.text
        upstream.calls.clear()


@requirement("keys.models")
async def test_a_key_that_is_limited_to_models_may_send_them(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    async with await limited(world, "sea-large") as client:
        for fields in ONLY_OPENAI.values():
            answer = await client.post("/v1/chat/completions", json={"model": SEA, "messages": ASKED, **fields})
            assert answer.status_code == 200, answer.text
            sent = upstream.asked[-1]["body"]
            assert {name: sent[name] for name in fields} == fields


@requirement("llm.content-redacted")
@pytest.mark.parametrize("streamed", [False, True])
async def test_no_secret_is_kept_in_the_tokens_of_a_reply(make_llm: Gate, upstream: Upstream, streamed: bool) -> None:
    world = await make_llm(**REDACTING)
    tokens = [token(API_KEY[at : at + 3]) for at in range(0, len(API_KEY), 3)]
    answers(upstream, choice(logprobs={"content": tokens, "refusal": None}, content=f"use {API_KEY}"))
    body = {"model": SEA, "messages": ASKED, "logprobs": True, "stream": streamed}
    assert (await world.admin.post("/v1/chat/completions", json=body)).status_code == 200
    kept = json.dumps((await newest(world))["response"])
    assert "use " in kept
    assert API_KEY not in kept
    assert "bytes" not in kept


PDF, WORDS, SOUND = ("QUJD" * 50_000, "QUJD" * 1_000, "QUJD" * 5_000)
"""Contents in base64: 200,000, 4,000 and 20,000 characters."""
FILES: list[tuple[Any, int]] = [
    ({"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}, 2_002),
    ({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}, "cache_control": {"type": "ephemeral"}}, 2_012),
    ({"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{WORDS}"}}, 757),
    ({"type": "file", "file": {"file_id": "file-1"}}, 1_000),
    ({"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}, 20),
]
"""Parts with the tokens that they are estimated to have."""


@requirement("llm.images", "llm.usage-estimated")
@pytest.mark.parametrize(("part", "tokens"), FILES)
async def test_a_file_and_sound_reach_the_provider_and_count(
    make_llm: Gate, upstream: Upstream, part: Any, tokens: int
) -> None:
    world = await make_llm(**REDACTING)
    upstream.usage = False
    key = world.admin.headers["X-API-Key"]
    client = client_of(world.admin)
    world.admin.headers["X-API-Key"] = key
    fields: Any = asking_with(part)
    for stream in (False, True):
        answer: Any = await client.chat.completions.create(model=SEA, stream=stream, **fields)
        _ = [chunk async for chunk in answer] if stream else None
        assert upstream.asked[-1]["body"]["messages"] == fields["messages"]
        call = await newest(world)
        assert (call["input_tokens"], call["estimated"]) == (3 + 3 + tokens, True)
        assert "QUJD" * 20 not in call["request"]


@requirement("llm.content-redacted")
async def test_the_sound_of_a_reply_is_not_kept(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(**REDACTING)
    answers(upstream, choice(audio={"id": "audio_1", "data": "QUJD" * 20, "expires_at": 1, "transcript": "Salt."}))
    assert (await world.admin.post("/v1/chat/completions", json={"model": SEA, "messages": ASKED})).status_code == 200
    kept = (await newest(world))["response"]
    assert "[audio, 60 bytes, SHA-256 " in kept
    assert "Salt." in kept
    assert "QUJD" not in kept


@requirement("llm.openai-errors")
@pytest.mark.parametrize(
    "field", [{"file": {"file_id": 1}}, {"file": None}, {"input_audio": {"data": "AAAA"}}, {"x": {}}]
)
async def test_a_file_of_another_type_than_openais_is_400(world: World, upstream: Upstream, field: Any) -> None:
    fields = asking_with({"type": next(iter(field)), **field})
    refused = await world.admin.post("/v1/chat/completions", json={"model": SEA, **fields})
    assert refused.status_code == 400, refused.text
    assert upstream.asked == []


@requirement("llm.tool-calls")
@pytest.mark.parametrize("model", MODELS)
async def test_only_the_allowed_tools_are_offered(client: openai.AsyncOpenAI, upstream: Upstream, model: str) -> None:
    names = [{"type": "function", "function": {"name": name}} for name in ("weather", "tide")]
    tools: Any = [TOOL, {"type": "function", "function": {"name": "tide"}}]
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names[:1]}}
    await client.chat.completions.create(model=model, messages=ASKED, tools=tools, tool_choice=allowed)
    sent = upstream.asked[-1]["body"]
    assert "weather" in json.dumps(sent)
    assert "tide" not in json.dumps(sent)
    assert model != SEA or sent["tool_choice"] == "required"
    allowed["allowed_tools"]["tools"] = names
    with pytest.raises(openai.BadRequestError, match="the function 'tide' is not in tools"):
        await client.chat.completions.create(model=model, messages=ASKED, tools=tools[:1], tool_choice=allowed)


@requirement("llm.sessions")
async def test_a_session_takes_log_probabilities_and_no_files(world: World, upstream: Upstream) -> None:
    await ok(world, "POST", "/sessions", {"id": "s"})
    for fields in ONLY_OPENAI.values():
        body = {"model": SEA, "messages": ASKED, "conversation": "s", **fields}
        answer = await world.admin.post("/v1/chat/completions", json=body)
        assert answer.status_code == (200 if "logprobs" in fields else 400), answer.text
    assert [call["body"].get("logprobs") for call in upstream.asked] == [True]
    items = (await world.admin.get("/api/v1/sessions/s/items")).json()["items"]
    assert "logprobs" not in json.dumps(items)


CACHED: Any = {"cache_control": {"type": "ephemeral"}}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


@requirement("llm.openai-compatible")
async def test_marks_for_the_cache_reach_a_provider_of_anthropics_format(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: Any = [
        {"role": "system", "content": [text("Be brief."), text("Read this.", **CACHED)]},
        {"role": "system", "content": "And this."},
        {"role": "user", "content": [text("Why?", **CACHED), text("Now.")]},
        {"role": "assistant", "content": "I ask.", "tool_calls": [call], **CACHED},
        {"role": "tool", "tool_call_id": "call_1", "content": [text("Salt."), text("Much.", **CACHED)]},
        {"role": "user", "content": "Well?", "cache_control": "ephemeral"},
    ]
    tool: Any = {**TOOL, **CACHED}
    await client.chat.completions.create(
        model="anthropic/sea-large", messages=messages, tools=[tool], extra_body=CACHED
    )
    sent = upstream.asked[0]["body"]
    assert sent["system"] == [text("Be brief."), text("Read this.", **CACHED), text("And this.")]
    use = {"type": "tool_use", "id": "call_1", "name": "f", "input": {}, **CACHED}
    parts = [text("Salt."), text("Much.")]
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": parts, **CACHED}
    assert [message["content"] for message in sent["messages"]] == [
        [text("Why?", **CACHED), text("Now.")],
        [text("I ask."), use],
        [result, text("Well?")],
    ]
    assert sent["tools"][0]["cache_control"] == sent["cache_control"] == CACHED["cache_control"]


@requirement("llm.openai-compatible", "llm.usage-estimated")
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_what_is_written_to_a_cache_is_counted_and_told(
    client: openai.AsyncOpenAI, world: World, upstream: Upstream, provider: str
) -> None:
    if provider == "openai":
        details = {"cached_tokens": 9000, "cache_write_tokens": 5000}
        answers(
            upstream,
            choice(content="x"),
            usage={"prompt_tokens": 14_100, "completion_tokens": 7, "prompt_tokens_details": details},
        )
    else:
        counts = {"input_tokens": 100, "cache_read_input_tokens": 9000, "cache_creation_input_tokens": 5000}
        message = {"id": "m", "content": [], "stop_reason": "end_turn", "usage": {**counts, "output_tokens": 7}}
        upstream.mood = moods.raw(json.dumps(message).encode())
    model: Any = "anthropic/claude-haiku-4-5" if provider == "anthropic" else SEA
    whole = await client.chat.completions.create(model=model, messages=ASKED)
    assert whole.usage is not None
    assert whole.usage.to_dict()["prompt_tokens_details"] == {
        "cached_tokens": 9000,
        "audio_tokens": 0,
        "cache_write_tokens": 5000,
    }
    if provider == "anthropic":
        report = (await world.admin.get("/api/v1/llm/usage", headers={"X-API-Key": client.api_key})).json()["data"]
        # 100 at the price of input, 9,000 at a tenth of it, 5,000 at 1.25 of it, and the output at five times.
        assert report["estimatedCost"] == pytest.approx((100 + 900 + 6250 + 35) / 1e6)
