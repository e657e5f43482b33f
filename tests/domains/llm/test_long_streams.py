"""Streams of providers that are made to keep the service busy: their cost grows no faster than their length."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stentor.core import jsontext
from stentor.domains.llm.anthropic_api.messages_output import MessageEvents
from stentor.domains.llm.formats import FORMATS
from stentor.domains.llm.model import MAX_TOOL_CALLS, ReplyDelta, ToolCallDelta
from stentor.domains.llm.openai_api.responses_output import ResponseBuilder
from stentor.domains.llm.providers.backends import MAX_KEPT_DELTAS, _HttpDeltaSource
from stentor.domains.llm.providers.transport import CallEvidence
from stentor.domains.llm.streamed import ReplyBuilder
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_openai_surface import MODELS
from tests.domains.llm.upstream import Upstream, raw, sse
from tests.requirements import requirement

BEGUN = ReplyDelta(tool_calls=(ToolCallDelta(0, "a", "f", '{"n": ['),))


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by one with each JSON text that is decoded."""
    checks: list[None] = []

    def counted(decode: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any) -> Any:
            checks.append(None)
            return decode(*args)

        return work

    monkeypatch.setattr(jsontext, "decode_or_none", counted(jsontext.decode_or_none))
    monkeypatch.setattr(json, "loads", counted(json.loads))
    return checks


@requirement("llm.tool-calls")
def test_arguments_that_are_never_complete_are_not_decoded_again_for_each_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = count_checks(monkeypatch)
    messages = MessageEvents("1", "m", shows_thinking=True)
    sent = list(messages.delta_events(BEGUN))
    for _ in range(200):
        sent += messages.delta_events(ReplyDelta(reasoning="a", content="b"))
    assert len(checks) <= 50
    sent += messages.delta_events(ReplyDelta(tool_calls=(ToolCallDelta(0, arguments="1]}"),)))
    sent += messages.delta_events(ReplyDelta(finish="stop", is_last=True))
    started = [event["index"] for event in sent if event["type"] == "content_block_start"]
    stopped = [event["index"] for event in sent if event["type"] == "content_block_stop"]
    assert started == list(range(401))
    assert sorted(stopped) == started
    assert sent[-2]["delta"]["stop_reason"] == "tool_use"


@requirement("llm.tool-calls")
def test_items_of_a_response_are_not_decoded_again_for_each_item(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = count_checks(monkeypatch)
    builder = ResponseBuilder(cast(Any, SimpleNamespace(echoed_fields={}, namespaced={})), "1", "m", time.time)
    sent = list(builder.delta_events(BEGUN))
    for index in range(1, 200):
        sent += builder.delta_events(ReplyDelta(tool_calls=(ToolCallDelta(index, f"c{index}", "f", "{}"),)))
    assert len(checks) <= 250
    assert sum(event["type"] == "response.output_item.done" for event in sent) == 198


@requirement("llm.tool-calls")
def test_many_parts_of_arguments_are_joined_in_time_linear_in_their_length() -> None:
    """In quadratic time, in which nothing else would run, it would take minutes."""
    builder, part = ReplyBuilder(), ReplyDelta(tool_calls=(ToolCallDelta(0, arguments="1"),))
    begun_at = time.process_time()
    builder.add(ReplyDelta(tool_calls=(ToolCallDelta(0, "a", "f", "1" * 2**23),)))
    for _ in range(200_000):
        builder.add(part)
    (call,) = builder.build("m").tool_calls
    assert (call.id, call.name, len(call.arguments)) == ("a", "f", 2**23 + 200_000)
    assert time.process_time() - begun_at < 60


@requirement("llm.tool-calls")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_stream_with_too_many_calls_is_ended_with_an_error(
    make_llm: Gate, upstream: Upstream, path: str
) -> None:
    world = await make_llm()
    calls = [
        {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": "{}"}}
        for index in range(MAX_TOOL_CALLS + 1)
    ]
    delta = {"choices": [{"delta": {"content": "Well"}}]}
    upstream.mood = raw(sse(delta) + sse({"choices": [{"delta": {"tool_calls": calls}}]}), "text/event-stream")
    body: dict[str, Any] = {"model": MODELS[0], "stream": True}
    asked = [{"role": "user", "content": "Go"}]
    body |= {"input": asked} if path == "/v1/responses" else {"messages": asked, "max_tokens": 9}
    answer = await world.admin.post(path, json=body)
    assert answer.status_code == 200
    assert "c1000" not in answer.text
    assert "The stream was interrupted: the provider failed." in answer.text


@requirement("llm.stream")
async def test_events_without_a_part_of_the_reply_are_not_kept_without_limit() -> None:
    read: list[None] = []

    class Endless:
        async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
            while len(read) < 3 * MAX_KEPT_DELTAS:
                read.append(None)
                yield "", b"{}"
            yield "", b'{"choices": [{"delta": {"content": "Yes"}, "finish_reason": "stop"}]}'

        def close(self) -> None:
            pass

    evidence = CallEvidence(keep_content=False, tenant="default")
    reader = FORMATS["openai"].stream_reader()
    source = _HttpDeltaSource(cast(Any, Endless()), reader, evidence, cast(Any, None), one_call=False)
    await source.wait_for_output()
    assert len(read) == MAX_KEPT_DELTAS
    assert "".join([delta.content async for delta in source]) == "Yes"
