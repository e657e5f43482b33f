"""The wire form: a tag per line, a blank line, the body. Strict, so that no two readers see different messages.

Tags count only before the first blank line. Nothing that a header may hold can end its line, so no value forges a tag.
"""

from __future__ import annotations

import re
from typing import Any

from stentor.domains.atp.header import (
    FIELDS_BY_TAG,
    HEADER_FIELDS,
    MISSING,
    build_header,
    find_content_problem,
    find_value_problem,
)
from stentor.domains.atp.model import AtpMessage, FieldError, MessageInvalid

MAX_HEADER_LENGTH = 4096
"""Characters of all tags together; the longest valid head has fewer than 600."""
SHOWN = 40
_END = "\n\n"
_HEAD = re.compile(rf"[\ufeff\s]*(?:(?:{'|'.join(FIELDS_BY_TAG)})[ \t]*:[^\n]*(?:\n|\Z))+(?:\r?\n)?", re.IGNORECASE)
"""More forgiving than the parser: what looks like a head is none of an agent's business."""


def format_message(message: AtpMessage) -> str:
    """The wire form of a valid message; its sender is not part of it. Raises MessageInvalid for any other."""
    lines, flaws = [], []
    for field in HEADER_FIELDS:
        value = getattr(message.header, field.name)
        if value is None and not field.required:
            continue
        if found := find_value_problem(field, value):
            flaws.append(FieldError(field.tag, found))
        lines.append(f"{field.tag}: {value}")
    if found := find_content_problem(message.content):
        flaws.append(FieldError("body", found))
    if flaws:
        raise MessageInvalid(flaws)
    return "\n".join(lines) + _END + message.content


def parse_message(text: str) -> AtpMessage:
    """The message of a wire form. Raises MessageInvalid with all that is wrong."""
    end = text.find(_END, 0, MAX_HEADER_LENGTH + 2)
    if end < 0:
        raise MessageInvalid([_no_end(text)])
    values: dict[str, str] = {}
    seen: set[str] = set()
    flaws: list[FieldError] = []
    for line in text[:end].split("\n"):
        tag, colon, value = line.partition(":")
        field = FIELDS_BY_TAG.get(tag)
        if field is None or not colon:
            flaws.append(_no_tag(line))
            continue
        if value[:1] == " ":
            value = value[1:]
        if tag in seen:
            flaws.append(FieldError(tag, "stands there twice"))
        seen.add(tag)
        if not value and not field.required:
            continue
        if found := find_value_problem(field, value):
            flaws.append(FieldError(tag, found))
        values[field.name] = value
    return _message(values, text[end + 2 :], flaws)


def _message(values: dict[str, str], content: str, flaws: list[FieldError]) -> AtpMessage:
    if found := find_content_problem(content):
        flaws.append(FieldError("body", found))
    flaws += [FieldError(field.tag, MISSING) for field in HEADER_FIELDS if field.required and field.name not in values]
    if flaws:
        raise MessageInvalid(flaws)
    return AtpMessage(build_header(values), content)


def _no_end(text: str) -> FieldError:
    if text[MAX_HEADER_LENGTH:]:
        return FieldError("text", f"has no blank line within {MAX_HEADER_LENGTH} characters; the tags end with one")
    return FieldError("text", "has no blank line; the tags end with one, and lines with a line feed alone")


def _no_tag(line: str) -> FieldError:
    shown = line[:SHOWN].encode("ascii", "backslashreplace").decode()
    return FieldError("text", f"{shown!r} is no tag; known are {', '.join(FIELDS_BY_TAG)}, each followed by a colon")


def content_for_agent(value: Any) -> Any:
    """What an agent may see of a task's input: a text that is a whole ATP message in its wire form is reduced to the
    message's body. Any other input stays, a text that only begins with a `#` too.
    """
    if not isinstance(value, str) or not value.startswith("#"):
        return value
    try:
        return parse_message(value).content
    except MessageInvalid:
        return value


def strip_header(text: str) -> str:
    """A text without the tags at its head, if it begins with some: what an agent may see of it."""
    head = _HEAD.match(text)
    return text[head.end() :] if head else text
