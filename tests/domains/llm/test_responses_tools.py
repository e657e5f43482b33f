"""Tools over /v1/responses: OpenAI's official client is the judge, whatever format the provider behind speaks."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from stentor.domains.llm.openai_api.responses_input import (
    FunctionCallItem,
    FunctionOutputItem,
    flat_name,
    to_messages,
)
from stentor.domains.llm.openai_api.responses_output import CACHE_SECONDS, ResponseTextCache
from tests.conftest import World
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_chat import pieces
from tests.domains.llm.test_openai_surface import MODELS, client_of, refused
from tests.domains.llm.upstream import ANSWER, SCHEMA, Upstream, raw, sse
from tests.requirements import requirement

TOOL: Any = {"type": "function", "name": "weather", "description": "Now.", "parameters": SCHEMA, "strict": True}
TIME: Any = {"type": "function", "name": "time", "description": "Now.", "parameters": SCHEMA}
SPACE: Any = {"type": "namespace", "name": "sky", "description": "Above.", "tools": [TOOL]}
ASKED: Any = [{"role": "user", "content": "How is the weather in Łódź?"}]


@pytest.fixture
async def world(make_llm: Gate, upstream: Upstream) -> World:
    made = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    body = {"provider": "gemini", "apiKey": "gem-key-1", "baseUrl": upstream.url}
    assert (await made.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
    return made


@pytest.fixture
async def client(world: World) -> openai.AsyncOpenAI:
    return client_of(world.clients["ADMIN"])


async def answered(client: openai.AsyncOpenAI, *, streamed: bool, **fields: Any) -> Any:
    """The whole response, however it came."""
    if not streamed:
        return await client.responses.create(**fields)
    async with client.responses.stream(**fields) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_response()


@requirement("llm.responses-tools")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_functions_are_called_in_parallel_and_their_outputs_sent_back_as_items(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str, streamed: bool
) -> None:
    upstream.tool, upstream.talking = {"name": "weather", "args": {"city": "Łódź"}}, True
    upstream.more_tools = [{"name": "time", "args": {"city": "Rzeszów"}}]
    fields: dict[str, Any] = {"model": model, "tools": [TOOL, TIME], "streamed": streamed}
    first = await answered(client, input=ASKED, **fields)
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    calls = first.output[1:]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("weather", {"city": "Łódź"}),
        ("time", {"city": "Rzeszów"}),
    ]
    assert (first.status, first.output_text) == ("completed", ANSWER)
    assert len({item.id for item in first.output}) == len(first.output)

    upstream.tool, upstream.more_tools = None, []
    outputs = [
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"},
        {
            "type": "function_call_output",
            "call_id": calls[1].call_id,
            "output": [{"type": "input_text", "text": "noon"}],
        },
    ]
    kept = [item.model_dump(exclude_none=True) for item in first.output]
    second = await answered(client, input=[*ASKED, *kept, *outputs], **fields)
    assert second.output_text == ANSWER
    sent = upstream.asked[-1]["body"]
    wire = json.dumps(sent, ensure_ascii=False)
    assert all(word in wire for word in ("sunny", "noon", "Łódź", "Rzeszów"))
    assert (wire.count("c2lnbmVk") == 1) is model.startswith("gemini")
    turns = sent.get("messages") or sent["contents"]
    roles = [turn["role"] for turn in turns]
    expected = {"openai": ["user", "assistant", "tool", "tool"], "anthropic": ["user", "assistant", "user"]}
    assert roles == expected.get(model.partition("/")[0], ["user", "model", "user"])


@requirement("llm.responses-tools")
@pytest.mark.parametrize("model", MODELS)
async def test_the_events_of_a_streamed_call_follow_each_other_as_openais_do(
    world: World, upstream: Upstream, model: str
) -> None:
    upstream.tool, upstream.talking = {"name": "weather", "args": {"city": "Łódź"}}, True
    upstream.more_tools = [{"name": "time", "args": {}}]
    body = {"model": model, "input": "How?", "tools": [TOOL, TIME], "stream": True}
    events = pieces((await world.admin.post("/v1/responses", json=body)).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    called = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]
    final = events[-1]["response"]["output"]
    for at, item in enumerate(final):
        own = [event for event in events if event.get("output_index") == at]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        assert [event["item"]["id"] for event in own if "item" in event] == [item["id"]] * 2
        assert own[-1]["item"] == item
        if item["type"] == "function_call":
            assert list(dict.fromkeys(event["type"].removeprefix("response.") for event in own)) == called
            said = "".join(event["delta"] for event in own if event["type"].endswith("arguments.delta"))
            assert said == own[-2]["arguments"] == item["arguments"]
            assert own[0]["item"] == {**item, "arguments": "", "status": "in_progress"}
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    assert json.loads(final[2]["arguments"]) == {}


@requirement("llm.responses-tools")
async def test_calls_whose_parts_come_in_turns_are_put_together(world: World, upstream: Upstream) -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return sse({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def part(at: int, arguments: str, **head: Any) -> bytes:
        name = {"name": head.pop("name")} if "name" in head else {}
        return chunk({"tool_calls": [{"index": at, **head, "function": {**name, "arguments": arguments}}]})

    begun = [part(at, '{"city":', id=f"c{at}", name="weather") for at in (0, 1)]
    rest = [part(at, f' "{at}"}}') for at in (0, 1)]
    stream = b"".join([*begun, *rest, chunk({}, "tool_calls"), b"data: [DONE]\n\n"])
    upstream.mood = raw(stream, "text/event-stream")
    body = {"model": MODELS[0], "input": "How?", "tools": [TOOL], "stream": True}
    events = pieces((await world.admin.post("/v1/responses", json=body)).text)
    calls = events[-1]["response"]["output"]
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "0"}, {"city": "1"}]


@requirement("llm.responses-tools")
@pytest.mark.parametrize("model", MODELS)
async def test_the_choice_and_strictness_of_functions_reach_every_provider(
    world: World, upstream: Upstream, model: str
) -> None:
    async def sent(**fields: Any) -> dict[str, Any]:
        body = {"model": model, "input": "How?", "tools": [TOOL, TIME], **fields}
        answer = await world.admin.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return dict(upstream.asked[-1]["body"])

    named = await sent(tool_choice={"type": "function", "name": "weather"})
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]}
    few = await sent(tool_choice=allowed)
    plain = await sent()
    if model.startswith("openai"):
        assert named["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        assert [tool["function"].get("strict") for tool in named["tools"]] == [True, None]
        assert ([tool["function"]["name"] for tool in few["tools"]], few["tool_choice"]) == (["time"], "required")
        assert "tool_choice" not in plain
        assert (await sent(parallel_tool_calls=False))["parallel_tool_calls"] is False
    elif model.startswith("anthropic"):
        assert named["tool_choice"] == {"type": "tool", "name": "weather"}
        assert [tool.get("strict") for tool in named["tools"]] == [True, None]
        assert ([tool["name"] for tool in few["tools"]], few["tool_choice"]) == (["time"], {"type": "any"})
        single = await sent(parallel_tool_calls=False)
        assert single["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    else:
        config = "functionCallingConfig"
        assert named["toolConfig"][config] == {"mode": "ANY", "allowedFunctionNames": ["weather"]}
        assert [one["name"] for one in few["tools"][0]["functionDeclarations"]] == ["time"]
        assert few["toolConfig"][config] == {"mode": "ANY"}
        assert plain["toolConfig"][config] == {"mode": "VALIDATED"}


@requirement("llm.responses-tools")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("model", MODELS)
async def test_one_call_at_a_time_is_one_call_also_of_a_model_that_makes_more(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str, streamed: bool
) -> None:
    upstream.tool, upstream.talking = {"name": "weather", "args": {"city": "Łódź"}}, True
    upstream.more_tools = [{"name": "time", "args": {}}]
    asked: Any = {"model": model, "tools": [TOOL, TIME], "parallel_tool_calls": False}
    answer = await answered(client, input=ASKED, streamed=streamed, **asked)
    assert [item.type for item in answer.output] == ["message", "function_call"]
    call = answer.output[1]
    assert (call.name, json.loads(call.arguments), call.status) == ("weather", {"city": "Łódź"}, "completed")
    upstream.tool = None
    items = [*ASKED, *(item.to_dict() for item in answer.output)]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sun."})
    assert (await answered(client, input=items, streamed=streamed, **asked)).output_text == ANSWER


@requirement("llm.responses-tools")
async def test_what_the_request_said_about_its_answer_is_passed_on_and_told_again(
    world: World, upstream: Upstream
) -> None:
    given = {
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "metadata": {"a": "b"},
        "store": True,
        "include": ["reasoning.encrypted_content"],
        "truncation": "disabled",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        "user": "ann",
    }
    body = {"model": MODELS[0], "input": "How?", **given}
    answer = (await world.admin.post("/v1/responses", json=body)).json()
    sent = upstream.asked[-1]["body"]
    assert (sent["reasoning_effort"], sent["verbosity"], sent["user"]) == ("low", "low", "ann")
    assert not {"store", "metadata", "reasoning", "include", "text"} & set(sent)
    assert answer["reasoning"]["effort"] == "low"
    assert (answer["text"]["verbosity"], answer["metadata"], answer["store"]) == ("low", {"a": "b"}, False)
    assert (answer["tools"], answer["tool_choice"]) == ([TOOL], given["tool_choice"])
    assert (answer["parallel_tool_calls"], answer["truncation"]) == (False, "disabled")


@requirement("llm.responses-tools")
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "web_search"),
        ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools.1.type", "only function tools"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools.0.type", "only function tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice", "nobody"),
        ({"tool_choice": "required"}, "tool_choice", "no function"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "only function"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stores no responses"),
        ({"conversation": {"name": "s"}}, "conversation.id", ""),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"background": True}, "background", "not supported"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"top_logprobs": 2}, "top_logprobs", ""),
        ({"include": ["message.output_text.logprobs"]}, "include", "log probabilities"),
        ({"reasoning": {"summary": "much"}}, "reasoning.summary", ""),
        ({"tools": [{**SPACE, "tools": [{"type": "custom", "name": "x"}]}]}, "tools.0.tools.0.type", "only function"),
        ({"tools": [SPACE, {**TOOL, "name": "sky__weather"}]}, "tools", "'sky__weather'"),
        ({"tools": [SPACE], "tool_choice": {"type": "namespace"}}, "tool_choice.type", "only function"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.id", "store=false"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input.0.type", "function_call"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input.0.arguments", "required"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input.0.call_id",
            "no function_",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input.0.output", "required"),
        ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input", "no message"),
    ],
)
async def test_what_a_response_cannot_do_is_400_and_names_the_field(
    world: World, upstream: Upstream, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refused(world, "responses", **fields)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert says in error["message"]
    assert upstream.asked == []


@requirement("llm.responses-tools")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("space", ["sky", "s" * 60])
async def test_the_functions_of_a_namespace_are_called_by_namespace_and_name(
    client: openai.AsyncOpenAI, upstream: Upstream, model: str, streamed: bool, space: str
) -> None:
    tools: Any = [TIME, {**SPACE, "name": space}, {**SPACE, "name": "sea"}]
    fields: dict[str, Any] = {"model": model, "tools": tools, "streamed": streamed, "reasoning": {"summary": "auto"}}
    await answered(client, input=ASKED, **fields)
    wire = json.dumps(upstream.asked[-1]["body"])
    flat = flat_name(space, "weather")
    assert len(flat) <= 64
    assert all(f'"{name}"' in wire for name in ("time", flat, "sea__weather"))

    upstream.tool = {"name": flat, "args": {"city": "Łódź"}}
    first = await answered(client, input=ASKED, **fields)
    call = first.output[0]
    assert (call.name, call.namespace, json.loads(call.arguments)) == ("weather", space, {"city": "Łódź"})
    assert [tool.type for tool in first.tools] == ["function", "namespace", "namespace"]

    upstream.tool = None
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    kept = call.model_dump(exclude_none=True)
    second = await answered(client, input=[*ASKED, kept, output], **fields)
    assert second.output_text == ANSWER
    # Where the function is offered, and where it was called.
    assert json.dumps(upstream.asked[-1]["body"]).count(f'"{flat}"') >= 2


@requirement("llm.responses-tools")
def test_the_outputs_of_a_long_conversation_are_matched_with_their_calls_in_one_pass() -> None:
    calls = [FunctionCallItem(type="function_call", call_id=f"c{n}", name="f", arguments="{}") for n in range(10_000)]
    outputs = [FunctionOutputItem(type="function_call_output", call_id=call.call_id, output="x") for call in calls]
    taken_in_turns: list[Any] = [item for pair in zip(calls, outputs, strict=True) for item in pair]
    assert len(to_messages([*calls, *outputs], {}.get)) == 10_001
    assert len(to_messages(taken_in_turns, {}.get)) == 20_000


@requirement("llm.responses-tools")
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_a_model_just_said_may_be_named_by_its_id_by_the_same_key(
    world: World, client: openai.AsyncOpenAI, upstream: Upstream, streamed: bool
) -> None:
    first = await answered(client, model=MODELS[0], input="Why?", streamed=streamed)
    named: Any = [{"type": "item_reference", "id": first.output[0].id}, *ASKED]
    await client.responses.create(model=MODELS[0], input=named)
    assert upstream.asked[-1]["body"]["messages"][0] == {"role": "assistant", "content": ANSWER}
    body = {"model": MODELS[0], "input": named}
    for other in ("OTHER", "SECOND"):
        assert (await world.clients[other].post("/v1/responses", json=body)).status_code == 400
    unstored = await answered(client, model=MODELS[0], input="Why?", store=False, streamed=streamed)
    named[0]["id"] = unstored.output[0].id
    with pytest.raises(openai.BadRequestError, match="store=false"):
        await client.responses.create(model=MODELS[0], input=named)


@requirement("llm.responses-tools")
def test_what_was_said_is_kept_for_an_hour_and_within_a_bound() -> None:
    now = [0.0]
    recent = ResponseTextCache(lambda: now[0], max_characters=10)
    recent.put("a", "1", "12345")
    assert (recent.get("a", "1"), recent.get("b", "1")) == ("12345", None)
    recent.put("a", "2", "123456")
    assert (recent.get("a", "1"), recent.get("a", "2")) == (None, "123456")
    recent.put("a", "3", "x" * 11)
    assert recent.get("a", "3") is None
    recent.put("a", "4", "x")
    now[0] = CACHE_SECONDS + 1
    assert recent.get("a", "4") is None


@requirement("llm.responses-tools")
async def test_a_call_that_was_cut_off_is_incomplete(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.tool = {"name": "weather", "args": {"city": "Łódź"}}
    cut = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [cut]}, "finish_reason": "length"}
    upstream.mood = raw(json.dumps({"id": "x", "choices": [choice]}).encode())
    answer = await client.responses.create(model=MODELS[0], input="How?", tools=[TOOL])
    assert answer.status == "incomplete"
    assert [(item.type, item.to_dict()["status"]) for item in answer.output] == [("function_call", "incomplete")]


@requirement("llm.responses-tools")
async def test_a_picture_as_the_output_of_a_function_is_400_where_only_text_is_read(world: World) -> None:
    picture = [{"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]
    items = [
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": picture},
    ]
    error = await refused(world, "responses", model="gemini/sea-large", input=items, tools=[TOOL])
    assert "text only" in error["message"]
