"""Names, groups and addresses of the gateway: the rules without a provider, and paths that are not there."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from stentor.core.errors import InvalidRequest, StartRefused
from stentor.domains.llm.formats import anthropic, gemini, openai
from stentor.domains.llm.formats.base import ProviderFormat, ProviderQuirks
from stentor.domains.llm.model import (
    TRUNCATION_NOTE,
    ChatRequest,
    ImagePart,
    LlmMessage,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolDefinition,
    with_reasoning_fallback,
)
from stentor.domains.llm.model_routes import (
    ModelRoutes,
    WeightedRoundRobin,
    resolve_listed_name,
    resolve_qualified_name,
)
from stentor.domains.llm.openai_api.chat import ChatMessageIn
from stentor.domains.llm.providers import Provider, normalize_url, operator_hosts
from stentor.domains.llm.providers.failures import extract_error_message
from stentor.domains.llm.streamed import ReplyBuilder
from stentor.domains.llm.token_estimates import estimate_input_tokens, estimate_tokens
from tests.conftest import World
from tests.requirements import requirement

ONE = Provider("one", "openai", "https://one.example.com/v1")
TWO = Provider("two", "anthropic", "https://two.example.com")
ASKED = LlmMessage("user", (TextPart("x"),))
BOTH = {"one": ONE, "two": TWO}


@requirement("llm.demo-routes-501")
async def test_routes_that_do_not_exist_are_501_and_other_methods_of_those_that_do_405(world: World) -> None:
    for path in ("/api/v1/llm", "/api/v1/llm/benchmark", "/api/v1/llm/providers/openai"):
        answer = await world.admin.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "NOT_IMPLEMENTED")
    wrong = await world.admin.get("/api/v1/llm/chat")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST")


def test_a_name_with_a_slash_belongs_to_its_provider_or_is_a_bare_one() -> None:
    found = resolve_qualified_name("two/claude", BOTH)
    assert found is not None
    assert (found.provider, found.model, found.name) == (TWO, "claude", "two/claude")
    assert resolve_qualified_name("three/x", BOTH) is None
    assert resolve_qualified_name("two/", BOTH) is None
    assert resolve_qualified_name("two", BOTH) is None


def test_of_several_providers_that_list_a_model_the_default_one_has_it() -> None:
    listings = [(ONE, ["a", "llama3:latest"]), (TWO, ["a", "b"])]
    for name, default, provider in (("a", "two", TWO), ("a", "", ONE), ("b", "one", TWO), ("llama3", "", ONE)):
        found = resolve_listed_name(name, listings, default)
        assert found is not None
        assert found.provider == provider
    assert resolve_listed_name("c", listings, "one") is None


def test_fallbacks_come_in_order_each_once() -> None:
    routes = ModelRoutes(["fast=one/a*2|two/b"], ["fast=one/c|two/b", "one/a=two/d", "*=two/e"])
    assert routes.candidate_names("fast") == ["one/a", "two/b", "one/c", "two/d", "two/e"]
    assert routes.candidate_names("other") == ["other", "two/e"]


@pytest.mark.parametrize("entry", ["fast", "=x", "fast=", "fast=a*0", "fast=a*x", "fast=a*1001"])
def test_a_group_that_cannot_be_read_stops_the_start(entry: str) -> None:
    with pytest.raises(StartRefused, match="SERVICE_LLM_GROUPS"):
        ModelRoutes([entry])


def test_turns_are_spread_evenly() -> None:
    turns = WeightedRoundRobin({"a": 5, "b": 1, "c": 1})
    assert "".join(turns.next_order()[0] for _ in range(7)) == "aabacaa"


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://x", "http://", "http://a:b@x", "http://x?k=1", "http://x#y", "http://x:0", "http://x:99999"]
)
def test_what_is_no_base_address(url: str) -> None:
    with pytest.raises(InvalidRequest):
        normalize_url(url)


def test_the_guard_lets_pass_exactly_the_operators_hosts() -> None:
    assert operator_hosts(BOTH) == ("one.example.com:443", "two.example.com:443", "127.0.0.1:11434")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"message": "too long"}', "too long"),
        (b'[{"error": {"message": "too long"}}]', "too long"),
        (b'{"error": {"message": "key secret-1 and sk-abcdefgh12"}}', "key [redacted] and [redacted]"),
        (b'{"error": {"message": "a\\u0000b\\nc\\u202ed"}}', "a b c d"),
        (b'{"error": {"message": 5}}', ""),
        (b"<html>", ""),
        (b"\xff", ""),
        (b"[" * 5000, ""),
    ],
)
def test_of_an_error_only_the_message_is_kept(body: bytes, message: str) -> None:
    assert extract_error_message(body, "secret-1") == message


def test_openai_itself_wants_the_newer_name_of_the_limit_and_azure_another_header() -> None:
    asked = ChatRequest("m", (LlmMessage("user", (TextPart("x"),)),), max_tokens=5)
    for host in ("api.openai.com", "eu.api.openai.com", "me.openai.azure.us"):
        official = Provider("openai", "openai", f"https://{host}/v1").quirks
        assert openai.build_chat_request(asked, official, stream=False).body["max_completion_tokens"] == 5
    assert openai.build_chat_request(asked, ProviderQuirks(), stream=False).body["max_tokens"] == 5
    azure = Provider("azure", "openai", "https://me.openai.azure.com/openai/v1").quirks
    assert openai.build_headers("k", azure) == {"api-key": "k"}
    assert (
        "stream_options"
        not in openai.build_chat_request(
            asked, Provider("mistral", "openai", "https://api.mistral.ai/v1").quirks, stream=True
        ).body
    )


@requirement("llm.tool-calls")
@pytest.mark.parametrize(
    ("url", "expected"),
    [("https://api.deepseek.com/v1", ["Hm.", " "]), ("https://api.groq.com/openai/v1", [None, None])],
)
def test_reasoning_goes_back_to_the_providers_that_refuse_a_call_without_it(
    url: str, expected: list[str | None]
) -> None:
    call = {"id": "c", "function": {"name": "look"}}
    said = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "assistant", "content": "It is 7.", "reasoning_content": 7},
    ]
    asked = ChatRequest("m", tuple(ChatMessageIn.model_validate(message).to_message() for message in said))
    quirks = Provider("acme", "openai", url).quirks
    sent = openai.build_chat_request(asked, quirks, stream=False).body["messages"]
    assert [message.get("reasoning_content") for message in sent if message["role"] == "assistant"] == expected
    assert not any("reasoning_content" in message for message in sent if message["role"] != "assistant")


def test_turns_of_one_role_become_one_where_a_format_wants_it() -> None:
    said = ChatRequest(
        "m",
        (
            LlmMessage("system", (TextPart("Be brief."),)),
            LlmMessage("user", (TextPart("a"),)),
            LlmMessage("assistant", (), (ToolCall("1", "f", "{}"), ToolCall("2", "g", "not json"))),
            LlmMessage("tool", (TextPart("x"),), (), "1"),
            LlmMessage("tool", (TextPart("y"),), (), "2"),
            LlmMessage("user", (TextPart("b"), ImagePart(url="https://example.com/a.png"))),
        ),
    )
    turns = anthropic.build_chat_request(said, ProviderQuirks(), stream=False).body["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "tool_result", "text", "image"]
    assert turns[1]["content"][1]["input"] == {"arguments": "not json"}
    contents = gemini.build_chat_request(said, ProviderQuirks(), stream=False).body["contents"]
    assert [turn["role"] for turn in contents] == ["user", "model", "user"]
    assert contents[2]["parts"][0]["functionResponse"]["name"] == "f"
    assert contents[2]["parts"][3] == {"fileData": {"fileUri": "https://example.com/a.png"}}


def test_turns_without_text_are_left_out() -> None:
    empty = LlmMessage("assistant"), LlmMessage("assistant", (TextPart(""),))
    said = (ASKED, *empty, ASKED, LlmMessage("assistant", (TextPart("\n\n"),), (ToolCall("1", "f", "{}"),)))
    contents = gemini.build_chat_request(ChatRequest("m", said), ProviderQuirks(), stream=False).body["contents"]
    assert [len(turn["parts"]) for turn in contents] == [2, 2]
    turns = anthropic.build_chat_request(ChatRequest("m", said), ProviderQuirks(), stream=False).body["messages"]
    assert [[block["type"] for block in turn["content"]] for turn in turns] == [["text", "text"], ["tool_use"]]


@pytest.mark.parametrize(("form", "field"), [(anthropic, "messages"), (gemini, "contents")])
def test_the_last_of_system_messages_alone_is_the_users(form: ProviderFormat, field: str) -> None:
    said = LlmMessage("system", (TextPart("Be brief."),)), LlmMessage("system", (TextPart("Why?"),))
    body = form.build_chat_request(ChatRequest("m", said), ProviderQuirks(), stream=False).body
    assert [turn["role"] for turn in body[field]] == ["user"]
    assert "Why?" in repr(body.pop(field))
    assert "Be brief." in repr(body)
    assert "Why?" not in repr(body)


def test_results_of_parallel_calls_are_in_the_order_of_the_calls_for_gemini() -> None:
    """Gemini's results have no ids, so that two of one function are told apart by their order."""

    def turn(first: str, second: str) -> tuple[LlmMessage, ...]:
        calls = ToolCall("a", first, "{}"), ToolCall("b", second, "{}")
        results = [LlmMessage("tool", (TextPart(id_),), tool_call_id=id_) for id_ in ("b", "a")]
        return LlmMessage("assistant", (), calls), *results, ASKED

    said = (ASKED, *turn("f", "f"), *turn("g", "h"))
    contents = gemini.build_chat_request(ChatRequest("m", said), ProviderQuirks(), stream=False).body["contents"]
    answers = [part["functionResponse"] for turn in contents for part in turn["parts"] if "functionResponse" in part]
    assert [(answer["name"], answer["response"]["result"]) for answer in answers] == [
        ("f", "a"),
        ("f", "b"),
        ("g", "a"),
        ("h", "b"),
    ]


