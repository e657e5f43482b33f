"""Reading YAML 1.2 with ruamel.yaml: no aliases, no tags, no duplicate keys, bounded depth; plain values only.

JSON values as YAML, in the form that people write by hand: plain words, lists with a dash a line. Pure.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

MAX_DEPTH = 20
MAX_NODES = 2_000
"""Keys, values and items together: each takes about a tenth of a millisecond."""
MAX_DIGITS = 4_000
"""Of an integer, which longer is a text: Python and JSON decoders stop a little above, since it takes them long."""
_TAG = "tag:yaml.org,2002:"


class InvalidYaml(ValueError):
    """The text is no YAML mapping of plain values; the message says why and where."""


class NotAMapping(InvalidYaml):
    """The text is YAML, but no mapping: prose, or a list."""


def load_mapping(text: str) -> dict[str, Any]:
    """A mapping as JSON values. Raises Malformed, NoMapping."""
    node = _compose(text)
    if node is None:
        return {}
    if not isinstance(node, MappingNode):
        raise NotAMapping("it is no list of keys and values")
    return _mapping(node)


def find_key_spans(text: str) -> dict[str, tuple[int, int]]:
    """Each key's place in the text: from the begin of its line up to the line after its value."""
    node = _compose(text)
    if node is None or not isinstance(node, MappingNode) or node.flow_style:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for key, value in node.value:
        start = _line_start(text, key.start_mark.index)
        found[_key(key)] = start, _after(text, max(key.end_mark.index, _end(value, text)))
    return found


class _LimitedComposer(Composer):
    """Gives up a text of too many nodes before it has read them all."""

    nodes = 0

    def compose_node(self, parent: Node | None, index: Any) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InvalidYaml(f"it has more than {MAX_NODES:,} keys and values")
        return super().compose_node(parent, index)


def _compose(text: str) -> Node | None:
    """The nodes, which share what an alias names instead of repeating it."""
    reader = YAML(typ="safe", pure=True)
    reader.Composer = _LimitedComposer
    try:
        return reader.compose(text)  # type: ignore[no-any-return]
    except InvalidYaml:
        raise
    except YAMLError as error:
        raise InvalidYaml(_reason(error)) from None
    except (ValueError, RecursionError, AssertionError) as error:
        raise InvalidYaml(type(error).__name__) from None


def _reason(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"{problem} in line {mark.line + 1}" if mark is not None else str(problem)


def _mapping(node: MappingNode, depth: int = 0) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in node.value:
        name = _key(key)
        if name in values:
            raise InvalidYaml(f"the key {name!r} stands there twice")
        values[name] = _value(value, depth + 1)
    return values


def _key(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise InvalidYaml(f"a key in line {node.start_mark.line + 1} is no word")
    return _text(node)


def _text(node: Node) -> str:
    """JSON writes signs beyond 16 bits as two escapes; half of such a sign can be stored nowhere."""
    text = str(node.value)
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise InvalidYaml(f"half a sign (a lone surrogate) in line {node.start_mark.line + 1}") from None


def _value(node: Node, depth: int) -> Any:
    if node.anchor:
        raise InvalidYaml("anchors and aliases are not allowed")
    if depth > MAX_DEPTH:
        raise InvalidYaml(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, MappingNode):
        return _mapping(node, depth)
    if isinstance(node, SequenceNode):
        return [_value(item, depth + 1) for item in node.value]
    return _scalar(node)


def _scalar(node: Node) -> Any:
    """By YAML 1.2's core schema; what it does not know (a time, a tag of one's own) stays a text."""
    text, tag = _text(node), str(node.tag).removeprefix(_TAG)
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true" if text.lower() in ("true", "false") else text
    if tag in ("int", "float"):
        return _number(text)
    return text


def _number(text: str) -> Any:
    plain = text.lower().lstrip("+-")
    try:
        if plain.startswith(("0o", "0x")):
            return int(text, 0) if len(plain) <= MAX_DIGITS // 2 else text
        if plain.isdigit():
            return int(text) if len(plain) <= MAX_DIGITS else text
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _end(node: Node, text: str) -> int:
    """Where a value's last sign stands; a block's own end mark is at the next key."""
    if isinstance(node, ScalarNode):
        return _end_of_scalar(node, text)
    if not isinstance(node, CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    key, value = last if isinstance(last, tuple) else (last, last)
    return max(int(key.start_mark.index), _end(key, text), _end(value, text))


def _end_of_scalar(node: ScalarNode, text: str) -> int:
    if not node.value and node.style is None:
        return 0  # nothing stands there, and its mark may be in a later line
    end = int(node.end_mark.index)
    while end > node.start_mark.index and text[end - 1] in " \t\r\n":
        end -= 1
    return end


def _after(text: str, end: int) -> int:
    """The begin of the next line; a comment behind the value goes with it."""
    while end < len(text) and text[end] not in "\r\n":
        end += 1
    return end + (2 if text[end : end + 2] == "\r\n" else 1 if end < len(text) else 0)


_PLAIN_SCALAR = re.compile(r"[A-Za-zÀ-ɏ_/][\w À-ɏ/.@+-]*(?<! )\Z")
_encode = json.JSONEncoder(ensure_ascii=False).encode
_RESERVED_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ".nan", ".inf"}


def dump_entry(key: str, value: Any, newline: str) -> str:
    """`key: value` with its line end; a list of simple values stands below its key."""
    name = dump_scalar(key)
    if isinstance(value, list) and value and not any(isinstance(item, dict | list) for item in value):
        lines = [f"{name}:", *(f"  - {dump_scalar(item)}" for item in value)]
    else:
        lines = [f"{name}: {dump_inline(value)}"]
    return "".join(line + newline for line in lines)


def dump_inline(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump_scalar(key)}: {dump_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump_inline, value)) + "]"
    return dump_scalar(value)


def dump_scalar(value: Any) -> str:
    """A text in quotes unless nobody could take it for anything else; the rest as in JSON."""
    if (
        isinstance(value, str)
        and _PLAIN_SCALAR.match(value)
        and value.lower() not in _RESERVED_WORDS
        and value.isprintable()
    ):
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


def to_comparable(value: Any) -> Any:
    """A form in which values are equal when they are equal as JSON."""
    if isinstance(value, dict):
        return {key: to_comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_comparable(item) for item in value]
    return ("flag", value) if isinstance(value, bool) else value
