"""Anthropic's official client is the judge of /v1/messages, whatever format the provider behind it speaks."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest
from aiohttp import web

from stentor.domains.llm.anthropic_api.messages_output import MessageEvents
from stentor.domains.llm.anthropic_api.messages_request import MessagesIn
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.model import ReplyDelta, TokenUsage, ToolCallDelta
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate
from tests.domains.llm.upstream import ANSWER, SCHEMA, Upstream, named
from tests.requirements import requirement

OPENAI, ANTHROPIC, GEMINI = MODELS = ["openai/sea-large", "anthropic/sea-large", "gemini/sea-large"]
ASKED: Any = [{"role": "user", "content": "Why is the sea salty?"}]
TOOL: Any = {"name": "weather", "description": "Now.", "input_schema": SCHEMA}
CACHED: Any = {"cache_control": {"type": "ephemeral"}}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Salt."}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SEARCHED: Any = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Any = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
SIGNED: Any = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
USAGE: Any = {"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 9}
MANY = [1] * 10_000
"""Items of a type that no list has."""


@pytest.fixture
async def world(make_llm: Gate, upstream: Upstream) -> World:
    made = await make_llm(
        SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}",
        SERVICE_LLM_GROUPS=f"both={OPENAI}|{ANTHROPIC}",
        SERVICE_LLM_LOCAL_BASELINE="true",
    )
    body = {"provider": "gemini", "apiKey": "gem-key-1", "baseUrl": upstream.url}
    assert (await made.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
    return made


def client_of(world: World, key: str = "admin-key-7c1e", **auth: str) -> anthropic.AsyncAnthropic:
    base = "http://stentor.test"
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=world.app), base_url=base)
    keys: Any = auth or {"api_key": key}
    return anthropic.AsyncAnthropic(base_url=base, http_client=http, max_retries=0, **keys)


@pytest.fixture
async def client(world: World) -> anthropic.AsyncAnthropic:
    return client_of(world)


async def ask(client: anthropic.AsyncAnthropic, *, streamed: bool, **fields: Any) -> Any:
    """The message, read whole or as a stream."""
    body: Any = {"model": OPENAI, "max_tokens": 100, "messages": ASKED, **fields}
    if not streamed:
        return await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        return await stream.get_final_message()


@requirement("llm.anthropic-compatible")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_has_all_that_the_client_reads(
    client: anthropic.AsyncAnthropic, model: str, streamed: bool
) -> None:
    message = await ask(client, streamed=streamed, model=model)
    assert [block.text for block in message.content] == [ANSWER]
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    assert message.id.startswith("msg_")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (11, 7)


@requirement("llm.anthropic-compatible", "llm.tool-calls")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_are_offered_called_and_their_results_sent_back(
    client: anthropic.AsyncAnthropic, upstream: Upstream, model: str, streamed: bool
) -> None:
    upstream.tool, upstream.talking = {"name": "weather", "args": {"city": "Łódź"}}, True
    upstream.more_tools = [{"name": "weather", "args": {"city": "Bath"}}, {"name": "clock", "args": {}}]
    clock = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
    message = await ask(client, streamed=streamed, model=model, tools=[TOOL, clock])
    assert message.stop_reason == "tool_use"
    assert message.content[0].text == ANSWER
    calls = message.content[1:]
    assert [(call.name, call.input) for call in calls] == [
        ("weather", {"city": "Łódź"}),
        ("weather", {"city": "Bath"}),
        ("clock", {}),
    ]
    upstream.tool = None
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"it is {call.id[:3]}"} for call in calls]
    turn: Any = [*ASKED, message.to_param(), {"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]}]
    answer = await ask(client, streamed=streamed, model=model, messages=turn, tools=[TOOL, clock])
    assert answer.content[0].text == ANSWER
    sent = json.dumps(upstream.asked[-1]["body"], ensure_ascii=False)
    assert all(text in sent for text in ("it is", "Well?", "Łódź"))
    assert ("thoughtSignature" in sent) is (model == GEMINI)
    assert ".signature." not in sent


@requirement("llm.anthropic-original")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_provider_of_anthropics_format_gets_what_the_client_sent(
    client: anthropic.AsyncAnthropic, upstream: Upstream, streamed: bool
) -> None:
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Read this.", **CACHED}, DOCUMENT]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "First", "signature": "c2lnbmVk"},
                {"type": "redacted_thinking", "data": "secret"},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bath"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "gone", "is_error": True, **CACHED}
            ],
        },
        {"role": "system", "content": "Be brief."},
    ]
    original: dict[str, Any] = {
        "messages": messages,
        "system": [{"type": "text", "text": "You sail.", **CACHED}],
        "tools": [{**TOOL, **CACHED}, SEARCH],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": THINKING,
        "metadata": {"user_id": "u-1"},
        "stop_sequences": ["END"],
        "extra_body": {"context_management": {"edits": []}},
        "extra_headers": {"anthropic-beta": "context-management-2025-06-27", "anthropic-version": "2026-10-21"},
    }
    await ask(client, streamed=streamed, model=ANTHROPIC, **original)
    sent = upstream.asked[-1]
    expected = {name: value for name, value in original.items() if not name.startswith("extra_")}
    expected |= {"model": "sea-large", "max_tokens": 100, "context_management": {"edits": []}}
    assert sent["body"] == expected | ({"stream": True} if streamed else {})
    assert sent["headers"]["anthropic-beta"] == "context-management-2025-06-27"
    assert sent["headers"]["anthropic-version"] == "2026-10-21"
    assert sent["query"] == {}


@requirement("llm.anthropic-original")
async def test_a_request_of_claude_code_asks_the_provider_for_the_beta(
    client: anthropic.AsyncAnthropic, upstream: Upstream
) -> None:
    for model in (ANTHROPIC, OPENAI):
        await client.beta.messages.create(
            model=model, max_tokens=5, messages=ASKED, betas=["x-1"], extra_query={"beta": "true"}
        )
    assert [call["query"] for call in upstream.asked] == [{"beta": "true"}, {}]
    assert upstream.asked[0]["headers"]["anthropic-beta"] == "x-1"


@requirement("llm.anthropic-original")
@pytest.mark.parametrize("name", ["anthropic-beta", "anthropic-version"])
async def test_a_header_that_no_provider_can_get_is_refused_and_pauses_no_provider(
    world: World, upstream: Upstream, name: str
) -> None:
    body = {"model": ANTHROPIC, "max_tokens": 5, "messages": ASKED}
    for _ in range(6):
        refused = await world.clients["BOB"].post("/v1/messages", json=body, headers={name: "a,\tb"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, f"{name}: must be printable text.")
    assert upstream.asked == []
    assert (await world.admin.post("/v1/messages", json=body)).status_code == 200


async def searching(request: web.Request) -> web.StreamResponse:
    """Thinks with a signature, searches the web itself, and pauses: what only Anthropic's format has."""
    blocks = [SIGNED, SEARCHED, FOUND, {"type": "text", "text": "Salt."}]
    end = {"stop_reason": "pause_turn", "stop_sequence": None}
    head = {"id": "msg_up", "type": "message", "role": "assistant", "model": "sea-2026"}
    if not json.loads(await request.read()).get("stream"):
        return web.json_response({**head, "content": blocks, **end, "usage": USAGE})
    start = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**USAGE, "output_tokens": 1}}
    events: list[Any] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for at, block in enumerate(blocks):
        empty = {**block, "thinking": "", "signature": ""} if block is SIGNED else block
        events.append({"type": "content_block_start", "index": at, "content_block": empty})
        if block is SIGNED:
            for delta in (
                {"type": "thinking_delta", "thinking": "Hm."},
                {"type": "signature_delta", "signature": "c2lnbmVk"},
            ):
                events.append({"type": "content_block_delta", "index": at, "delta": delta})
        events.append({"type": "content_block_stop", "index": at})
    events += [{"type": "message_delta", "delta": end, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b"".join(named(event) for event in events))
    return answer


@requirement("llm.anthropic-original")
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_reply_of_anthropics_format_reaches_the_client_whole_and_is_counted(
    world: World, client: anthropic.AsyncAnthropic, upstream: Upstream, streamed: bool
) -> None:
    upstream.mood = searching
    message = await ask(client, streamed=streamed, model=ANTHROPIC, thinking=THINKING, max_tokens=2000)
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    assert blocks == [SIGNED, SEARCHED, FOUND, {"type": "text", "text": "Salt."}]
    assert (message.stop_reason, message.model) == ("pause_turn", ANTHROPIC)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 100, 9)
    usage_report = (await world.admin.get("/api/v1/llm/usage")).json()["data"]
    assert (usage_report["totalRequests"], usage_report["inputTokens"], usage_report["outputTokens"]) == (1, 123, 9)
    calls = (await world.admin.get("/api/v1/llm/calls")).json()["calls"]
    assert f"msg_{calls[0]['call_id']}" == message.id


