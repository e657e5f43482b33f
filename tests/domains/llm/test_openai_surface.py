"""OpenAI's official client is the judge of the routes under /v1, whatever format the provider behind them speaks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from pydantic import BaseModel

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers.backends import LocalBackend
from stentor.domains.llm.providers.registry import LOCAL_PROVIDER
from stentor.domains.llm.providers.transport import CallEvidence
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import KEY, Gate, asking
from tests.domains.llm.test_chat import pieces
from tests.domains.llm.upstream import ANSWER, SCHEMA, VECTOR, Upstream
from tests.requirements import requirement

MODELS = ["openai/sea-large", "anthropic/sea-large", "gemini/sea-large"]
ASKED: Any = [{"role": "user", "content": "Why is the sea salty?"}]
MANY = [1] * 10_000
"""Items of a type that no list has."""
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}
LIMIT_REFUSED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
TOOLS_REFUSED = (
    "Function tools with reasoning_effort are not supported for sea-large in /v1/chat/completions. To use function "
    "tools, use /v1/responses or set reasoning_effort to 'none'."
)
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
async def world(make_llm: Gate, upstream: Upstream) -> World:
    made = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    body = {"provider": "gemini", "apiKey": "gem-key-1", "baseUrl": upstream.url}
    assert (await made.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
    return made


def client_of(http: httpx.AsyncClient, key: str = "admin-key-7c1e") -> openai.AsyncOpenAI:
    http.headers.pop("X-API-Key", None)
    over: Any = http  # its own type of client is another package's, with the same methods
    return openai.AsyncOpenAI(api_key=key, base_url=str(http.base_url.join("/v1")), http_client=over, max_retries=0)


@pytest.fixture
async def client(world: World) -> openai.AsyncOpenAI:
    return client_of(world.clients["ADMIN"])


@requirement("llm.openai-compatible")
@pytest.mark.parametrize("model", MODELS)
async def test_a_chat_completion_has_all_that_the_client_reads(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.chat.completions.with_raw_response.create(model=model, messages=ASKED)
    parsed = answer.parse()
    assert parsed.choices[0].message.content == ANSWER
    assert parsed.choices[0].finish_reason == "stop"
    assert parsed.model == model
    assert parsed.usage is not None
    assert (parsed.usage.prompt_tokens, parsed.usage.completion_tokens, parsed.usage.total_tokens) == (11, 7, 18)
    choice = json.loads(answer.content)["choices"][0]
    assert choice["logprobs"] is None
    assert choice["message"]["refusal"] is None
    assert choice["message"]["annotations"] == []
    assert "system_fingerprint" not in json.loads(answer.content)


@requirement("llm.openai-compatible")
@pytest.mark.parametrize("model", MODELS)
async def test_a_streamed_chat_completion_is_read_to_its_end_with_usage(client: openai.AsyncOpenAI, model: str) -> None:
    options: Any = {"include_usage": True}
    stream = await client.chat.completions.create(model=model, messages=ASKED, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in said) == ANSWER
    assert said[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in said if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 18
    assert all(chunk.to_dict()["usage"] is None for chunk in chunks[:-1])


@requirement("llm.tool-calls")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_is_offered_called_and_its_result_sent_back(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str, streamed: bool
) -> None:
    upstream.tool = {"name": "weather", "args": {"city": "Łódź"}}
    call = await (_streamed_call if streamed else _whole_call)(client, model)
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Łódź"})
    upstream.tool = None
    function = {"id": call["id"], "type": "function", "function": {"name": "weather", "arguments": call["arguments"]}}
    if call.get("extra_content"):
        function["extra_content"] = call["extra_content"]
    messages: Any = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [function]},
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
    ]
    answer = await client.chat.completions.create(model=model, messages=messages, tools=[TOOL])
    assert answer.choices[0].message.content == ANSWER
    sent = json.dumps(upstream.asked[-1]["body"], ensure_ascii=False)
    assert "sunny" in sent
    assert "Łódź" in sent
    assert ("thoughtSignature" in sent) is model.startswith("gemini")


def only_without_reasoning(upstream: Upstream, accepts_none: bool = True) -> moods.Mood:
    """As OpenAI's gpt-5.6, or as gpt-6-astra, which has no effort "none": no functions beside reasoning."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        effort = body.get("reasoning_effort")
        if effort == "none" and accepts_none:
            return await upstream.answer(request, body)
        told = TOOLS_REFUSED if effort != "none" else "'reasoning_effort' does not support 'none' with this model."
        return await moods.status(400, {"error": {"message": told, "param": "reasoning_effort"}})(request)

    return answer