@requirement("llm.tool-calls")
@pytest.mark.parametrize(
    ("model", "signatures", "expected"),
    [
        ("gemini-3.5-flash", ["", ""], ["skip_thought_signature_validator", None]),
        ("gemini-flash-latest", ["", ""], ["skip_thought_signature_validator", None]),
        ("gemini-3.5-flash", ["c2ln", ""], ["c2ln", None]),
        ("gemini-2.5-flash", ["", ""], [None, None]),
        ("gemini-robotics-er-1.5", ["", ""], [None, None]),
    ],
)
def test_calls_that_gemini_did_not_make_are_marked_so_where_it_checks_signatures(
    model: str, signatures: list[str], expected: list[str | None]
) -> None:
    calls = tuple(ToolCall(f"c{at}", "look", "{}", signature) for at, signature in enumerate(signatures))
    asked = ChatRequest(model, (LlmMessage("user", (TextPart("x"),)), LlmMessage("assistant", tool_calls=calls)))
    sent = gemini.build_chat_request(asked, ProviderQuirks(), stream=False).body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in sent] == expected


@requirement("llm.tool-calls")
@pytest.mark.parametrize(
    ("model", "sent"),
    [("google/Gemini-3-pro", [{"google": {"thought_signature": "c2ln"}}]), ("accounts/f/models/deepseek-v3", [None])],
)
def test_googles_signature_goes_back_to_gemini_and_to_no_other_model(model: str, sent: list[Any]) -> None:
    calls = (ToolCall("c", "look", "{}", "c2ln"),)
    asked = ChatRequest(model, (ASKED, LlmMessage("assistant", tool_calls=calls)))
    body = openai.build_chat_request(asked, ProviderQuirks(), stream=False).body
    assert [call.get("extra_content") for call in body["messages"][1]["tool_calls"]] == sent


