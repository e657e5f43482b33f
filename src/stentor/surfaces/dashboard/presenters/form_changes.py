"""What a form changes of a record: it sends all its fields, and along with them what its page showed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject


def read_shown(form: Mapping[str, str]) -> JsonObject:
    """Return the values that the form's page showed; none if it does not say."""
    shown = jsontext.decode_or_none(form.get("shown", "").encode())
    return shown if isinstance(shown, dict) else {}


def find_changed(fields: Mapping[str, Any], before: Mapping[str, Any]) -> JsonObject:
    """Return the fields that differ from what they were. Texts of a form come without the white space around them."""
    return {name: value for name, value in fields.items() if name not in before or value != _strip(before[name])}


def int_or_text(text: str) -> int | str:
    """Return the number in a form field, or the text itself, which the gateway rejects with a message."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def _strip(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value