@requirement("llm.tool-calls", "llm.retries")
@pytest.mark.parametrize("streamed", [False, True])
async def test_functions_that_a_model_refuses_beside_its_default_reasoning_are_sent_again_without_reasoning(
    client: openai.AsyncOpenAI, upstream: Upstream, streamed: bool
) -> None:
    upstream.tool = {"name": "weather", "args": {"city": "Łódź"}}
    upstream.mood = only_without_reasoning(upstream)
    call = await (_streamed_call if streamed else _whole_call)(client, MODELS[0])
    assert call["name"] == "weather"
    assert [asked["body"].get("reasoning_effort") for asked in upstream.asked] == [None, "none"]


@requirement("llm.retries")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_limit_that_a_model_accepts_only_by_its_newer_name_is_sent_again_by_that(
    world: World, upstream: Upstream, streamed: bool
) -> None:
    """As gpt-5.6 behind a proxy, whose address does not tell that the model is OpenAI's."""
    refuses_tools = only_without_reasoning(upstream)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "max_tokens" in json.loads(await request.read()):
            return await moods.status(400, {"error": {"message": LIMIT_REFUSED}})(request)
        return await refuses_tools(request)

    upstream.mood = answer
    body = asking(max_tokens=9, tools=[TOOL], stream=streamed)
    assert (await world.admin.post("/v1/chat/completions", json=body)).status_code == 200
    names = ("max_tokens", "max_completion_tokens", "reasoning_effort")
    sent = [tuple(asked["body"].get(name) for name in names) for asked in upstream.asked]
    assert sent == [(9, None, None), (None, 9, None), (None, 9, "none")]


@requirement("llm.retries")
@pytest.mark.parametrize("streamed", [False, True])
async def test_sampling_that_a_model_no_longer_accepts_is_left_out_when_it_is_sent_again(
    world: World, upstream: Upstream, streamed: bool
) -> None:
    """As Claude Opus 4.7."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        for name in {"temperature", "top_p"} & set(body):
            told = {"type": "invalid_request_error", "message": f"`{name}` is deprecated for this model."}
            return await moods.status(400, {"type": "error", "error": told})(request)
        return await upstream.answer(request, body)

    upstream.mood = answer
    for fields in ({"temperature": 0.1}, {"top_p": 0.9}):
        body = asking(MODELS[1], **fields, stream=streamed)
        assert (await world.admin.post("/v1/chat/completions", json=body)).status_code == 200
        assert [set(fields) & set(asked["body"]) for asked in upstream.asked[-2:]] == [set(fields), set()]


@requirement("llm.retries", "llm.tool-calls")
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (MODELS[0], "json mode cannot be combined with tool/function calling"),
        (MODELS[2], "Function calling with a response mime type: 'application/json' is unsupported"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_schema_that_a_model_refuses_beside_functions_is_sent_again_as_an_instruction(
    world: World, upstream: Upstream, model: str, told: str, streamed: bool
) -> None:
    """As Groq, and Gemini before 3."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if "response_format" in body or "generationConfig" in body:
            return await moods.status(400, {"error": {"message": told}})(request)
        return await upstream.answer(request, body)

    upstream.mood = answer
    shape = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object", "title": "Łódź"}}}
    body = asking(model, response_format=shape, tools=[TOOL], stream=streamed)
    assert (await world.admin.post("/v1/chat/completions", json=body)).status_code == 200
    sent = json.dumps([asked["body"] for asked in upstream.asked], ensure_ascii=False)
    assert (len(upstream.asked), sent.count(r"JSON schema: {\"type\":\"object\",\"title\":\"Łódź\"}")) == (2, 1)


@requirement("llm.retries")
async def test_functions_beside_an_effort_that_the_caller_names_are_refused_as_the_provider_does(
    world: World, upstream: Upstream
) -> None:
    upstream.mood = only_without_reasoning(upstream)
    error = await refused(world, "chat/completions", tools=[TOOL], reasoning_effort="high")
    assert "set reasoning_effort to 'none'" in error["message"]
    assert len(upstream.asked) == 1


