"""Token counts of calls: estimates where a provider reports none, and limits on those that it reports. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import (
    ChatReply,
    ChatRequest,
    ContentPart,
    EmbeddingInput,
    ImagePart,
    TextPart,
    TokenUsage,
)

CHARACTERS_PER_TOKEN = 4
IMAGE_TOKENS = 1_000
"""The estimate for an image if the provider does not report usage."""
SOUND_CHARACTERS_PER_TOKEN = 1_000
"""The estimate for sound in base64: between those for compressed and plain samples."""
FILE_CHARACTERS_PER_TOKEN = 100
"""The estimate for a file in base64 that is not text, such as a PDF."""
MAX_COUNTED_TOKENS = 2**40
"""More tokens in a provider's report are its error; they are capped, because the record must still be stored."""


def estimate_tokens(text: str) -> int:
    """Estimate tokens: one per four ASCII characters, and one per other character."""
    ascii_length = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return math.ceil(ascii_length / CHARACTERS_PER_TOKEN) + len(text) - ascii_length


def estimate_input_tokens(request: ChatRequest) -> int:
    """Estimate the tokens of a request, with the fields that are only passed on: text in them costs the same."""
    total = estimate_fields(request.extra) + estimate_fields(request.response_format)
    for tool in request.tools:
        total += estimate_tokens(repr(tool.parameters) + tool.description) + estimate_fields(tool.extra)
    for message in request.messages:
        # Every message costs about three more tokens, for its role and its separators.
        total += 3 + sum(map(_estimate_part_tokens, message.content))
        total += sum(estimate_tokens(call.name + call.arguments) for call in message.tool_calls)
        if message.reasoning:
            total += estimate_tokens(message.reasoning)
        if message.extra:
            rest = {name: value for name, value in message.extra.items() if name not in ("images", "audio")}
            total += estimate_media_tokens(message.extra) + estimate_fields(rest)
    return total + (request.anthropic.other_tokens if request.anthropic is not None else 0)


def estimate_fields(fields: JsonObject | None) -> int:
    """Estimate the tokens of fields of unknown meaning; none if there are none."""
    return estimate_tokens(repr(fields)) if fields else 0


def _estimate_part_tokens(part: ContentPart) -> int:
    return _estimate_content_tokens(part) + estimate_fields(part.extra)


def _estimate_content_tokens(part: ContentPart) -> int:
    if isinstance(part, TextPart):
        return estimate_tokens(part.text)
    if isinstance(part, ImagePart):
        return IMAGE_TOKENS
    if part.type == "input_audio":
        return math.ceil(len(part.data) / SOUND_CHARACTERS_PER_TOKEN)
    name_tokens = estimate_tokens(str(part.fields.get("filename") or ""))
    if part.data.startswith("data:text/"):
        return name_tokens + math.ceil(len(part.data) * 3 / 4 / CHARACTERS_PER_TOKEN)
    return name_tokens + max(IMAGE_TOKENS, len(part.data) // FILE_CHARACTERS_PER_TOKEN)


def estimate_output_tokens(reply: ChatReply) -> int:
    return (
        estimate_tokens(reply.content)
        + estimate_tokens(reply.reasoning)
        + sum(estimate_tokens(c.arguments) for c in reply.tool_calls)
        + estimate_media_tokens(reply.extra)
        + reply.media_tokens
    )


def estimate_media_tokens(extra: JsonObject) -> int:
    """Estimate the tokens of the images and the sound of a reply."""
    images, audio = extra.get("images"), extra.get("audio")
    total = IMAGE_TOKENS * len(images) if isinstance(images, list) else 0
    if isinstance(audio, dict):
        total += math.ceil(len(str(audio.get("data") or "")) / SOUND_CHARACTERS_PER_TOKEN)
        total += estimate_tokens(str(audio.get("transcript") or ""))
    return total


def estimate_input_usage(request: ChatRequest) -> TokenUsage:
    """Estimate the cost of a request whose reply is lost."""
    return TokenUsage(estimate_input_tokens(request), estimated=True)


def usage_or_estimate(request: ChatRequest, reply: ChatReply) -> TokenUsage:
    """Return the usage that the provider reported, else an estimate marked as such.

    What it reported at the start of a stream is an estimate, too: the output is still missing. A count that is not
    positive counts as not reported, so that no provider makes budgets count nothing.
    """
    usage = reply.usage or estimate_input_usage(request)
    input_tokens, output_tokens = usage.input_tokens, usage.output_tokens
    if input_tokens <= 0:
        input_tokens = estimate_input_tokens(request)
    if output_tokens <= 0 or usage.estimated:
        output_tokens = max(output_tokens, estimate_output_tokens(reply))
    estimated = usage.estimated or (input_tokens, output_tokens) != (usage.input_tokens, usage.output_tokens)
    return limit_counts(
        msgspec.structs.replace(usage, input_tokens=input_tokens, output_tokens=output_tokens, estimated=estimated)
    )


def limit_counts(usage: TokenUsage) -> TokenUsage:
    """Return the usage with at most MAX_COUNTED_TOKENS, and no part that is negative or larger than the whole."""
    input_tokens = min(usage.input_tokens, MAX_COUNTED_TOKENS)
    output_tokens = min(usage.output_tokens, MAX_COUNTED_TOKENS)
    reasoning_tokens = max(0, min(usage.reasoning_tokens, output_tokens))
    cached_tokens = max(0, min(usage.cached_tokens, input_tokens))
    written_tokens = max(0, min(usage.written_tokens, input_tokens - cached_tokens))
    return TokenUsage(
        input_tokens,
        output_tokens,
        reasoning_tokens,
        cached_tokens,
        usage.estimated,
        written_tokens,
        max(0, min(usage.audio_input_tokens, input_tokens)),
        max(0, min(usage.audio_output_tokens, output_tokens)),
        max(0, min(usage.accepted_prediction_tokens, output_tokens)),
        max(0, min(usage.rejected_prediction_tokens, output_tokens)),
        max(0, min(usage.written_1h_tokens, written_tokens)),
    )


def estimate_embedding_usage(inputs: Sequence[EmbeddingInput]) -> TokenUsage:
    total = sum(estimate_tokens(item) if isinstance(item, str) else len(item) for item in inputs)
    return TokenUsage(total, estimated=True)