@requirement("llm.anthropic-compatible")
@pytest.mark.parametrize("streamed", [False, True])
async def test_other_providers_get_what_their_format_can_express(
    client: anthropic.AsyncAnthropic, upstream: Upstream, streamed: bool
) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Look: ", **CACHED}, picture]},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": [SIGNED, {"type": "text", "text": "A sea."}]},
        *ASKED,
    ]
    await ask(
        client,
        streamed=streamed,
        messages=messages,
        system=[{"type": "text", "text": "You sail.", **CACHED}, {"type": "text", "text": "Slowly."}],
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        extra_body={"temperature": 0.5, "top_k": 5},
        thinking=THINKING,
        metadata={"user_id": "u-1"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    )
    sent = upstream.asked[-1]["body"]
    assert sent.pop("stream", False) is streamed
    sent.pop("stream_options", None)
    assert sent == {
        "model": "sea-large",
        "max_tokens": 100,
        "messages": [
            {"role": "system", "content": "You sail.\n\nSlowly."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look: "},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                    {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"},
                ],
            },
            {"role": "assistant", "content": "A sea."},
            {"role": "user", "content": "Why is the sea salty?"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": ["END"],
        "temperature": 0.5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }
    assert not [name for name in upstream.asked[-1]["headers"] if name.lower().startswith("anthropic-")]


@requirement("llm.anthropic-compatible")
async def test_neighbours_of_one_role_are_one_message_for_other_providers(
    client: anthropic.AsyncAnthropic, upstream: Upstream
) -> None:
    calls: Any = [{"type": "tool_use", "id": f"toolu_{at}", "name": "weather", "input": {}} for at in (1, 2)]
    messages: Any = [
        {"role": "user", "content": "Add 10."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "And 20."},
        {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, calls[0]]},
        {"role": "assistant", "content": [calls[1]]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"]} for call in calls]},
    ]
    await ask(client, streamed=False, messages=messages)
    user, assistant, *results = upstream.asked[-1]["body"]["messages"]
    reminder = "<system-reminder>\nBe brief.\n</system-reminder>"
    assert user == {"role": "user", "content": f"Add 10.\n\n{reminder}\n\nAnd 20."}
    assert assistant["content"] == "Wait."
    # Each call must be answered before the next message of the assistant.
    assert [call["id"] for call in assistant["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert [result["tool_call_id"] for result in results] == ["toolu_1", "toolu_2"]


@requirement("llm.anthropic-compatible")
@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_of_other_providers_is_shown_to_who_asked_for_it_and_never_sent_to_anthropic(
    client: anthropic.AsyncAnthropic, upstream: Upstream, streamed: bool
) -> None:
    upstream.reasoning = "Hm."
    silent = await ask(client, streamed=streamed)
    assert [block.type for block in silent.content] == ["text"]
    message = await ask(client, streamed=streamed, thinking=THINKING)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[0].signature) == ("Hm.", "")
    upstream.reasoning = ""
    thinking_alone: Any = {"role": "assistant", "content": [{**SIGNED, "signature": ""}]}
    turn: Any = [*ASKED, message.to_param(), *ASKED, thinking_alone, {"role": "user", "content": []}]
    await ask(client, streamed=streamed, model=ANTHROPIC, messages=turn)
    sent = upstream.asked[-1]["body"]["messages"]
    assert [(message["role"], bool(message["content"])) for message in sent] == [
        ("user", True),
        ("assistant", True),
        ("user", True),
        ("user", False),
    ]
    assert "Hm." not in json.dumps(sent)


@requirement("llm.anthropic-original")
@pytest.mark.parametrize("part", [{"tools": [SEARCH]}, {"messages": [{"role": "user", "content": [DOCUMENT]}]}])
async def test_what_only_anthropic_has_is_rejected_by_others_and_goes_to_the_model_of_a_group_that_has_it(
    client: anthropic.AsyncAnthropic, upstream: Upstream, part: dict[str, Any]
) -> None:
    kind = "a tool of type 'web_search_20250305'" if "tools" in part else "a block of type 'document'"
    for model in (OPENAI, GEMINI, "local/extractive", "agent:summarize"):
        with pytest.raises(
            anthropic.BadRequestError, match="accepts no tools" if model[0] == "a" and "tools" in part else kind
        ):
            await ask(client, streamed=False, model=model, **part)
    assert upstream.asked == []
    for _ in range(2):  # whichever of the group is first
        message = await ask(client, streamed=True, model="both", **part)
        assert message.model == ANTHROPIC


@requirement("llm.anthropic-compatible")
async def test_a_group_and_auto_are_models_and_the_choice_is_graded_by_the_id_of_the_message(
    world: World, client: anthropic.AsyncAnthropic
) -> None:
    message = await ask(client, streamed=False, model="both")
    assert message.model in (OPENAI, ANTHROPIC)
    chosen = await ask(client, streamed=True, model="auto:both", extra_body={"metadata": {"prefer": "cheap"}})
    assert chosen.stentor["prefer"] == "cheap"
    graded = await world.admin.post(f"/api/v1/llm/answers/{chosen.id}/grade", json={"grade": 0.5})
    assert graded.status_code == 200, graded.text
    assert {"both", OPENAI, ANTHROPIC} & {model.id async for model in client.models.list()}


@requirement("llm.anthropic-compatible")
async def test_metadata_of_this_gateway_is_not_sent_to_anthropic(
    client: anthropic.AsyncAnthropic, upstream: Upstream
) -> None:
    metadata: Any = {"user_id": "u-1", "prefer": "cheap"}
    await ask(client, streamed=False, model=ANTHROPIC, metadata=metadata)
    assert upstream.asked[-1]["body"]["metadata"] == {"user_id": "u-1"}


@requirement("llm.anthropic-compatible")
async def test_tokens_are_estimated_without_a_call(client: anthropic.AsyncAnthropic, upstream: Upstream) -> None:
    small = await client.messages.count_tokens(model=OPENAI, messages=ASKED)
    large = await client.messages.count_tokens(model=OPENAI, messages=ASKED, system="Salt. " * 100, tools=[TOOL])
    assert 0 < small.input_tokens < 20
    assert large.input_tokens > 150
    salt = {"type": "text", "media_type": "text/plain", "data": "Salt. " * 100}
    for source in (salt, {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}):
        document: Any = {"type": "document", "source": source}
        result: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [document]}
        for block in (document, result):
            read = await client.messages.count_tokens(model=OPENAI, messages=[{"role": "user", "content": [block]}])
            assert read.input_tokens >= 150
    assert upstream.asked == []


@requirement("llm.anthropic-compatible", "llm.sessions")
async def test_a_message_continues_a_session(world: World, upstream: Upstream) -> None:
    session = (await world.admin.post("/api/v1/sessions", json={})).json()["session_id"]
    client = client_of(world)
    for model in (OPENAI, ANTHROPIC):
        message = await ask(client, streamed=True, model=model, extra_headers={"X-Session-Id": session})
        assert message.content[0].text == ANSWER
    assert [m["role"] for m in upstream.asked[-1]["body"]["messages"]] == ["user", "assistant", "user"]


@requirement("llm.anthropic-original")
async def test_a_stream_shows_a_search_of_the_provider_before_its_first_text(world: World, upstream: Upstream) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for event in (
            {"type": "content_block_start", "index": 0, "content_block": SEARCHED},
            {"type": "content_block_stop", "index": 0},
        ):
            await answer.write(named(event))
        await upstream.go.wait()
        await answer.write(named({"type": "message_stop"}))
        return answer

    upstream.mood = slow
    upstream.go.clear()
    raw: Any = {"model": ANTHROPIC, "max_tokens": 100, "messages": ASKED, "tools": [SEARCH]}
    request = MessagesIn.model_validate(raw).to_request(raw, {})
    stream = await world.kernel.llm.gateway.stream(LlmCaller("default", "admin"), request)
    deltas = aiter(stream)
    shown = [await anext(deltas) for _ in range(2)]
    assert [(delta.anthropic_event or {})["type"] for delta in shown] == ["content_block_start", "content_block_stop"]
    upstream.go.set()
    assert [delta.is_last async for delta in deltas][-1]


def interleaved() -> list[ReplyDelta]:
    first = [ToolCallDelta(0, "a", "weather", '{"ci'), ToolCallDelta(1, "b", "clock", "")]
    rest = [
        ToolCallDelta(0, arguments='ty":1}'),
        ToolCallDelta(1, arguments="{}"),
        ToolCallDelta(2, "c", "clock", "{}"),
    ]
    calls = [ReplyDelta(tool_calls=(call,)) for call in (*first, *rest)]
    end = ReplyDelta(finish="stop", usage=TokenUsage(10, 5, cached_tokens=4), is_last=True)
    return [ReplyDelta(content="Well"), *calls, end]


@requirement("llm.anthropic-compatible")
def test_calls_that_arrive_in_turns_are_blocks_of_their_own() -> None:
    events = MessageEvents("1", OPENAI, shows_thinking=False)
    sent = [event for delta in interleaved() for event in events.delta_events(delta)]
    starts = [event["content_block"] for event in sent if event["type"] == "content_block_start"]
    assert [block.get("name", "text") for block in starts] == ["text", "weather", "clock", "clock"]
    arguments = dict.fromkeys(range(1, 4), "")
    is_open: set[int] = set()
    for event in sent:
        if event["type"] == "content_block_start":
            is_open.add(event["index"])
        if event["type"] == "content_block_delta" and event["index"]:
            assert event["index"] in is_open
            arguments[event["index"]] += event["delta"]["partial_json"]
        if event["type"] == "content_block_stop":
            is_open.remove(event["index"])
    assert arguments == {1: '{"city":1}', 2: "{}", 3: "{}"}
    assert not is_open
    assert [event["type"] for event in (sent[0], *sent[-2:])] == ["message_start", "message_delta", "message_stop"]
    assert sent[-2]["delta"]["stop_reason"] == "tool_use"
    assert (sent[-2]["usage"]["input_tokens"], sent[-2]["usage"]["cache_read_input_tokens"]) == (6, 4)


@requirement("llm.anthropic-errors")
async def test_every_error_has_anthropics_form_and_our_code(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm()
    client = client_of(world)
    with pytest.raises(anthropic.NotFoundError) as missing:
        await ask(client, streamed=False, model="openai2/nothing")
    assert body_of(missing) == ("not_found_error", "model_not_found")
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        await ask(client_of(world, "wrong"), streamed=False)
    assert body_of(unknown) == ("authentication_error", "invalid_api_key")
    reader = client_of(world, auth_token="reader-key-7c1e")
    with pytest.raises(anthropic.PermissionDeniedError) as denied:
        await ask(reader, streamed=False)
    assert body_of(denied) == ("permission_error", "forbidden")
    with pytest.raises(anthropic.PermissionDeniedError):
        await reader.messages.count_tokens(model=OPENAI, messages=ASKED)
    upstream.mood = moods.status(429, **{"Retry-After": "7"})
    with pytest.raises(anthropic.RateLimitError) as busy:
        await ask(client, streamed=True)
    assert body_of(busy) == ("rate_limit_error", "rate_limited")
    assert busy.value.response.headers["retry-after"] == "7"
    upstream.mood = moods.status(500)
    with pytest.raises(anthropic.InternalServerError) as failed:
        await ask(client, streamed=False, model=ANTHROPIC)
    assert body_of(failed) == ("api_error", "provider_error")
    upstream.mood = moods.status(400)
    with pytest.raises(anthropic.BadRequestError, match="as scripted"):
        await ask(client, streamed=False, model=ANTHROPIC)
    for path, method in (("/v1/messages", "GET"), ("/v1/messages/batches", "POST")):
        answer = await world.admin.request(method, path)
        assert answer.status_code in (404, 405)
        assert set(answer.json()) == {"type", "error", "request_id"}


def body_of(error: pytest.ExceptionInfo[anthropic.APIStatusError]) -> tuple[str, str]:
    body: Any = error.value.body
    assert body["request_id"]
    return body["error"]["type"], body["error"]["code"]


@requirement("llm.anthropic-errors")
async def test_a_used_up_budget_is_429(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:*:tokens/day=0")
    with pytest.raises(anthropic.RateLimitError) as spent:
        await ask(client_of(world), streamed=True)
    assert body_of(spent) == ("rate_limit_error", "budget_exceeded")
    assert upstream.asked == []


@requirement("llm.anthropic-errors")
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
async def test_a_stream_that_breaks_off_is_an_error_for_the_client(
    client: anthropic.AsyncAnthropic, upstream: Upstream, model: str
) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        if model == OPENAI:
            return await moods.hanging_up(request)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "The sea"}}
        await answer.write(named(start))
        await answer.write(named({"type": "error", "error": {"type": "overloaded_error", "message": "secret"}}))
        return answer

    upstream.mood = broken
    with pytest.raises(anthropic.APIStatusError, match="was interrupted") as error:
        await ask(client, streamed=True, model=model)
    assert "secret" not in str(error.value.body)
    assert body_of(error)[0] == "api_error"


@requirement("llm.anthropic-errors")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": MANY}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0.text"),
        ({"tools": [{}]}, "tools.0.name"),
        ({"tools": MANY}, "tools.0"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"temperature": "1"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "1024"}}, "thinking.budget_tokens"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"metadata": {"prefer": 5}}, "metadata.prefer"),
        ({"top_k": "5"}, "top_k"),
        ({"service_tier": 5}, "service_tier"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
async def test_a_wrong_field_is_400_and_named(
    world: World, upstream: Upstream, fields: dict[str, Any], param: str
) -> None:
    body = {"model": OPENAI, "max_tokens": 100, "messages": ASKED, **fields}
    answer = await world.admin.post("/v1/messages", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert error["message"].startswith(f"{param}: ")
    assert upstream.asked == []


async def test_a_budget_of_no_tokens_is_accepted_as_litellm_sends_it(world: World, upstream: Upstream) -> None:
    thinking = {"type": "disabled", "budget_tokens": 0}
    body = {"model": OPENAI, "max_tokens": 100, "messages": ASKED, "thinking": thinking}
    answer = await world.admin.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert len(upstream.asked) == 1


@requirement("llm.anthropic-errors")
@pytest.mark.parametrize("path", ["messages", "chat/completions"])
async def test_what_is_no_object_is_named_without_a_class_of_the_program(world: World, path: str) -> None:
    body = {"model": OPENAI, "max_tokens": 100, "messages": [5]}
    answer = await world.admin.post(f"/v1/{path}", json=body)
    assert answer.json()["error"]["message"] == "messages.0: must be an object"


@requirement("llm.anthropic-errors")
async def test_the_base_address_of_openais_clients_gets_a_hint(world: World) -> None:
    answer = await world.admin.post("/v1/v1/messages", json={})
    assert answer.status_code == 404
    assert "ends before /v1" in answer.text