@requirement("llm.retries")
async def test_a_model_without_an_effort_none_is_refused_with_its_first_reason(
    world: World, upstream: Upstream
) -> None:
    upstream.mood = only_without_reasoning(upstream, accepts_none=False)
    error = await refused(world, "chat/completions", tools=[TOOL])
    assert "Function tools with reasoning_effort" in error["message"]


@requirement("llm.tool-calls")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("arguments", [r'{"a": "\ud800"}', '{"a": NaN}', '{"a": 1e999}', "{"])
async def test_a_call_whose_arguments_are_no_json_is_sent_with_them_as_text(
    world: World, upstream: Upstream, model: str, arguments: str
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    messages = [*ASKED, {"role": "assistant", "tool_calls": [call]}, result]
    body = body_for("chat/completions", model=model, messages=messages)
    answer = await world.admin.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert json.dumps(arguments)[1:-1] in json.dumps(upstream.asked[-1]["body"])


@requirement("llm.tool-calls")
@pytest.mark.parametrize("model", MODELS)
async def test_a_call_without_arguments_has_an_empty_object_of_them(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str
) -> None:
    upstream.tool = {"name": "weather", "args": {}}
    for call in (await _whole_call(client, model), await _streamed_call(client, model)):
        assert (call["name"], json.loads(call["arguments"])) == ("weather", {})


async def _whole_call(client: openai.AsyncOpenAI, model: str) -> dict[str, Any]:
    answer = await client.chat.completions.create(model=model, messages=ASKED, tools=[TOOL], tool_choice="auto")
    assert answer.choices[0].finish_reason == "tool_calls"
    found = answer.choices[0].message.tool_calls
    assert found is not None
    whole = found[0].model_dump()
    return {"id": whole["id"], "extra_content": whole.get("extra_content"), **whole["function"]}


async def _streamed_call(client: openai.AsyncOpenAI, model: str) -> dict[str, Any]:
    stream = await client.chat.completions.create(model=model, messages=ASKED, tools=[TOOL], stream=True)
    call: dict[str, Any] = {"arguments": ""}
    finish = None
    async for chunk in stream:
        finish = chunk.choices[0].finish_reason or finish
        for part in chunk.choices[0].delta.tool_calls or []:
            known = part.model_dump()
            call["id"] = call.get("id") or known["id"]
            call["name"] = call.get("name") or known["function"]["name"]
            call["arguments"] += known["function"]["arguments"]
            call["extra_content"] = known.get("extra_content") or call.get("extra_content")
    assert finish == "tool_calls"
    return call


@requirement("llm.images")
@pytest.mark.parametrize("model", MODELS)
async def test_an_image_reaches_the_provider_as_it_came(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str
) -> None:
    parts: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    await client.chat.completions.create(model=model, messages=[{"role": "user", "content": parts}])
    sent = json.dumps(upstream.asked[0]["body"])
    assert "iVBORw0KGgo=" in sent
    assert "image/png" in sent
    assert "What is it?" in sent


@requirement("llm.openai-compatible")
async def test_fields_that_the_gateway_does_not_know_reach_a_provider_of_the_same_format(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    marked = {"type": "text", "text": "Why?", "cache_control": {"type": "ephemeral"}}
    picture = {
        "type": "image_url",
        "image_url": {"url": "https://x.test/a.png"},
        "cache_control": {"type": "ephemeral"},
    }
    messages: Any = [
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Salt."}, marked, picture]},
        # As its client sends a reply back.
        {"role": "assistant", "content": "Hm.", "annotations": [], "audio": None, "reasoning_details": [{"a": 1}]},
        {"role": "user", "content": "Well?"},
    ]
    tool: Any = {**TOOL, "cache_control": {"type": "ephemeral"}}
    new: Any = {"modalities": ["text"], "prompt_cache_retention": "24h", "brand_new": {"x": [0]}, "models": ["a", "b"]}
    never = {"apiKey": "mine", "api_key": "mine", "baseUrl": "http://evil.test", "api_base": "http://evil.test"}
    for model in MODELS:
        await client.chat.completions.create(
            model=model, messages=messages, tools=[tool], extra_body={**new, **never, "logprobs": False, "n": 1}
        )
    one, *others = (call["body"] for call in upstream.asked)
    assert ["cache_control" in json.dumps(body) for body in others] == [True, False]
    assert one == {"model": "sea-large", "messages": one["messages"], "tools": [tool], **new}
    assert one["messages"] == [
        messages[0],
        {"role": "assistant", "content": "Hm.", "reasoning_details": [{"a": 1}]},
        messages[2],
    ]
    assert not [field for body in others for field in (*new, "ann") if field in json.dumps(body)]


@requirement("llm.openai-compatible")
async def test_a_mark_for_the_cache_inside_a_function_reaches_anthropic(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    tool: Any = {**TOOL, "function": {**TOOL["function"], "cache_control": mark}}
    for model in MODELS:
        await client.chat.completions.create(model=model, messages=ASKED, tools=[tool])
    openais, anthropics, geminis = (call["body"]["tools"] for call in upstream.asked)
    assert anthropics[0]["cache_control"] == mark
    assert openais == [TOOL]
    assert "cache_control" not in json.dumps(geminis)


@requirement("llm.openai-compatible")
@pytest.mark.parametrize("streamed", [False, True])
async def test_other_parts_of_a_message_of_the_same_format_reach_the_client(
    world: World, upstream: Upstream, streamed: bool
) -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "https://x.test", "title": "x"}}
    parts = {"annotations": [cited], "images": [{"image_url": {"url": "data:,"}}], "audio": {"id": "a"}}
    message = {"role": "assistant", "content": "Salt.", "reasoning_details": [{"text": "Hm."}], **parts}
    kind = "delta" if streamed else "message"
    # In a stream each part has a chunk of its own, as from OpenAI and OpenRouter.
    shown = [{name: value} for name, value in message.items()] if streamed else [message]
    bodies: Any = [{"choices": [{"index": 0, kind: part, "finish_reason": None}]} for part in shown]
    bodies[-1]["choices"][0]["finish_reason"] = "stop"
    content = b"".join(map(moods.sse, bodies)) + b"data: [DONE]\n\n" if streamed else json.dumps(*bodies).encode()
    upstream.mood = moods.raw(content, "text/event-stream" if streamed else "application/json")
    asked = {"model": MODELS[0], "messages": ASKED, "stream": streamed}
    answer = await world.admin.post("/v1/chat/completions", json=asked)
    wire = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    whole = [one["choices"][0][kind] for one in wire or [answer.json()]]
    for name, value in message.items():
        assert [part[name] for part in whole if part.get(name)] == [value], name


async def test_a_named_tool_and_json_schema_and_parameters_reach_the_provider(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for model in MODELS:
        await client.chat.completions.create(
            model=model,
            messages=[{"role": "developer", "content": "Be brief."}, *ASKED],
            tools=[TOOL],
            tool_choice=choice,
            response_format=shape,
            temperature=0.1,
            max_completion_tokens=77,
            stop=["END"],
            presence_penalty=0.5,
            extra_body={"apiKey": "mine", "base_url": "http://evil.test"},
        )
    one, two, three = (call["body"] for call in upstream.asked)
    assert (one["max_tokens"], one["stop"], one["presence_penalty"]) == (77, ["END"], 0.5)
    assert (one["tool_choice"], one["response_format"]) == (choice, shape)
    assert (two["max_tokens"], two["stop_sequences"], two["system"]) == (77, ["END"], "Be brief.")
    assert two["tool_choice"] == {"type": "tool", "name": "weather"}
    closed = SCHEMA | {"additionalProperties": False}
    assert two["output_config"]["format"] == {"type": "json_schema", "schema": closed}
    assert three["generationConfig"]["maxOutputTokens"] == 77
    assert three["generationConfig"]["responseJsonSchema"] == SCHEMA
    assert three["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == ["weather"]
    assert "mine" not in json.dumps(upstream.asked)
    assert "evil" not in json.dumps(upstream.asked)


async def test_a_text_completion_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODELS[0], prompt="The sea is")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (ANSWER, "stop")
    stream = await client.completions.create(model=MODELS[0], prompt="The sea is", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == ANSWER
    options: Any = {"include_usage": True}
    counted = await client.completions.create(model=MODELS[0], prompt="x", stream=True, stream_options=options)
    *before, last = [chunk.to_dict()["usage"] async for chunk in counted]
    assert (set(before), bool(last)) == ({None}, True)


@requirement("llm.openai-embeddings")
async def test_embeddings_come_in_the_order_of_the_texts_however_they_are_packed(client: openai.AsyncOpenAI) -> None:
    packed = await client.embeddings.create(model="openai/sea-vector", input=["a", "b"])
    assert [row.embedding for row in packed.data] == [VECTOR, [v + 1 for v in VECTOR]]
    plain = await client.embeddings.create(model="gemini/sea-vector", input="a", encoding_format="float")
    assert plain.data[0].embedding == VECTOR


@requirement("llm.openai-embeddings")
@pytest.mark.parametrize("given", [[1, 2, 3], [[1, 2, 3], [4]]], ids=["one text", "two texts"])
async def test_texts_that_come_as_their_tokens_reach_a_provider_that_reads_them(
    client: openai.AsyncOpenAI, upstream: Upstream, given: Any
) -> None:
    upstream.usage = False
    answer = await client.embeddings.create(model="openai/sea-vector", input=given)
    texts = given if isinstance(given[0], list) else [given]
    assert upstream.asked[0]["body"]["input"] == texts
    assert [row.embedding for row in answer.data] == [[v + at for v in VECTOR] for at in range(len(texts))]
    assert answer.usage.prompt_tokens == sum(map(len, texts))


@requirement("llm.openai-embeddings")
async def test_tokens_are_400_where_only_texts_are_read(world: World, upstream: Upstream) -> None:
    for given in ([1, 2, 3], [[1, 2, 3], [4]]):
        error = await refused(world, "embeddings", model="gemini/sea-vector", input=given)
        assert (error["param"], "text only" in error["message"]) == ("input", True)
    assert upstream.asked == []


@requirement("llm.openai-embeddings")
async def test_the_baseline_on_this_machine_reads_texts_only() -> None:
    async def said(given: Any) -> Any:
        return [VECTOR for _ in given]

    target, local = ModelTarget(LOCAL_PROVIDER, "embedding"), LocalBackend(said, said)
    assert (await local.embed(target, ["salt"], None, CallEvidence())).vectors == [VECTOR]
    with pytest.raises(InvalidRequest, match="text only"):
        await local.embed(target, [(1, 2, 3)], None, CallEvidence())


@requirement("llm.openai-errors")
@pytest.mark.parametrize("given", [["a", [1]], [1, "a"], [[1], []], [[-1]], [True], [1.5], ["a"] * 2049, "", [""]])
async def test_what_is_neither_texts_nor_tokens_is_400(world: World, upstream: Upstream, given: Any) -> None:
    assert (await refused(world, "embeddings", input=given))["param"].partition(".")[0] == "input"
    assert upstream.asked == []


async def test_models_are_listed_and_found_by_their_name(client: openai.AsyncOpenAI) -> None:
    names = {model.id async for model in client.models.list()}
    assert names == {f"{p}/{m}" for p in ("openai", "anthropic", "gemini") for m in ("sea-large", "sea-small")}
    assert (await client.models.retrieve("openai/sea-large")).owned_by == "openai"
    bare = await client.models.retrieve("sea-large")
    assert (bare.id, bare.owned_by) == ("sea-large", "openai")
    with pytest.raises(openai.NotFoundError, match="river"):
        await client.models.retrieve("openai/river")


@requirement("llm.openai-responses")
@pytest.mark.parametrize("model", MODELS)
async def test_a_response_of_text_whole_and_streamed(client: openai.AsyncOpenAI, model: str) -> None:
    whole = await client.responses.create(model=model, input="Why?", instructions="Be brief.")
    assert whole.output_text == ANSWER
    assert whole.status == "completed"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 18
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}]
    async with client.responses.stream(model=model, input=items) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == ANSWER


class Place(BaseModel):
    city: str


@requirement("llm.openai-responses")
@pytest.mark.parametrize("model", MODELS)
async def test_a_response_is_asked_for_in_the_form_that_the_client_reads(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str
) -> None:
    upstream.words = ['{"city": ', '"Łódź"}']
    whole = await client.responses.parse(model=model, input="Where?", text_format=Place)
    assert whole.output_parsed == Place(city="Łódź")
    async with client.responses.stream(model=model, input="Where?", text_format=Place) as stream:
        assert (await stream.get_final_response()).output_parsed == Place(city="Łódź")
    for call in upstream.asked:
        assert '"city"' in json.dumps(call["body"])


@requirement("llm.openai-compatible")
async def test_a_refusal_is_no_content_that_the_client_would_parse(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    upstream.refuses, upstream.words = True, ["I can't ", "say."]
    model = MODELS[0]
    whole = await client.chat.completions.parse(model=model, messages=ASKED, response_format=Place)
    async with client.chat.completions.stream(model=model, messages=ASKED, response_format=Place) as stream:
        streamed = await stream.get_final_completion()
    for message in (whole.choices[0].message, streamed.choices[0].message):
        assert (message.refusal, message.content or None, message.parsed) == ("I can't say.", None, None)
    response = await client.responses.parse(model=model, input="Where?", text_format=Place)
    async with client.responses.stream(model=model, input="Where?", text_format=Place) as events:
        kinds = [event.type async for event in events]
        final = await events.get_final_response()
    assert {"response.refusal.delta", "response.refusal.done"} <= set(kinds)
    assert "response.output_text.delta" not in kinds
    for answer in (response, final):
        (item,) = answer.output
        assert item.to_dict()["content"] == [{"type": "refusal", "refusal": "I can't say."}]
    # The client sends it back as it came.
    messages: Any = [*ASKED, whole.choices[0].message.to_dict(), *ASKED]
    await client.chat.completions.create(model=MODELS[1], messages=messages)
    # Other programs keep an empty text beside it.
    messages[1]["content"] = ""
    await client.chat.completions.create(model=MODELS[0], messages=messages)
    assert upstream.asked[-1]["body"]["messages"][1]["content"] == "I can't say."
    assert "I can't say." in json.dumps(upstream.asked[-1]["body"])


@requirement("llm.openai-errors")
@pytest.mark.parametrize(
    ("field", "given", "accepted"),
    [
        ("logprobs", 2, False),
        ("top_logprobs", 21, 0),
        ("functions", [{"name": "f"}], []),
        ("function_call", "auto", None),
        ("function_call", "auto", "none"),
    ],
)
async def test_what_a_reply_would_not_contain_is_400(
    world: World, upstream: Upstream, field: str, given: Any, accepted: Any
) -> None:
    assert (await refused(world, "chat/completions", **{field: given}))["param"] == field
    assert upstream.asked == []
    body = {"model": MODELS[0], "messages": ASKED, field: accepted}
    assert (await world.admin.post("/v1/chat/completions", json=body)).status_code == 200


@requirement("llm.openai-responses")
async def test_the_format_of_a_response_is_chats_response_format_and_is_told_again(
    world: World, upstream: Upstream
) -> None:
    schema = {"name": "place", "description": "Where.", "schema": {**SCHEMA, "default": None}, "strict": True}
    formats: list[tuple[Any, Any]] = [
        ({"type": "json_schema", **schema}, {"type": "json_schema", "json_schema": schema}),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "text"}, None),
        (None, None),
    ]
    for given, sent in formats:
        for stream in (False, True):
            body = body_for("responses", text={"format": given}, stream=stream)
            answer = await world.admin.post("/v1/responses", json=body)
            assert upstream.asked[-1]["body"].get("response_format") == sent
            told = pieces(answer.text)[-1]["response"] if stream else answer.json()
            assert told["text"] == {"format": given or {"type": "text"}}


