"""JSON values to YAML 1.2, in the form that people write by hand: plain scalars, and lists with one item per line.

Pure; `yaml_parser` is the way back.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

_PLAIN_SCALAR = re.compile(r"[A-Za-zÀ-ɏ_/][\w À-ɏ/.@+-]*(?<! )\Z")
# Also the booleans of YAML 1.1, which other programs that read the note may still use.
_RESERVED_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ".nan", ".inf"}
_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_string = json.encoder.encode_basestring
MAX_KEPT_KEY = 64
"""Longest key whose text is kept: the notes of a program have the same keys."""


def dump_entry(key: str, value: Any, newline: str) -> str:
    """Return `key: value` with its line break; a list of scalars is written below its key."""
    name = _dump_key(key) if len(key) <= MAX_KEPT_KEY else dump_scalar(key)
    if not isinstance(value, (dict, list)):
        return f"{name}: {dump_scalar(value)}{newline}"
    if isinstance(value, list) and value and not any(isinstance(item, (dict, list)) for item in value):
        return "".join([f"{name}:{newline}", *[f"  - {dump_scalar(item)}{newline}" for item in value]])
    return f"{name}: {dump_inline(value)}{newline}"


def dump_inline(value: Any) -> str:
    """Return a value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump_scalar(key)}: {dump_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump_inline, value)) + "]"
    return dump_scalar(value)


def dump_scalar(value: Any) -> str:
    """Return a string without quotes if it cannot be read as anything else, any other value as in JSON."""
    if not isinstance(value, str):
        # The encoder does the same, but takes ten times as long.
        if value is None:
            return "null"
        if value is True or value is False:
            return "true" if value else "false"
        is_number = type(value) is int or (type(value) is float and math.isfinite(value))
        return repr(value) if is_number else _encode(value)
    if _PLAIN_SCALAR.match(value) and value.lower() not in _RESERVED_WORDS and value.isprintable():
        return value
    return _quote(value)


_dump_key = lru_cache(maxsize=256)(dump_scalar)


def _quote(text: str) -> str:
    """Return a double-quoted scalar: JSON's syntax, with characters that YAML does not allow escaped."""
    quoted = _encode_string(text)
    if quoted.isprintable():
        return quoted
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in quoted)


def _escape(code_point: int) -> str:
    return f"\\u{code_point:04x}" if code_point <= 0xFFFF else f"\\U{code_point:08x}"


def to_comparable(value: Any) -> Any:
    """Return a form in which values are equal if they are equal as JSON: True is not 1."""
    if isinstance(value, dict):
        return {key: to_comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_comparable(item) for item in value]
    return ("flag", value) if isinstance(value, bool) else value
