"""Replies of chat completions in OpenAI's format, whole and as chunks of a stream. No I/O. Times are Unix seconds."""

from __future__ import annotations

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.openai_messages import encode_tool_call
from stentor.domains.llm.model import ChatReply, ReplyDelta, TokenUsage, ToolCallDelta
from stentor.domains.llm.results import AgentTaskRef, ChatResult, ModelChoice

NO_USAGE_YET: JsonObject = {"usage": None}
"""The field that all chunks but the last one have if the client asks for the usage."""


def chat_completion(result: ChatResult, created: int) -> JsonObject:
    reply = result.reply
    choice = {"index": 0, "message": _message(reply), "logprobs": reply.logprobs, "finish_reason": reply.finish}
    return {
        "id": f"chatcmpl-{result.provenance_id}",
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [choice],
        "usage": usage_object(result.usage),
        **reply.completion,
        **stentor_extension(result.agent_task or result.choice),
    }


class ChatChunks:
    """Chunks of one streamed chat completion."""

    def __init__(
        self,
        provenance_id: str,
        model: str,
        created: int,
        origin: AgentTaskRef | ModelChoice | None = None,
        *,
        usage: bool = False,
    ) -> None:
        self._head = {
            **stentor_extension(origin),
            **(NO_USAGE_YET if usage else {}),
            "id": f"chatcmpl-{provenance_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def first_chunk(self) -> JsonObject:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def delta_chunk(self, delta: ReplyDelta) -> JsonObject:
        out: JsonObject = {}
        if delta.completion:
            # Also of the chunks that follow, as OpenAI's own.
            self._head |= delta.completion
        if delta.content:
            out["refusal" if delta.is_refusal else "content"] = delta.content
        if delta.reasoning:
            out["reasoning_content"] = delta.reasoning
        out |= delta.extra
        if delta.tool_calls:
            out["tool_calls"] = [_tool_call_delta(call) for call in delta.tool_calls]
        return self._chunk(out, logprobs=delta.logprobs)

    def last_chunk(self, finish: str) -> JsonObject:
        return self._chunk({}, finish)

    def usage_chunk(self, usage: TokenUsage) -> JsonObject:
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def _chunk(self, delta: JsonObject, finish: str | None = None, logprobs: JsonObject | None = None) -> JsonObject:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}


def usage_object(usage: TokenUsage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "audio_tokens": usage.audio_input_tokens,
            **({"cache_write_tokens": usage.written_tokens} if usage.written_tokens else {}),
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": usage.audio_output_tokens,
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }


def stentor_extension(origin: AgentTaskRef | ModelChoice | None) -> JsonObject:
    """Return a field with the agent and its task, or with the reason for the model; OpenAI's clients keep it."""
    return {"stentor": msgspec.to_builtins(origin)} if origin else {}


def _message(reply: ChatReply) -> JsonObject:
    out: JsonObject = {
        "role": "assistant",
        # OpenAI sends null, not an empty string, with tool calls.
        "content": None if reply.is_refusal else reply.content or (None if reply.tool_calls else ""),
        # Its SDK parses any content by the JSON schema of the request, and fails if that is a refusal.
        "refusal": reply.content if reply.is_refusal else None,
        "annotations": [],
        **reply.extra,
    }
    if reply.reasoning:
        out["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        out["tool_calls"] = [encode_tool_call(call) for call in reply.tool_calls]
    return out


def _tool_call_delta(call: ToolCallDelta) -> JsonObject:
    function: JsonObject = {"arguments": call.arguments}
    out: JsonObject = {"index": call.index, "function": function}
    if call.id:
        out |= {"id": call.id, "type": "function"}
    if call.name:
        function["name"] = call.name
    if call.signature:
        out["extra_content"] = {"google": {"thought_signature": call.signature}}
    return out
