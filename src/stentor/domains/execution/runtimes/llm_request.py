"""What a model was asked, as the journal keeps it: settings in plain text, everything else as digests.

A replay compares it with what the agent would ask now. What a run asked later is the same with recorded outcomes added.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import ChatRequest, LlmMessage

DIGEST_LENGTH = 16
"""Hexadecimal digits: enough to notice a change, and short in each run's log."""
_SETTINGS = ("max_tokens", "temperature", "top_p", "stop", "seed")


def describe(request: ChatRequest) -> JsonObject:
    """Describe a run's first request: `model`, `instructions`, `input`, `tools` by name, `schema` and `settings`."""
    system = [message for message in request.messages if message.role == "system"]
    others = [message for message in request.messages if message.role != "system"]
    schema = request.json_schema
    values = {name: getattr(request, name) for name in _SETTINGS} | {"stop": list(request.stop) or None}
    return {
        "model": request.model,
        "instructions": _digest([message.text for message in system]),
        "input": _digest([_describe_message(message) for message in others]),
        "tools": {tool.name: _digest([tool.description, tool.parameters]) for tool in request.tools},
        "schema": None if schema is None else _digest(schema),
        "settings": {name: value for name, value in values.items() if value is not None},
    }


def _describe_message(message: LlmMessage) -> JsonObject:
    # Without the reasoning, which is not part of the question and which earlier runs did not record.
    return {name: value for name, value in msgspec.to_builtins(message).items() if name != "reasoning"}


def compare(recorded: JsonObject, now: JsonObject) -> list[str]:
    """Return how the second request differs from the first, as sentences without a final period."""
    differences = []
    if recorded.get("model") != now["model"]:
        differences.append(f"model: {_model(recorded.get('model'))} before, {_model(now['model'])} now")
    if recorded.get("instructions") != now["instructions"]:
        differences.append("instructions changed")
    if recorded.get("input") != now["input"]:
        differences.append("input changed")
    differences += _compare_tools(_object(recorded.get("tools")), now["tools"])
    if recorded.get("schema") != now["schema"]:
        differences.append("output_schema changed")
    before, after = _object(recorded.get("settings")), now["settings"]
    for name in _SETTINGS:
        if before.get(name) != after.get(name):
            differences.append(f"{name}: {_setting(before.get(name))} before, {_setting(after.get(name))} now")
    return differences


def _compare_tools(before: JsonObject, now: JsonObject) -> list[str]:
    added, removed = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
    changed = sorted(name for name in now.keys() & before.keys() if now[name] != before[name])
    named = {"tools added": added, "tools removed": removed, "tools described differently": changed}
    return [f"{what}: {', '.join(names)}" for what, names in named.items() if names]


def _model(name: Any) -> str:
    return str(name) if name else "the default model"


def _setting(value: Any) -> str:
    return "not set" if value is None else jsontext.dump(value)


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _digest(value: Any) -> str:
    return jsontext.sorted_digest(value)[:DIGEST_LENGTH]
