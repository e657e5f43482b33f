"""YAML 1.2 to JSON values with ruamel.yaml: no aliases, tags and duplicate keys, and bounded depth and size. Pure.

A server imports it when it first reads frontmatter, as ruamel.yaml takes 2 MB; `yaml_writer` writes without it.
"""

from __future__ import annotations

import math
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner

from stentor_vault.jsontext import JsonObject

MAX_DEPTH = 20
MAX_NODES = 2_000
"""Keys, values and items together; composing each takes about 0.1 ms."""
MAX_DIGITS = 4_000
"""Maximum digits of an integer; a longer one is a string. Python and JSON decoders refuse a little above that."""
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
_TAG_PREFIX = "tag:yaml.org,2002:"


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


class _LimitedScanner(Scanner):
    """Rejects too many open brackets at once: it reads up to 1,024 ahead of the composer, in time that is quadratic."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - as in ruamel.yaml
        if len(self.flow_context) > MAX_DEPTH:
            raise InvalidYaml(_TOO_DEEP)
        super().fetch_flow_collection_start(TokenClass, to_push)


class _LimitedComposer(Composer):
    """Rejects a text with too many or too deep nodes before it has read them all."""

    nodes, level = 0, 0
    """Not `depth`, which ruamel.yaml counts too."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        # The warning prints lines of the note, and Python keeps the text of each warning for good.
        self.warn_double_anchors = False

    def compose_node(self, parent: Node | None, index: Any) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InvalidYaml(f"it has more than {MAX_NODES:,} keys and values")
        if self.level > MAX_DEPTH:
            raise InvalidYaml(_TOO_DEEP)
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node


def _compose(text: str) -> Node | None:
    """Compose the nodes without constructing values: an alias shares its node, so it cannot blow up memory."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer, yaml.Scanner = _LimitedComposer, _LimitedScanner
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
