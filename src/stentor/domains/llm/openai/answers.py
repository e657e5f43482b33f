"""Answers in OpenAI's dialect: chat completions, text completions, embeddings. Pure; times in seconds."""

from __future__ import annotations

import array
import base64
import sys
from typing import Any

import msgspec

from stentor.domains.llm.formats.openai import call_out
from stentor.domains.llm.model import Delta, Reply, ToolDelta, Usage
from stentor.domains.llm.service import Choice, Done, Vectors, Work


def usage(counted: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": counted.input_tokens,
        "completion_tokens": counted.output_tokens,
        "total_tokens": counted.input_tokens + counted.output_tokens,
        "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
    }


def chat(done: Done, created: int) -> dict[str, Any]:
    reply = done.reply
    choice = {"index": 0, "message": _message(reply), "logprobs": None, "finish_reason": reply.finish}
    return {
        "id": f"chatcmpl-{done.provenance_id}",
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [choice],
        "usage": usage(done.usage),
        **ours(done.work or done.choice),
    }


def completion(done: Done, created: int) -> dict[str, Any]:
    choice = {"index": 0, "text": done.reply.content, "logprobs": None, "finish_reason": _plain(done.reply.finish)}
    return {
        "id": f"cmpl-{done.provenance_id}",
        "object": "text_completion",
        "created": created,
        "model": done.reply.model,
        "choices": [choice],
        "usage": usage(done.usage),
    }


class Chunks:
    """The frames of one streamed chat completion."""

    def __init__(self, provenance_id: str, model: str, created: int, about: Work | Choice | None = None) -> None:
        self._head = {
            **ours(about),
            "id": f"chatcmpl-{provenance_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def first(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def piece(self, delta: Delta) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if delta.content:
            out["content"] = delta.content
        if delta.reasoning:
            out["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            out["tool_calls"] = [_tool_delta(part) for part in delta.tool_calls]
        return self._chunk(out)

    def last(self, finish: str) -> dict[str, Any]:
        return self._chunk({}, finish)

    def counted(self, count: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage(count)}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


class TextChunks:
    """The frames of one streamed text completion."""

    def __init__(self, provenance_id: str, model: str, created: int) -> None:
        self._head = {"id": f"cmpl-{provenance_id}", "object": "text_completion", "created": created, "model": model}

    def first(self) -> dict[str, Any]:
        return self._chunk("")

    def piece(self, delta: Delta) -> dict[str, Any]:
        return self._chunk(delta.content)

    def last(self, finish: str) -> dict[str, Any]:
        return self._chunk("", _plain(finish))

    def counted(self, count: Usage) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": usage(count)}

    def _chunk(self, text: str, finish: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}


def embeddings(made: Vectors, encoding: str) -> dict[str, Any]:
    rows = [
        {"object": "embedding", "index": at, "embedding": _packed(vector) if encoding == "base64" else vector}
        for at, vector in enumerate(made.found.vectors)
    ]
    count = {"prompt_tokens": made.usage.input_tokens, "total_tokens": made.usage.input_tokens}
    return {"object": "list", "data": rows, "model": made.found.model, "usage": count}


def model(id_: str, owner: str) -> dict[str, Any]:
    return {"id": id_, "object": "model", "created": 0, "owned_by": owner}


def ours(about: Work | Choice | None) -> dict[str, Any]:
    """Which agent answered, and its task, or why this model; OpenAI's clients keep fields that they do not know."""
    return {"stentor": msgspec.to_builtins(about)} if about else {}


def _message(reply: Reply) -> dict[str, Any]:
    out: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content or (None if reply.tool_calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if reply.reasoning:
        out["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        out["tool_calls"] = [call_out(call) for call in reply.tool_calls]
    return out


def _tool_delta(part: ToolDelta) -> dict[str, Any]:
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
