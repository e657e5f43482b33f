"""Replies of /v1/messages: the message, and the events of a stream. No I/O.

A provider of Anthropic's own format is passed on: only id and model are replaced. Other replies are built here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.base import decode_arguments
from stentor.domains.llm.model import FinishReason, ReplyDelta, TokenUsage, ToolCallDelta, encode_call_id
from stentor.domains.llm.openai_api.chat_output import stentor_extension
from stentor.domains.llm.results import AgentTaskRef, ChatResult, ModelChoice
from stentor.domains.llm.streamed import StreamedText

_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_BLOCK_EVENTS = frozenset(("content_block_start", "content_block_delta", "content_block_stop"))


def build_message(result: ChatResult, *, shows_thinking: bool) -> JsonObject:
    reply = result.reply
    head = _head(result.provenance_id, reply.model, result.agent_task or result.choice)
    if reply.anthropic_message is not None:
        return {**reply.anthropic_message, **head}
    content: list[JsonObject] = []
    if reply.reasoning and shows_thinking:
        content.append(_thinking_block(reply.reasoning))
    if reply.content:
        content.append({"type": "text", "text": reply.content})
    content += [
        _tool_block(encode_call_id(call.id, call.signature), call.name, decode_arguments(call.arguments))
        for call in reply.tool_calls
    ]
    stop = {"stop_reason": _stop_reason(reply.finish, is_calling=bool(reply.tool_calls)), "stop_sequence": None}
    return {**head, "content": content, **stop, "usage": _usage_object(result.usage)}


class MessageEvents:
    """Events of one streamed message; `delta_events` of the deltas in their order, the last one included."""

    def __init__(
        self,
        provenance_id: str,
        model: str,
        origin: AgentTaskRef | ModelChoice | None = None,
        *,
        shows_thinking: bool,
    ) -> None:
        self._head = _head(provenance_id, model, origin)
        self._id = provenance_id
        self._shows_thinking = shows_thinking
        self._is_started = False
        self._relayed_end: JsonObject | None = None
        """The provider's `message_delta`, which is sent once the call is recorded."""
        self._is_relay = False
        self._open_blocks: list[_OutputBlock] = []
        self._block_count = 0
        self._is_calling = False

    def delta_events(self, delta: ReplyDelta) -> Iterator[JsonObject]:
        if not self._is_started:
            self._is_started = True
            self._is_relay = delta.anthropic_event is not None
            yield {"type": "message_start", "message": self._first_message(delta.anthropic_event)}
        if delta.is_last:
            yield from self._last_events(delta)
        elif self._is_relay:
            yield from self._relayed_events(delta.anthropic_event or {})
        else:
            yield from self._built_events(delta)

    def _first_message(self, event: JsonObject | None) -> JsonObject:
        message = (event or {}).get("message")
        if isinstance(message, dict):
            return {**message, **self._head}
        # The input tokens are known only at the end: `message_delta` has them.
        empty = {"content": [], "stop_reason": None, "stop_sequence": None}
        return {**self._head, **empty, "usage": _usage_object(TokenUsage())}

    def _relayed_events(self, event: JsonObject) -> Iterator[JsonObject]:
        if event.get("type") in _BLOCK_EVENTS:
            yield event
        elif event.get("type") == "message_delta":
            self._relayed_end = event

    def _built_events(self, delta: ReplyDelta) -> Iterator[JsonObject]:
        if delta.reasoning and self._shows_thinking:
            yield from self._append("thinking", delta.reasoning, _thinking_block(""))
        if delta.content:
            yield from self._append("text", delta.content, {"type": "text", "text": ""})
        for call in delta.tool_calls:
            yield from self._append(call.index, call.arguments, self._call_block(call))

    def _call_block(self, call: ToolCallDelta) -> JsonObject:
        id_ = call.id or f"call_{self._id}_{call.index}"
        return _tool_block(encode_call_id(id_, call.signature), call.name, {})

    def _append(self, key: str | int, text: str, start: JsonObject) -> Iterator[JsonObject]:
        """Yield the events for the next text of a block, `start` among them if none with this key is open.

        A new block closes the earlier ones only if they are complete: some providers interleave the deltas of calls.
        """
        block = next((block for block in self._open_blocks if block.key == key), None)
        if block is None:
            earlier, self._open_blocks = self._open_blocks, []
            for other in earlier:
                if other.is_complete:
                    yield other.stop_event()
                else:
                    self._open_blocks.append(other)
            block = _OutputBlock(self._block_count, key)
            self._block_count += 1
            self._is_calling = self._is_calling or isinstance(key, int)
            self._open_blocks.append(block)
            yield {"type": "content_block_start", "index": block.index, "content_block": start}
        if text:
            yield block.append(text)

    def _last_events(self, delta: ReplyDelta) -> Iterator[JsonObject]:
        for block in self._open_blocks:
            yield block.stop_event()
        if self._relayed_end is not None:
            yield self._relayed_end
        else:
            reason = _stop_reason(delta.finish or "stop", is_calling=self._is_calling)
            stop = {"stop_reason": reason, "stop_sequence": None}
            usage = _usage_object(delta.usage or TokenUsage())
            yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}


class _OutputBlock:
    """One block of a message while it is streamed. `key` is its type, or the index of the call."""

    def __init__(self, index: int, key: str | int) -> None:
        self.index, self.key = index, key
        self._arguments = StreamedText()

    def append(self, text: str) -> JsonObject:
        if self.key == "text":
            delta = {"type": "text_delta", "text": text}
        elif self.key == "thinking":
            delta = {"type": "thinking_delta", "thinking": text}
        else:
            self._arguments.append(text)
            delta = {"type": "input_json_delta", "partial_json": text}
        return {"type": "content_block_delta", "index": self.index, "delta": delta}

    @property
    def is_complete(self) -> bool:
        """Whether another block may follow: a call's arguments must be complete JSON."""
        return not isinstance(self.key, int) or self._arguments.is_json

    def stop_event(self) -> JsonObject:
        return {"type": "content_block_stop", "index": self.index}


def _head(provenance_id: str, model: str, origin: AgentTaskRef | ModelChoice | None) -> JsonObject:
    head = {"id": f"msg_{provenance_id}", "type": "message", "role": "assistant", "model": model}
    return {**head, **stentor_extension(origin)}


def _thinking_block(text: str) -> JsonObject:
    # No signature, because the thinking of other providers has none. It is dropped when a client sends it back.
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_block(id_: str, name: str, arguments: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def _stop_reason(finish: FinishReason, *, is_calling: bool) -> str:
    # Some servers end a reply that calls tools with `stop`, and clients would then not run them.
    return "tool_use" if is_calling and finish == "stop" else _STOP_REASONS[finish]


def _usage_object(usage: TokenUsage) -> JsonObject:
    """Return the usage; Anthropic's `input_tokens` excludes those that were read from a cache."""
    counts: dict[str, Any] = {"input_tokens": max(0, usage.input_tokens - usage.cached_tokens)}
    counts |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached_tokens}
    return counts | {"output_tokens": usage.output_tokens}
