"""YAML 1.2 to JSON values and back. Pure; `frontmatter` finds and edits the block in a note.

Loads with ruamel.yaml, without aliases, tags and duplicate keys, and with bounded depth and size. Dumps in the form
that people write by hand: plain scalars, and lists with one item per line.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from stentor_vault.jsontext import JsonObject

MAX_DEPTH = 20
MAX_NODES = 2_000
"""Keys, values and items together; composing each takes about 0.1 ms."""
MAX_DIGITS = 4_000
"""Maximum digits of an integer; a longer one is a string. Python and JSON decoders refuse a little above that."""
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
_TAG_PREFIX = "tag:yaml.org,2002:"
_PLAIN_SCALAR = re.compile(r"[A-Za-zÀ-ɏ_/][\w À-ɏ/.@+-]*(?<! )\Z")
# Also the booleans of YAML 1.1, which other programs that read the note may still use.
_RESERVED_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ".nan", ".inf"}
_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_string = json.encoder.encode_basestring
MAX_KEPT_KEY = 64
"""Longest key whose text is kept: the notes of a program have the same keys."""


class InvalidYaml(ValueError):
    """The text is not a YAML mapping of plain values; the message has the reason and the line."""


class NotAMapping(InvalidYaml):
    """The text is YAML, but not a mapping: prose, or a list."""


def load_mapping(text: str) -> JsonObject:
    """Parse a mapping into JSON values; an empty text is an empty mapping. Raises InvalidYaml, NotAMapping."""
    node = _compose(text)
    if node is None:
        return {}
    if not isinstance(node, MappingNode):
        raise NotAMapping("it is not a mapping")
    return _load_mapping_node(node)


def find_key_spans(text: str) -> dict[str, tuple[int, int]]:
    """Return each key's span in the text, from the start of its line to the start of the line after its value.

    Empty for a mapping in braces, whose keys do not have lines of their own. Raises InvalidYaml.
    """
    node = _compose(text)
    if node is None or not isinstance(node, MappingNode) or node.flow_style:
        return {}
    spans: dict[str, tuple[int, int]] = {}
    for key, value in node.value:
        position = key.start_mark.index
        start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
        spans[_load_key(key)] = start, _next_line(text, max(key.end_mark.index, _end(value, text)))
    return spans


class _LimitedComposer(Composer):
    """Rejects a text with too many or too deep nodes before it has read them all: thousands of `[` take seconds."""

    nodes, depth = 0, 0

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        # The warning prints lines of the note, and Python keeps the text of each warning for good.
        self.warn_double_anchors = False

    def compose_node(self, parent: Node | None, index: Any) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InvalidYaml(f"it has more than {MAX_NODES:,} keys and values")
        if self.depth > MAX_DEPTH:
            raise InvalidYaml(_TOO_DEEP)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str) -> Node | None:
    """Compose the nodes without constructing values: an alias shares its node, so it cannot blow up memory."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _LimitedComposer
    try:
        return yaml.compose(text)  # pyrefly: ignore[no-any-return-explicit] - ruamel.yaml does not type it
    except InvalidYaml:
        raise
    except YAMLError as error:
        raise InvalidYaml(_describe(error)) from None
    except (ValueError, RecursionError, AssertionError) as error:
        raise InvalidYaml(type(error).__name__) from None


def _describe(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"{problem} in line {mark.line + 1}" if mark is not None else str(problem)


def _load_mapping_node(node: MappingNode, depth: int = 0) -> JsonObject:
    values: JsonObject = {}
    for key, value in node.value:
        name = _load_key(key)
        if name in values:
            raise InvalidYaml(f"the key {name!r} is duplicate")
        values[name] = _load_value(value, depth + 1)
    return values


def _load_key(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise InvalidYaml(f"a key in line {node.start_mark.line + 1} is not a scalar")
    return _load_text(node)


def _load_text(node: Node) -> str:
    # A quoted scalar may write a character beyond 16 bits as two escapes, as JSON does: join the surrogates.
    text = str(node.value)
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise InvalidYaml(f"unpaired surrogate in line {node.start_mark.line + 1}") from None


def _load_value(node: Node, depth: int) -> Any:
    if node.anchor:
        raise InvalidYaml("anchors and aliases are not allowed")
    if depth > MAX_DEPTH:
        raise InvalidYaml(_TOO_DEEP)
    if isinstance(node, MappingNode):
        return _load_mapping_node(node, depth)
    if isinstance(node, SequenceNode):
        return [_load_value(item, depth + 1) for item in node.value]
    return _load_scalar(node)


def _load_scalar(node: Node) -> Any:
    """Convert a scalar by YAML 1.2's core schema; anything else (a time, a custom tag) stays a string."""
    text, tag = _load_text(node), str(node.tag).removeprefix(_TAG_PREFIX)
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true" if text.lower() in ("true", "false") else text
    if tag in ("int", "float"):
        return _parse_number(text)
    return text


def _parse_number(text: str) -> Any:
    digits = text.lower().lstrip("+-")
    try:
        if digits.startswith(("0o", "0x")):
            return int(text, 0) if len(digits) <= MAX_DIGITS // 2 else text
        if digits.isdigit():
            return int(text) if len(digits) <= MAX_DIGITS else text
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _end(node: Node, text: str) -> int:
    """Return the end of a value's last character; the end mark of a block is only at the next key."""
    if isinstance(node, ScalarNode):
        return _scalar_end(node, text)
    if not isinstance(node, CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    key, value = last if isinstance(last, tuple) else (last, last)
    return max(int(key.start_mark.index), _end(key, text), _end(value, text))


def _scalar_end(node: ScalarNode, text: str) -> int:
    if not node.value and node.style is None:
        return 0  # an empty value, whose mark may be in a later line
    # The end mark of a plain or block scalar is behind the white space that follows it.
    end = int(node.end_mark.index)
    while end > node.start_mark.index and text[end - 1] in " \t\r\n":
        end -= 1
    return end


def _next_line(text: str, end: int) -> int:
    """Return the start of the next line; a comment after the value belongs to it."""
    while end < len(text) and text[end] not in "\r\n":
        end += 1
    return end + (2 if text[end : end + 2] == "\r\n" else 1 if end < len(text) else 0)


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