@requirement("llm.openai-errors")
async def test_what_would_change_an_answer_and_is_not_supported_is_400(world: World, upstream: Upstream) -> None:
    wrong: dict[str, list[Any]] = {"echo": [True], "suffix": [" and it stays."], "best_of": [2, 0], "n": [2]}
    for param, values in wrong.items():
        for value in values:
            assert (await refused(world, "completions", **{param: value}))["param"] == param
    formats: dict[str, Any] = {
        "text.format.name": {"type": "json_schema", "schema": SCHEMA},
        "text.format.schema": {"type": "json_schema", "name": "x", "json_schema": {"schema": SCHEMA}},
        "text.format.type": {"type": "yaml"},
    }
    for param, value in formats.items():
        assert (await refused(world, "responses", text={"format": value}))["param"] == param
    assert upstream.asked == []
    harmless = body_for("completions", echo=False, suffix="", best_of=1, n=1)
    assert (await world.admin.post("/v1/completions", json=harmless)).status_code == 200


async def test_a_response_that_was_cut_says_so(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.finish = "length"
    answer = await client.responses.create(model=MODELS[0], input="Why?", max_output_tokens=16)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@requirement("llm.openai-compatible", "llm.openai-errors")
async def test_bad_input_is_400_with_the_field_in_openais_form(client: openai.AsyncOpenAI) -> None:
    bad: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "sound"}]}]},
        {"temperature": 9},
        {"max_tokens": 0},
        {"n": 2},
        {"tools": [{"type": "x"}]},
    ]
    for fields in bad:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**dict[str, Any](model=MODELS[0], messages=ASKED) | fields)
        body: Any = caught.value.response.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODELS[0], messages=ASKED, temperature=9)
    assert caught.value.param == "temperature"


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    """The least that a route of /v1 takes, with these fields."""
    least = {"chat/completions": {"messages": ASKED}, "completions": {"prompt": "The sea is"}}.get(path, {"input": "x"})
    return {"model": MODELS[0], **least, **fields}


