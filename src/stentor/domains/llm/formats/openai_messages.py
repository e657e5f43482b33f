"""Messages, tools and tool calls of a request in OpenAI's API format."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.base import ProviderQuirks, omit_none
from stentor.domains.llm.model import ContentPart, ImagePart, LlmMessage, OpenAiPart, TextPart, ToolCall, ToolDefinition

_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


def move_tool_images(messages: Sequence[LlmMessage]) -> list[LlmMessage]:
    """Return the messages with the images of tool results, which are text only, in a message of the user after them."""
    moved: list[LlmMessage] = []
    for role, run in groupby(messages, key=attrgetter("role")):
        group = list(run)
        images = tuple(p for m in group for p in m.content if isinstance(p, ImagePart)) if role == "tool" else ()
        if not images:
            moved += group
            continue
        for message in group:
            if any(isinstance(part, ImagePart) for part in message.content):
                text = TextPart(message.text or "The result is an image. It follows in a message of the user.")
                message = msgspec.structs.replace(message, content=(text,))
            moved.append(message)
        moved.append(LlmMessage("user", images))
    return moved


def encode_message(message: LlmMessage, model: str, quirks: ProviderQuirks) -> JsonObject:
    """Encode a message in OpenAI's format; mere text is a string, which every compatible server accepts."""
    texts = [part.text for part in message.content if isinstance(part, TextPart) and not part.extra]
    is_text = len(texts) == len(message.content)
    content: Any = "".join(texts) if is_text else [_encode_part(part) for part in message.content]
    out: JsonObject = {**message.extra, "role": message.role, "content": content}
    if message.tool_calls:
        calls = [_encode_request_call(call, model, quirks) for call in message.tool_calls]
        out |= {"tool_calls": calls, "content": content or None}
    if message.role == "tool":
        out["tool_call_id"] = _call_id(message.tool_call_id, quirks)
    if message.role == "assistant" and quirks.wants_reasoning:
        # Messages of other models and clients have none, but an empty or missing text is refused.
        out["reasoning_content"] = message.reasoning or " "
    return out


def _encode_request_call(call: ToolCall, model: str, quirks: ProviderQuirks) -> JsonObject:
    # By the model and not the host, since proxies have Gemini too. Of others, Mistral and Fireworks refuse the field.
    signature = call.signature if "gemini" in model.lower() else ""
    return encode_tool_call(msgspec.structs.replace(call, id=_call_id(call.id, quirks), signature=signature))


def _call_id(id_: str, quirks: ProviderQuirks) -> str:
    """Return the id of a call, or a short one derived from it if the server would refuse it."""
    if not quirks.short_call_ids or _SHORT_ID.fullmatch(id_):
        return id_
    return hashlib.sha256(id_.encode()).hexdigest()[:9]


def _encode_part(part: ContentPart) -> JsonObject:
    if isinstance(part, TextPart):
        return {**part.extra, "type": "text", "text": part.text}
    if isinstance(part, OpenAiPart):
        return {**part.extra, "type": part.type, part.type: part.fields}
    return {**part.extra, "type": "image_url", "image_url": omit_none(url=part.as_url, detail=part.detail or None)}


def encode_tool(tool: ToolDefinition) -> JsonObject:
    function = omit_none(
        name=tool.name, description=tool.description or None, parameters=tool.parameters, strict=tool.strict
    )
    return {**tool.extra, "type": "function", "function": function}


def encode_tool_call(call: ToolCall) -> JsonObject:
    """Encode a tool call in OpenAI's format, with Google's signature where Google's compatible API puts it."""
    encoded: JsonObject = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if call.signature:
        encoded["extra_content"] = {"google": {"thought_signature": call.signature}}
    return encoded
