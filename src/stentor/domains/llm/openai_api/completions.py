"""Answers in OpenAI's dialect: chat completions, text completions, embeddings. Pure; times in seconds."""

from __future__ import annotations

import array
import base64
import sys
from typing import Any

import msgspec

from stentor.domains.llm.formats.openai import encode_tool_call
from stentor.domains.llm.model import ChatReply, ReplyDelta, TokenUsage, ToolCallDelta
from stentor.domains.llm.service import AgentTaskRef, ChatResult, EmbeddingResult, ModelChoice


def usage_object(counted: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": counted.input_tokens,
        "completion_tokens": counted.output_tokens,
        "total_tokens": counted.input_tokens + counted.output_tokens,
        "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
    }


def chat_completion(done: ChatResult, created: int) -> dict[str, Any]:
    reply = done.reply
    choice = {"index": 0, "message": _message(reply), "logprobs": None, "finish_reason": reply.finish}
    return {
        "id": f"chatcmpl-{done.provenance_id}",
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [choice],
        "usage": usage_object(done.usage),
        **stentor_extension(done.agent_task or done.choice),
    }


def text_completion(done: ChatResult, created: int) -> dict[str, Any]:
    choice = {"index": 0, "text": done.reply.content, "logprobs": None, "finish_reason": _plain(done.reply.finish)}
    return {
        "id": f"cmpl-{done.provenance_id}",
        "object": "text_completion",
        "created": created,
        "model": done.reply.model,
        "choices": [choice],
        "usage": usage_object(done.usage),
    }


class ChatChunks:
    """The frames of one streamed chat completion."""

    def __init__(
        self, provenance_id: str, model: str, created: int, about: AgentTaskRef | ModelChoice | None = None
    ) -> None:
        self._head = {
            **stentor_extension(about),
            "id": f"chatcmpl-{provenance_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def first_chunk(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def delta_chunk(self, delta: ReplyDelta) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if delta.content:
            out["content"] = delta.content
        if delta.reasoning:
            out["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            out["tool_calls"] = [_tool_delta(part) for part in delta.tool_calls]
        return self._chunk(out)

    def last_chunk(self, finish: str) -> dict[str, Any]:
        return self._chunk({}, finish)

    def usage_chunk(self, count: TokenUsage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage_object(count)}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


class TextChunks:
    """The frames of one streamed text completion."""

    def __init__(self, provenance_id: str, model: str, created: int) -> None:
        self._head = {"id": f"cmpl-{provenance_id}", "object": "text_completion", "created": created, "model": model}

    def first_chunk(self) -> dict[str, Any]:
        return self._chunk("")

    def delta_chunk(self, delta: ReplyDelta) -> dict[str, Any]:
        return self._chunk(delta.content)

    def last_chunk(self, finish: str) -> dict[str, Any]:
        return self._chunk("", _plain(finish))

    def usage_chunk(self, count: TokenUsage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage_object(count)}

    def _chunk(self, text: str, finish: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}


def embedding_list(made: EmbeddingResult, encoding: str) -> dict[str, Any]:
    rows = [
        {"object": "embedding", "index": at, "embedding": _packed(vector) if encoding == "base64" else vector}
        for at, vector in enumerate(made.reply.vectors)
    ]
    count = {"prompt_tokens": made.usage.input_tokens, "total_tokens": made.usage.input_tokens}
    return {"object": "list", "data": rows, "model": made.reply.model, "usage": count}


def model_object(id_: str, owner: str) -> dict[str, Any]:
    return {"id": id_, "object": "model", "created": 0, "owned_by": owner}


def stentor_extension(about: AgentTaskRef | ModelChoice | None) -> dict[str, Any]:
    """Which agent answered, and its task, or why this model; OpenAI's clients keep fields that they do not know."""
    return {"stentor": msgspec.to_builtins(about)} if about else {}


def _message(reply: ChatReply) -> dict[str, Any]:
    out: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content or (None if reply.tool_calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if reply.reasoning:
        out["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        out["tool_calls"] = [encode_tool_call(call) for call in reply.tool_calls]
    return out


def _tool_delta(part: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": part.arguments}
    out: dict[str, Any] = {"index": part.index, "function": function}
    if part.id:
        out |= {"id": part.id, "type": "function"}
    if part.name:
        function["name"] = part.name
    if part.signature:
        out["extra_content"] = {"google": {"thought_signature": part.signature}}
    return out


def _plain(finish: str) -> str:
    return "stop" if finish == "tool_calls" else finish


def _packed(vector: list[float]) -> str:
    """Little-endian 32-bit floats in base64."""
    packed = array.array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