@requirement("llm.openai-errors")
@pytest.mark.parametrize(
    ("told", "code", "param"),
    [
        ({"code": "context_length_exceeded", "param": "messages"}, "context_length_exceeded", "messages"),
        ({"code": "invalid_value", "param": "tools[0].function.name"}, "invalid_value", "tools[0].function.name"),
        ({"code": None, "param": None}, "invalid_request", None),
        ({"code": 400, "param": ["messages"]}, "invalid_request", None),
        ({"code": f"see {KEY}", "param": KEY}, "invalid_request", None),
    ],
)
async def test_a_request_that_the_provider_refuses_has_its_code_and_param(
    world: World, upstream: Upstream, told: dict[str, Any], code: str, param: str | None
) -> None:
    upstream.mood = moods.status(400, {"error": {"message": "Too long.", **told}})
    for path, more in (("chat/completions", {}), ("chat/completions", {"stream": True}), ("responses", {})):
        error = await refused(world, path, **more)
        assert (error["code"], error["param"]) == (code, param)


@requirement("llm.openai-errors")
@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ("The model `sea-9` does not exist or you do not have access to it.", 404, "model_not_found"),
        ("model: sea-9", 404, "model_not_found"),
        ("Not Found", 502, "provider_error"),
    ],
)
async def test_a_model_that_the_provider_does_not_know_is_404(
    world: World, upstream: Upstream, said: str, status: int, code: str
) -> None:
    upstream.mood = moods.status(404, {"error": {"message": said}})
    for fields in ({}, {"stream": True}):
        answer = await world.admin.post("/v1/chat/completions", json=body_for("chat/completions", **fields))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


