"""Prompts and answers as messages, whatever the format of the provider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.llm.formats import FORMATS
from stentor.domains.llm.formats.base import FormatName
from stentor.domains.llm.model import ChatRequest, ImagePart, LlmMessage, TextPart, ToolCall, ToolDefinition
from stentor.domains.llm.providers import Provider
from stentor.surfaces.dashboard.presenters.conversation import read_request, read_response

REQUEST = ChatRequest(
    "sea",
    (
        LlmMessage("system", (TextPart("Be brief."),)),
        LlmMessage("user", (TextPart("What is it?"), ImagePart(url="https://example.com/a.png"))),
        LlmMessage("assistant", (TextPart("I look."),), (ToolCall("c1", "look", '{"at": "sea"}'),)),
        LlmMessage("tool", (TextPart("It is blue."),), tool_call_id="c1"),
    ),
    temperature=0.5,
    tools=(ToolDefinition("look", "Looks.", {"type": "object", "properties": {}}),),
)


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
def test_a_request_of_each_format_is_shown_as_messages(name: FormatName) -> None:
    quirks = Provider("acme", name, "https://example.com", "").quirks
    body = FORMATS[name].build_chat_request(REQUEST, quirks, stream=False).body
    conversation = read_request(json.dumps(body))
    assert conversation is not None
    assert [message.role for message in conversation.messages][:3] == ["system", "user", "assistant"]
    parts = [part for message in conversation.messages for part in message.parts]
    assert [(part.kind, part.text) for part in parts[:2]] == [("text", "Be brief."), ("text", "What is it?")]
    assert {part.kind for part in parts} == {"text", "file", "call", "result"}
    call = next(part for part in parts if part.kind == "call")
    assert (call.name, json.loads(call.text)) == ("look", {"at": "sea"})
    assert "It is blue." in next(part for part in parts if part.kind == "result").text
    assert conversation.tools == ["look"]
    assert "0.5" in str(conversation.options)


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"role": "assistant", "content": "Blue.", "reasoning_content": "Hm."}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Blue."}]},
        {"candidates": [{"content": {"parts": [{"text": "Hm.", "thought": True}, {"text": "Blue."}]}}]},
        {"role": "assistant", "content": "Blue.", "reasoning": "Hm.", "tool_calls": []},
    ],
)
def test_an_answer_of_each_format_is_shown_as_a_message(body: Any) -> None:
    conversation = read_response(json.dumps(body))
    assert conversation is not None
    (message,) = conversation.messages
    assert message.role in ("assistant", "model")
    assert [(part.kind, part.text) for part in message.parts] == [("reasoning", "Hm."), ("text", "Blue.")]


FIELDS = (
    "messages contents content parts role tool_calls function choices message candidates text type source functionCall "
    "system tools arguments name"
).split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_other_json_does_no_harm(value: Any) -> None:
    text = json.dumps(value)
    read_request(text)
    read_response(text)
