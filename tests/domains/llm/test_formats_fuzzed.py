"""Whatever a provider sends, reading it ends in an answer or in a fault of the provider, never in another exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.core.errors import ProviderError
from stentor.domains.llm.formats import FORMATS
from stentor.domains.llm.formats.base import FormatName
from stentor.domains.llm.model import ChatReply, EmbeddingReply, ReplyDelta

ANSWERS: dict[FormatName, list[Any]] = {
    "openai": [
        {
            "id": "a",
            "choices": [
                {
                    "message": {
                        "content": "x",
                        "reasoning_content": "y",
                        "tool_calls": [{"id": "1", "index": 0, "function": {"name": "f", "arguments": "{}"}}],
                    },
                    "delta": {"content": [{"type": "text", "text": "x"}], "refusal": None},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
            "data": [{"index": 0, "embedding": [0.5], "id": "m"}],
        }
    ],
    "anthropic": [
        {
            "id": "a",
            "content": [{"type": "text", "text": "x"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1},
        },
        {"content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}], "data": [{"id": "m"}]},
        {"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "1", "name": "f"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x", "partial_json": "{"}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}},
    ],
    "gemini": [
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"text": "x", "thought": True},
                            {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s"},
                        ]
                    },
                    "finishReason": "STOP",
                }
            ],
            "promptFeedback": {"blockReason": "SAFETY"},
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "thoughtsTokenCount": 1},
            "embeddings": [{"values": [0.5]}],
            "models": [{"name": "models/m"}],
        }
    ],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def damaged(draw: Callable[[Any], Any], name: FormatName) -> bytes:
    """A right answer with up to three of its values replaced or taken out."""
    value = json.loads(json.dumps(draw(st.sampled_from(ANSWERS[name]))))
    for _ in range(draw(st.integers(0, 3))):
        place = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.booleans()):
                del place[key]
            else:
                place[key] = draw(JSON)
            break
    text = json.dumps(value).encode()
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_reading_never_fails_in_another_way(name: FormatName, data: st.DataObject) -> None:
    body = data.draw(damaged(name))
    form = FORMATS[name]
    reads: list[Callable[[], object]] = [
        lambda: form.parse_reply(body, "m"),
        lambda: form.stream_reader().read("", body),
        lambda: form.parse_embeddings(body, "m"),
        lambda: form.parse_models(body),
    ]
    for read in reads:
        try:
            found = read()
        except ProviderError:
            continue
        assert isinstance(found, (ChatReply, EmbeddingReply, list))
        for delta in found if isinstance(found, list) else ():
            assert isinstance(delta, ReplyDelta | str)
        if isinstance(found, ChatReply) and found.usage is not None:
            assert min(found.usage.input_tokens, found.usage.output_tokens) >= 0


@pytest.mark.parametrize("name", FORMATS)
def test_right_answers_are_read(name: FormatName) -> None:
    form = FORMATS[name]
    whole = form.parse_reply(json.dumps(ANSWERS[name][0]).encode(), "m")
    assert whole.usage is not None
    assert whole.usage.input_tokens == 1
    reader = form.stream_reader()
    events = [
        answer
        for answer in ANSWERS[name]
        if name != "anthropic" or answer.get("type", "").startswith(("message_", "content_"))
    ]
    assert all(reader.read("", json.dumps(answer).encode()) for answer in events)