async def refused(world: World, path: str, **fields: Any) -> dict[str, Any]:
    """The error of a request that is 400."""
    answer = await world.admin.post(f"/v1/{path}", json=body_for(path, **fields))
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


@requirement("llm.openai-errors")
async def test_a_value_of_another_type_is_400_and_not_read_as_if_it_were_right(
    world: World, upstream: Upstream
) -> None:
    wrong: dict[str, list[Any]] = {
        "stream": ["yes", 1],
        "max_tokens": ["5", True, 5.5],
        "temperature": ["0.5", True],
        "top_p": [True],
        "seed": ["7", 2**63],
        "presence_penalty": ["1", 2.1],
        "frequency_penalty": [True, -2.1],
        "logit_bias": [[1]],
        "user": [5],
        "metadata": ["x"],
        "parallel_tool_calls": ["no"],
        "reasoning_effort": [5],
        "service_tier": [5],
        "store": ["no"],
    }
    for field, values in wrong.items():
        for value in values:
            assert (await refused(world, "chat/completions", **{field: value}))["param"] == field
    for path, field in (
        ("completions", "max_tokens"),
        ("completions", "presence_penalty"),
        ("responses", "presence_penalty"),
        ("responses", "max_output_tokens"),
        ("embeddings", "dimensions"),
    ):
        assert (await refused(world, path, **{field: "5"}))["param"] == field
    assert (await refused(world, "chat/completions", logit_bias={"5": 101}))["param"] == "logit_bias.5"
    assert upstream.asked == []
    whole = body_for("chat/completions", temperature=1, top_p=1, seed=7, stream=False)
    whole |= {"presence_penalty": -2, "frequency_penalty": 0, "logit_bias": {"5": -100}, "user": "ann", "stop": []}
    whole |= {"metadata": {"tags": ["x"]}, "parallel_tool_calls": None, "n": 1, "reasoning_effort": "low"}
    assert (await world.admin.post("/v1/chat/completions", json=whole)).status_code == 200