@requirement("llm.tool-calls")
def test_ids_of_calls_go_to_mistral_in_its_own_form() -> None:
    ids = ["call_0fypS1hVX", "toolu_01", "D681PevKs"]
    results = (LlmMessage("tool", (TextPart("7"),), tool_call_id=id_) for id_ in ids)
    said = (ASKED, LlmMessage("assistant", tool_calls=tuple(ToolCall(id_, "f", "{}") for id_ in ids)), *results)
    quirks = Provider("acme", "openai", "https://api.mistral.ai/v1").quirks
    sent = openai.build_chat_request(ChatRequest("m", said), quirks, stream=False).body["messages"]
    called = [call["id"] for call in sent[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in sent[2:]] == called
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", id_) for id_ in called)
    assert (len(set(called)), called[2]) == (3, "D681PevKs")


def test_a_seed_goes_to_mistral_by_its_own_name() -> None:
    asked = ChatRequest("m", (ASKED,), seed=7)
    for url, name in (("https://api.mistral.ai/v1", "random_seed"), ("https://api.groq.com/openai/v1", "seed")):
        body = openai.build_chat_request(asked, Provider("acme", "openai", url).quirks, stream=False).body
        assert {key: value for key, value in body.items() if "seed" in key} == {name: 7}


@requirement("llm.images", "llm.tool-calls")
def test_images_of_results_follow_the_last_result_of_the_turn_as_the_users() -> None:
    image = ImagePart(media_type="image/png", data="QUJD")
    calls = tuple(ToolCall(id_, "look", "{}") for id_ in ("a", "b"))
    results = (
        LlmMessage("tool", (TextPart("seen"), image), tool_call_id="a"),
        LlmMessage("tool", (image,), tool_call_id="b"),
    )
    said = (ASKED, LlmMessage("assistant", (), calls), *results, LlmMessage("assistant", (TextPart("A cat."),)), ASKED)
    sent = openai.build_chat_request(ChatRequest("m", said), ProviderQuirks(), stream=False).body["messages"]
    assert [turn["role"] for turn in sent] == "user assistant tool tool user assistant user".split()
    assert sent[2]["content"] == "seen"
    assert "image" in sent[3]["content"]
    assert [part["type"] for part in sent[4]["content"]] == ["image_url", "image_url"]


SCHEMA_OF_OPENAI = {
    "type": "object",
    "properties": {
        "minimum": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How much."},
        "tags": {
            "type": "array",
            "items": {"type": "object", "properties": {"format": {"type": "null"}}},
            "minItems": 2,
        },
        "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "byte", "maxLength": 5}]},
        "more": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["minimum"],
    "$defs": {"any": True, "open": {"type": "object", "properties": {}, "additionalProperties": True}},
}
SCHEMA_OF_ANTHROPIC = {
    "type": "object",
    "properties": {
        "minimum": {"type": "integer", "description": "How much. (minimum: 1, maximum: 9)"},
        "tags": {
            "type": "array",
            "items": {"type": "object", "properties": {"format": {"type": "null"}}, "additionalProperties": False},
            "description": "(minItems: 2)",
        },
        "when": {
            "anyOf": [
                {"type": "string", "format": "date"},
                {"type": "string", "description": "(format: byte, maxLength: 5)"},
            ]
        },
        "more": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["minimum"],
    "$defs": {"any": True, "open": {"type": "object", "properties": {}, "additionalProperties": True}},
    "additionalProperties": False,
}


@requirement("llm.tool-calls")
def test_a_call_without_an_id_gets_one_that_no_other_has() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return {"index": index, "function": {"name": "f", "arguments": "{"}, **fields}

    whole = {"choices": [{"message": {"tool_calls": [call(0), call(1), call(2, id="own")]}}]}
    ids = [one.id for one in openai.parse_reply(json.dumps(whole).encode(), "m").tool_calls]
    reader, builder = openai.stream_reader(), ReplyBuilder()
    for calls in ([call(0), call(1)], [call(0, id="late"), call(2, id="own")], [call(1), call(2, id="own")]):
        for delta in reader.read("", json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode()):
            builder.add(delta)
            ids += [part.id for part in delta.tool_calls if part.id]
    assert (len(ids), len(set(ids)), ids.count("own")) == (6, 5, 2), "clients join the ids of a call's parts"
    assert [one.id for one in builder.build("m").tool_calls] == ids[3:]


@requirement("llm.tool-calls")
def test_calls_of_a_stream_are_told_apart_by_their_ids_where_all_have_one_index() -> None:
    """Google's compatible API and some proxies give each call of a stream the index 0."""

    def call(id_: str, name: str, arguments: str, index: int | None = 0) -> dict[str, Any]:
        return {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}

    reader, builder = openai.stream_reader(), ReplyBuilder()
    begun = []
    for calls in (
        [call("a", "f", '{"n":'), call("b", "g", "{")],
        [call("", "", "}")],
        [call("c", "h", "[", 1), call("c", "h", "]", 1)],
        [call("late", "", " ", 1)],
    ):
        for delta in reader.read("", json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode()):
            builder.add(delta)
            begun += [part.id for part in delta.tool_calls if part.id]
    assert begun == ["a", "b", "c"]
    assert builder.build("m").tool_calls == (
        ToolCall("a", "f", '{"n":'),
        ToolCall("b", "g", "{}"),
        ToolCall("c", "h", "[] "),
    )


@requirement("llm.tool-calls")
def test_a_schema_goes_to_anthropic_without_what_it_refuses() -> None:
    tools = tuple(ToolDefinition("f", parameters=SCHEMA_OF_OPENAI, strict=strict) for strict in (True, None))
    wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA_OF_OPENAI}}
    asked = ChatRequest("m", (LlmMessage("user", (TextPart("x"),)),), tools=tools, response_format=wrapped)
    body = anthropic.build_chat_request(asked, ProviderQuirks(), stream=False).body
    assert body["output_config"]["format"]["schema"] == SCHEMA_OF_ANTHROPIC
    assert [tool["input_schema"] for tool in body["tools"]] == [SCHEMA_OF_ANTHROPIC, SCHEMA_OF_OPENAI]


@pytest.mark.parametrize(
    ("temperature", "top_p", "sent"),
    [
        (None, None, {}),
        (0.0, 0.9, {"temperature": 0.0}),
        (1.5, None, {"temperature": 1}),
        (1.0, 0.9, {"top_p": 0.9}),
        (None, 0.9, {"top_p": 0.9}),
    ],
)
def test_of_temperature_and_top_p_anthropic_gets_one_in_its_range(
    temperature: float | None, top_p: float | None, sent: dict[str, float]
) -> None:
    asked = ChatRequest("m", (ASKED,), temperature=temperature, top_p=top_p)
    body = anthropic.build_chat_request(asked, ProviderQuirks(), stream=False).body
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == sent


@pytest.mark.parametrize(("stop", "sent"), [(("\n", "END", " "), ["END"]), (("\n\n",), None)])
def test_a_stop_of_whitespace_does_not_go_to_anthropic(stop: tuple[str, ...], sent: list[str] | None) -> None:
    body = anthropic.build_chat_request(ChatRequest("m", (ASKED,), stop=stop), ProviderQuirks(), stream=False).body
    assert body.get("stop_sequences") == sent


@pytest.mark.parametrize("provider", [anthropic, gemini])
def test_a_response_format_that_a_provider_does_not_have_is_refused(provider: Any) -> None:
    grammar = {"type": "grammar", "grammar": "root ::= 'yes'"}
    asked = ChatRequest("m", (LlmMessage("user", (TextPart("x"),)),), response_format=grammar)
    with pytest.raises(InvalidRequest, match="does not support this type of response_format"):
        provider.build_chat_request(asked, ProviderQuirks(), stream=False)


def test_an_id_of_a_call_that_anthropic_refuses_is_replaced_in_the_call_and_its_result() -> None:
    ids = ["functions.f:0", "functions_f_0", "toolu_1-a"]
    calls = tuple(ToolCall(id_, "f", "{}") for id_ in ids)
    results = [LlmMessage("tool", (TextPart("x"),), tool_call_id=id_) for id_ in ids]
    said = (ASKED, LlmMessage("assistant", (), calls), *results)
    turns = anthropic.build_chat_request(ChatRequest("m", said), ProviderQuirks(), stream=False).body["messages"]
    sent = [block["id"] for block in turns[1]["content"]]
    assert sent == [block["tool_use_id"] for block in turns[2]["content"]]
    assert sent[1:] == ids[1:]
    assert re.fullmatch("functions_f_0_[0-9a-f]{8}", sent[0])


@requirement("llm.images")
@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        ("data:image/jpg;base64,QUJD", "image/jpeg"),
        ("data:image/PNG;charset=utf-8;base64,QUJD", "image/png"),
        ("data:;base64,QUJD", "image/png"),
    ],
)
def test_the_media_type_of_an_image_is_the_registered_one(url: str, media_type: str) -> None:
    part = ImagePart.from_url(url)
    assert (part.media_type, part.data, part.as_url) == (media_type, "QUJD", f"data:{media_type};base64,QUJD")


