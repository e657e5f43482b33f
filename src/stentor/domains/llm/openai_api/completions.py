"""Build OpenAI-compatible responses: chat completions, text completions, embeddings and models.

No I/O; times are Unix seconds. Responses of /v1/responses are in `responses_output`.
"""

from __future__ import annotations

import array
import base64
import sys

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.openai import encode_tool_call
from stentor.domains.llm.model import ChatReply, ReplyDelta, TokenUsage, ToolCallDelta
from stentor.domains.llm.results import AgentTaskRef, ChatResult, EmbeddingResult, ModelChoice


def usage_object(usage: TokenUsage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def chat_completion(result: ChatResult, created: int) -> JsonObject:
    reply = result.reply
    choice = {"index": 0, "message": _message(reply), "logprobs": None, "finish_reason": reply.finish}
    return {
        "id": f"chatcmpl-{result.provenance_id}",
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [choice],
        "usage": usage_object(result.usage),
        **stentor_extension(result.agent_task or result.choice),
    }


def text_completion(result: ChatResult, created: int) -> JsonObject:
    reply = result.reply
    choice = {"index": 0, "text": reply.content, "logprobs": None, "finish_reason": _text_finish(reply.finish)}
    return {
        "id": f"cmpl-{result.provenance_id}",
        "object": "text_completion",
        "created": created,
        "model": reply.model,
        "choices": [choice],
        "usage": usage_object(result.usage),
    }


class ChatChunks:
    """Chunks of one streamed chat completion."""

    def __init__(
        self, provenance_id: str, model: str, created: int, origin: AgentTaskRef | ModelChoice | None = None
    ) -> None:
        self._head = {
            **stentor_extension(origin),
            "id": f"chatcmpl-{provenance_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def first_chunk(self) -> JsonObject:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def delta_chunk(self, delta: ReplyDelta) -> JsonObject:
        out: JsonObject = {}
        if delta.content:
            out["content"] = delta.content
        if delta.reasoning:
            out["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            out["tool_calls"] = [_tool_call_delta(call) for call in delta.tool_calls]
        return self._chunk(out)

    def last_chunk(self, finish: str) -> JsonObject:
        return self._chunk({}, finish)

    def usage_chunk(self, usage: TokenUsage) -> JsonObject:
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> JsonObject:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


class TextChunks:
    """Chunks of one streamed text completion."""

    def __init__(self, provenance_id: str, model: str, created: int) -> None:
        self._head = {"id": f"cmpl-{provenance_id}", "object": "text_completion", "created": created, "model": model}

    def first_chunk(self) -> JsonObject:
        return self._chunk("")

    def delta_chunk(self, delta: ReplyDelta) -> JsonObject:
        return self._chunk(delta.content)

    def last_chunk(self, finish: str) -> JsonObject:
        return self._chunk("", _text_finish(finish))

    def usage_chunk(self, usage: TokenUsage) -> JsonObject:
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def _chunk(self, text: str, finish: str | None = None) -> JsonObject:
        return {**self._head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}


def embedding_list(result: EmbeddingResult, encoding: str) -> JsonObject:
    rows = [
        {"object": "embedding", "index": index, "embedding": _encode_vector(vector) if encoding == "base64" else vector}
        for index, vector in enumerate(result.reply.vectors)
    ]
    usage = {"prompt_tokens": result.usage.input_tokens, "total_tokens": result.usage.input_tokens}
    return {"object": "list", "data": rows, "model": result.reply.model, "usage": usage}


def model_object(id_: str, owner: str) -> JsonObject:
    return {"id": id_, "object": "model", "created": 0, "owned_by": owner}


def stentor_extension(origin: AgentTaskRef | ModelChoice | None) -> JsonObject:
    """Return a field with the agent and its task, or with the reason for the model; OpenAI's clients keep it."""
    return {"stentor": msgspec.to_builtins(origin)} if origin else {}


def _message(reply: ChatReply) -> JsonObject:
    out: JsonObject = {
        "role": "assistant",
        # OpenAI sends null, not an empty string, beside tool calls.
        "content": reply.content or (None if reply.tool_calls else ""),
        "refusal": None,
        "annotations": [],
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


def _text_finish(finish: str) -> str:
    """Return the finish reason for a text completion, which cannot call tools."""
    return "stop" if finish == "tool_calls" else finish


def _encode_vector(vector: list[float]) -> str:
    """Encode a vector as little-endian 32-bit floats in base64."""
    packed = array.array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