@requirement("llm.openai-errors")
@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
async def test_a_message_without_content_is_400_unless_it_is_the_models_own(world: World, role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}):
        error = await refused(world, "chat/completions", messages=[*ASKED, {**message, "tool_call_id": "call_1"}])
        assert error["param"] == "messages.1.content"


@requirement("llm.openai-errors")
async def test_the_result_of_a_call_says_of_which_one(world: World) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    called = [*ASKED, {"role": "assistant", "tool_calls": [call]}]
    error = await refused(world, "chat/completions", messages=[*called, {"role": "tool", "content": "sunny"}])
    assert error["param"] == "messages.2.tool_call_id"
    answered = [*called, {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}]
    whole = await world.admin.post("/v1/chat/completions", json=body_for("chat/completions", messages=answered))
    assert whole.status_code == 200


@requirement("llm.openai-errors")
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": 5}, "input"),
        ("responses", {"input": []}, "input"),
        ("responses", {"input": [{"role": "user"}]}, "input.0.content"),
        ("completions", {"prompt": 5}, "prompt"),
        ("chat/completions", {"model": None}, "model"),
        ("chat/completions", {"stop": 5}, "stop"),
        ("chat/completions", {"tool_choice": "bogus"}, "tool_choice"),
        ("chat/completions", {"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{}]}]}, "messages.0.content.0.type"),
    ],
)
async def test_the_field_that_is_wrong_has_the_callers_name_for_it(
    world: World, path: str, fields: dict[str, Any], param: str
) -> None:
    error = await refused(world, path, **fields)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