@requirement("llm.reasoning-fallback")
def test_an_answer_of_anthropic_without_its_reasoning_text_gets_the_note_too() -> None:
    usage = {"input_tokens": 5, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 9}}
    body = {"content": [{"type": "thinking", "thinking": ""}], "stop_reason": "max_tokens", "usage": usage}
    reply = with_reasoning_fallback(anthropic.parse_reply(msgspec.json.encode(body), "m"))
    assert reply.content == TRUNCATION_NOTE
    reader = anthropic.stream_reader()
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5}}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": usage},
    ]
    deltas = [delta for event in events for delta in reader.read("", msgspec.json.encode(event))]
    assert deltas[-1].usage == reply.usage == TokenUsage(5, 9, 9)


def test_a_model_name_cannot_leave_its_place_in_a_path() -> None:
    asked = ChatRequest("../../admin?x=1#", (LlmMessage("user", (TextPart("x"),)),))
    assert (
        gemini.build_chat_request(asked, ProviderQuirks(), stream=False).path
        == "/v1beta/models/..%2F..%2Fadmin%3Fx%3D1%23:generateContent"
    )


def test_estimates_grow_with_the_text_and_count_images() -> None:
    assert estimate_tokens("abcdefgh") == 2
    assert estimate_tokens("日本") == 2
    plain = ChatRequest("m", (LlmMessage("user", (TextPart("x" * 400),)),))
    assert 100 <= estimate_input_tokens(plain) <= 110
    image = LlmMessage("user", (ImagePart(url="https://example.com/a.png"),))
    seen = msgspec.structs.replace(plain, messages=(*plain.messages, image))
    assert estimate_input_tokens(seen) > estimate_input_tokens(plain) + 500
