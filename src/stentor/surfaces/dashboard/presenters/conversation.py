"""Prompts and answers of models as messages, from the JSON of OpenAI, Anthropic or Gemini, or of a stored stream.

Never raises: unknown content becomes a part of kind `other`, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject

MAX_MESSAGES = 200
"""The last ones of a longer conversation are shown."""
_MESSAGE_LISTS = ("messages", "contents", "input")
_NOT_OPTIONS = {*_MESSAGE_LISTS, "system", "systemInstruction", "tools", "model", "stream", "stream_options"}
_ROLES = {"model": "assistant", "developer": "system", "function": "tool"}


class Part(msgspec.Struct, frozen=True):
    """A part of a message. `kind` is text, reasoning, call (of a tool, `name`), result (of a tool), file or other."""

    kind: str
    text: str
    name: str = ""


class Message(msgspec.Struct, frozen=True):
    role: str
    parts: list[Part]


class Conversation(msgspec.Struct, frozen=True):
    """`options` are the other fields of a request, such as the temperature. `omitted` messages are not shown."""

    messages: list[Message]
    tools: list[str] = []
    options: JsonObject = {}
    omitted: int = 0


def read_request(text: str) -> Conversation | None:
    """Return the messages of a request; None if it is not a request for text."""
    body = jsontext.decode_or_none(text.encode())
    if not isinstance(body, dict):
        return None
    items = next((body[name] for name in _MESSAGE_LISTS if isinstance(body.get(name), list)), None)
    if items is None or not all(isinstance(item, dict) for item in items):
        return None
    system = body.get("system") or body.get("systemInstruction")
    messages = [_message({"role": "system", "content": system})] if system else []
    messages += [_message(item) for item in items[-MAX_MESSAGES:]]
    options = {name: value for name, value in body.items() if name not in _NOT_OPTIONS}
    return Conversation(messages, list(_tool_names(body.get("tools"))), options, max(0, len(items) - MAX_MESSAGES))


def read_response(text: str) -> Conversation | None:
    """Return the answer of a model as messages; None if it is not one."""
    body = jsontext.decode_or_none(text.encode())
    if not isinstance(body, dict):
        return None
    choices = body.get("choices") or body.get("candidates")
    items = [choice.get("message") or choice.get("content") for choice in _objects(choices)]
    if not items and "content" in body:
        items = [body]
    messages = [_message({"role": "assistant", **item}) for item in _objects(items)]
    return Conversation(messages) if messages else None


def read_message(value: Any) -> Message | None:
    """Return a value as a message; None if it is not one."""
    return _message(value) if isinstance(value, dict) and isinstance(value.get("role"), str) else None


def _message(item: JsonObject) -> Message:
    role = str(item.get("role", "user"))
    parts = [Part("reasoning", text) for name in ("reasoning", "reasoning_content") if (text := _text(item.get(name)))]
    content = item.get("content", item.get("parts"))
    parts += _parts(content)
    # In OpenAI's format the whole message is the result; the others have a part for it.
    if role in ("tool", "function"):
        parts = [Part("result", part.text, _text(item.get("tool_call_id"))) for part in parts]
    for _, function in called_functions(item):
        parts.append(Part("call", _pretty(function.get("arguments")), _text(function.get("name"))))
    return Message(_ROLES.get(role, role), parts)


def called_functions(message: JsonObject) -> Iterator[tuple[Any, JsonObject]]:
    """Yield the id and the function of each tool call of a message."""
    for call in _objects(message.get("tool_calls")):
        if isinstance(function := call.get("function"), dict):
            yield call.get("id"), function


def _parts(content: Any) -> list[Part]:
    if isinstance(content, dict) and "parts" in content:
        content = content["parts"]
    if isinstance(content, str):
        return [Part("text", content)] if content else []
    items = content if isinstance(content, list) else [content]
    return [_part(item) for item in items if item is not None]


def _part(item: Any) -> Part:
    if not isinstance(item, dict):
        return Part("text", _text(item)) if isinstance(item, str) else Part("other", _pretty(item))
    if isinstance(item.get("text"), str):
        return Part("reasoning" if item.get("thought") else "text", item["text"])
    if isinstance(item.get("thinking"), str):
        return Part("reasoning", item["thinking"])
    for name in ("functionCall", "functionResponse"):
        if isinstance(inner := item.get(name), dict):
            kind, field = ("call", "args") if name == "functionCall" else ("result", "response")
            return Part(kind, _pretty(inner.get(field)), _text(inner.get("name")))
    if item.get("type") == "tool_use":
        return Part("call", _pretty(item.get("input")), _text(item.get("name")))
    if item.get("type") == "tool_result":
        text = "\n".join(part.text for part in _parts(item.get("content")))
        return Part("result", text, _text(item.get("tool_use_id")))
    return Part("file", text) if (text := _file(item)) else Part("other", _pretty(item))


def _file(item: JsonObject) -> str:
    """Return the description or the address of an image or another file; empty if the part is not a file."""
    holder = item.get("image_url") or item.get("source") or item.get("inlineData") or item.get("fileData")
    if not isinstance(holder, dict):
        return _text(holder)
    return _text(next((holder[name] for name in ("url", "data", "fileUri") if name in holder), ""))


def _tool_names(tools: Any) -> Iterator[str]:
    for tool in _objects(tools):
        for declared in _objects(tool.get("functionDeclarations")) or [tool.get("function") or tool]:
            if isinstance(declared, dict):
                yield _text(declared.get("name") or declared.get("type"))


def _objects(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _pretty(value: Any) -> str:
    """Return a value as indented JSON; so too JSON in a text, such as the arguments of a call."""
    decoded = jsontext.decode_or_none(value.encode()) if isinstance(value, str) else value
    if isinstance(value, str) and not isinstance(decoded, (dict, list)):
        return value
    return msgspec.json.format(jsontext.encode(decoded), indent=2).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