@requirement("llm.openai-errors", "http.errors-limit")
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"stop": MANY}, "stop.0"),
        ("chat/completions", {"tools": MANY}, "tools.0"),
        ("chat/completions", {"messages": [{"role": "user", "content": MANY}]}, "messages.0.content.0"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": MANY}]}, "messages.0.tool_calls.0"),
        ("completions", {"prompt": MANY}, "prompt.0"),
        ("completions", {"stop": MANY}, "stop.0"),
        ("responses", {"input": MANY}, "input.0"),
        ("responses", {"input": [{"role": "user", "content": MANY}]}, "input.0.content.0"),
        ("responses", {"tools": MANY}, "tools.0"),
        ("responses", {"include": MANY}, "include.0"),
    ],
)
async def test_of_a_list_the_first_wrong_item_is_found_and_no_more(
    world: World, path: str, fields: dict[str, Any], param: str
) -> None:
    error = await refused(world, path, **fields)
    assert error["param"] == param


@requirement("llm.openai-errors")
async def test_every_error_has_openais_form(world: World, upstream: Upstream) -> None:
    client = client_of(world.clients["ADMIN"])
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="openai2/nothing", messages=ASKED)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as unknown:
        await client_of(world.clients["OTHER"], "wrong").chat.completions.create(model="x", messages=ASKED)
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.PermissionDeniedError):
        await client_of(world.clients["READER"], "reader-key-7c1e").chat.completions.create(model="x", messages=ASKED)
    upstream.mood = moods.status(429, **{"Retry-After": "7"})
    with pytest.raises(openai.RateLimitError) as busy:
        await client.chat.completions.create(model=MODELS[0], messages=ASKED)
    assert (busy.value.response.headers["retry-after"], busy.value.type) == ("7", "rate_limit_error")
    upstream.mood = moods.status(500)
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model=MODELS[0], messages=ASKED)
    assert failed.value.code == "provider_error"
    upstream.mood = moods.status(400)
    with pytest.raises(openai.BadRequestError, match="as scripted"):
        await client.chat.completions.create(model=MODELS[0], messages=ASKED)
    for path, method in (("chat/completions", "GET"), ("nothing", "POST")):
        answer = await world.admin.request(method, f"/v1/{path}", headers={"X-API-Key": "admin-key-7c1e"})
        assert answer.status_code in (404, 405)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@requirement("llm.openai-errors")
async def test_a_stream_that_breaks_off_is_an_error_for_the_client(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    upstream.mood = moods.hanging_up
    stream = await client.chat.completions.create(model=MODELS[0], messages=ASKED, stream=True)
    with pytest.raises(openai.APIError, match="was interrupted"):
        async for _ in stream:
            pass
