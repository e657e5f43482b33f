"""A message to start from, and what each of its fields means."""

from __future__ import annotations

from typing import Any

from stentor.core import jsontext
from stentor.domains.atp.header import FIELDS, Field
from stentor.domains.atp.model import MAX_SENDER

BODY = {"task": {"type": "summarize", "input": {"text": "Agents do tasks. Stentor routes each. It records why."}}}
OWN = {
    "header.senderId": f"Optional: who sends, at most {MAX_SENDER} characters. It is you, whether you say so or not.",
    "payload.content": "The body: a JSON object as text, in the form that zone and action take.",
}


def example() -> dict[str, Any]:
    """A valid message that has a text summarized."""
    return {
        "header": {
            "mode": "direct",
            "context": "trace-0001",
            "priority": "normal",
            "actionType": "execute",
            "targetZone": "kernel",
            "specialNotes": "capability=summarize",
        },
        "payload": {"content": jsontext.dump(BODY)},
    }


def template() -> dict[str, Any]:
    required = [f"header.{field.json}" for field in FIELDS if field.required]
    optional = [f"header.{field.json}" for field in FIELDS if not field.required]
    return {
        "template": example(),
        "requiredFields": [*required, "payload.content"],
        "optionalFields": [*optional, "header.senderId"],
        "annotations": {f"header.{field.json}": _note(field) for field in FIELDS} | OWN,
    }


def _note(field: Field) -> str:
    word = "Required" if field.required else "Optional"
    values = f"at most {field.most} characters" if field.values is None else f"one of {', '.join(field.values)}"
    return f"{word}: {values}. {field.purpose}"
