"""Text completions and embeddings in OpenAI's format: requests, replies, and the chunks of a stream. No I/O.

Times are Unix seconds.
"""

from __future__ import annotations

import array
import base64
import sys
from typing import Annotated, Literal, cast

from pydantic import Field

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import ChatRequest, EmbeddingInput, LlmMessage, ReplyDelta, TextPart, TokenUsage
from stentor.domains.llm.openai_api.chat import (
    CompletionIn,
    ExactlyOne,
    Items,
    OpenAiModel,
    Unsupported,
    as_strings,
    passthrough_fields,
)
from stentor.domains.llm.openai_api.chat_output import NO_USAGE_YET, usage_object
from stentor.domains.llm.results import ChatResult, EmbeddingResult
from stentor.web.wire import Name


class TextCompletionIn(CompletionIn):
    prompt: str | Items[str]
    best_of: ExactlyOne = None
    logprobs: Unsupported = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    def to_request(self, raw: JsonObject) -> ChatRequest:
        prompts = as_strings(self.prompt)
        if len(prompts) != 1:
            raise InvalidRequest(
                "A request must have exactly one prompt.", {"fields": {"prompt": "must be one string"}}
            )
        return ChatRequest(
            self.model,
            (LlmMessage("user", (TextPart(prompts[0]),)),),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=as_strings(self.stop),
            seed=self.seed,
            extra=passthrough_fields(raw),
        )


_INPUT_LIMITS = Field(min_length=1, max_length=2048)
TextListIn = Annotated[Items[Annotated[str, Field(min_length=1)]], _INPUT_LIMITS]
TokenIdsIn = Annotated[Items[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]


class EmbeddingIn(OpenAiModel):
    model: Name
    input: Annotated[str, Field(min_length=1)] | TextListIn | TokenIdsIn | Annotated[Items[TokenIdsIn], _INPUT_LIMITS]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None

    @property
    def inputs(self) -> list[EmbeddingInput]:
        """The inputs as a list; a list of numbers is the token ids of one text."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [tuple(self.input)]
        return [item if isinstance(item, str) else tuple(item) for item in cast(list[str | list[int]], self.input)]


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


class TextChunks:
    """Chunks of one streamed text completion."""

    def __init__(self, provenance_id: str, model: str, created: int, *, usage: bool = False) -> None:
        head = {"id": f"cmpl-{provenance_id}", "object": "text_completion", "created": created, "model": model}
        self._head: JsonObject = head | (NO_USAGE_YET if usage else {})

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


def _text_finish(finish: str) -> str:
    """Return the finish reason for a text completion, which cannot call tools."""
    return "stop" if finish == "tool_calls" else finish


def _encode_vector(vector: list[float]) -> str:
    """Encode a vector as little-endian 32-bit floats in base64."""
    packed = array.array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
