"""JSON values as YAML, in the form that people write by hand: plain words, lists with a dash a line. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-zÀ-ɏ_/][\w À-ɏ/.@+-]*(?<! )\Z")
_encode = json.JSONEncoder(ensure_ascii=False).encode
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ".nan", ".inf"}


def entry(key: str, value: Any, newline: str) -> str:
    """`key: value` with its line end; a list of simple values stands below its key."""
    name = scalar(key)
    if isinstance(value, list) and value and not any(isinstance(item, dict | list) for item in value):
        lines = [f"{name}:", *(f"  - {scalar(item)}" for item in value)]
    else:
        lines = [f"{name}: {flow(value)}"]
    return "".join(line + newline for line in lines)


def flow(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return scalar(value)


def scalar(value: Any) -> str:
    """A text in quotes unless nobody could take it for anything else; the rest as in JSON."""
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _WORDS and value.isprintable():
        return value
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """JSON's quotes are YAML's double quotes; what YAML does not print is escaped."""
    shown = _encode(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in shown)


def _escape(point: int) -> str:
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def canonical(value: Any) -> Any:
    """A form in which values are equal when they are equal as JSON."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return ("flag", value) if isinstance(value, bool) else value
