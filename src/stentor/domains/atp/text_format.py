"""The text format, the wire form of the contract: one tag per line, a blank line, the body.

Strict, so that all parsers read the same message.
Tags count only before the first blank line. A header value cannot contain a line break, so it cannot forge a tag.
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
"""Characters of all tags together; the longest valid header has fewer than 600."""
MAX_SHOWN_LENGTH = 40
"""Characters of an invalid line that an error message repeats."""
_END = "\n\n"
_HEAD = re.compile(rf"[\ufeff\s]*(?:(?:{'|'.join(FIELDS_BY_TAG)})[ \t]*:[^\n]*(?:\n|\Z))+(?:\r?\n)?", re.IGNORECASE)
"""More lenient than the parser: whatever looks like a header is removed before an agent sees the text."""


def format_message(message: AtpMessage) -> str:
    """Format a message as text, without its sender. Raises MessageInvalid for an invalid message."""
    lines: list[str] = []
    errors: list[FieldError] = []
    for field in HEADER_FIELDS:
        value = getattr(message.header, field.name)
        if value is None and not field.required:
            continue
        if problem := find_value_problem(field, value):
            errors.append(FieldError(field.tag, problem))
        lines.append(f"{field.tag}: {value}")
    if problem := find_content_problem(message.content):
        errors.append(FieldError("body", problem))
    if errors:
        raise MessageInvalid(errors)
    return "\n".join(lines) + _END + message.content


def parse_message(text: str) -> AtpMessage:
    """Parse a message in the text format. Raises MessageInvalid with every error found."""
    # The search is bounded, so that a long text without a blank line is cheap to reject.
    end = text.find(_END, 0, MAX_HEADER_LENGTH + 2)
    if end < 0:
        raise MessageInvalid([_missing_end_error(text)])
    values: dict[str, str] = {}
    seen: set[str] = set()
    errors: list[FieldError] = []
    for line in text[:end].split("\n"):
        tag, colon, value = line.partition(":")
        field = FIELDS_BY_TAG.get(tag)
        if field is None or not colon:
            errors.append(_unknown_tag_error(line))
            continue
        # One space after the colon is the form; a second belongs to the value, whose check rejects it.
        if value[:1] == " ":
            value = value[1:]
        if tag in seen:
            errors.append(FieldError(tag, "is given twice"))
        seen.add(tag)
        if not value and not field.required:
            continue
        if problem := find_value_problem(field, value):
            errors.append(FieldError(tag, problem))
        values[field.name] = value
    return _build_message(values, text[end + 2 :], errors)


def _build_message(values: dict[str, str], content: str, errors: list[FieldError]) -> AtpMessage:
    if problem := find_content_problem(content):
        errors.append(FieldError("body", problem))
    errors += [FieldError(field.tag, MISSING) for field in HEADER_FIELDS if field.required and field.name not in values]
    if errors:
        raise MessageInvalid(errors)
    return AtpMessage(build_header(values), content)


def _missing_end_error(text: str) -> FieldError:
    if text[MAX_HEADER_LENGTH:]:
        return FieldError("text", f"has no blank line within {MAX_HEADER_LENGTH} characters; one must follow the tags")
    return FieldError("text", "has no blank line; one must follow the tags, and lines must end with LF")


def _unknown_tag_error(line: str) -> FieldError:
    excerpt = line[:MAX_SHOWN_LENGTH].encode("ascii", "backslashreplace").decode()
    return FieldError(
        "text", f"{excerpt!r} is not a tag; the tags are {', '.join(FIELDS_BY_TAG)}, each followed by a colon"
    )


def content_for_agent(value: Any) -> Any:
    """Return what an agent may see of a task's input: of a complete ATP message in the text format only its body.

    Any other input is returned unchanged, also a text that merely begins with `#`.
    """
    if not isinstance(value, str) or not value.startswith("#"):
        return value
    try:
        return parse_message(value).content
    except MessageInvalid:
        return value


def strip_header(text: str) -> str:
    """Remove the tags at the beginning of a text, if there are any: an agent may see only the rest."""
    # Repeated, because below a head there may be another one.
    start = 0
    while header := _HEAD.match(text, start):
        start = header.end()
    return text[start:]
