"""Patch format 1 (deprecated): edits by headers, with literal texts and headings joined by a delimiter. Pure.

A heading that occurs twice means the last one. Blank lines between sections stay where they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from stentor_vault.notes import frontmatter
from stentor_vault.server.patching import block_edits, field_edits
from stentor_vault.server.patching.instruction import (
    MAX_PATH_DEPTH,
    ContentExists,
    NoSuchTarget,
    PatchFailed,
    is_table_rows,
)
from stentor_vault.server.patching.markdown_text import TextEdit, TextSpan, apply_edits, count_newlines_before
from stentor_vault.server.patching.outline import REPEAT_MARKER, BlockWithId, NoteOutline, NoteSection, parse_outline


class LegacyEdit(msgspec.Struct, frozen=True):
    """An edit of format 1. `content` is a string, or any JSON value if `is_json`."""

    operation: str
    kind: str
    target: str
    content: Any
    is_json: bool
    delimiter: str = "::"
    scope: str = "content"
    create: bool = False
    reject: bool = False
    trim: bool = False


def apply_edit(text: str, edit: LegacyEdit) -> str:
    """Apply an edit. Raises NoSuchTarget, ContentExists, PatchFailed, InvalidInstruction, InvalidFrontmatter."""
    if edit.kind == "frontmatter":
        return _edit_field(text, edit)
    outline = parse_outline(text)
    target = _find_heading(outline, edit) if edit.kind == "heading" else _find_block(outline, edit)
    if target is None:
        return _create_target(outline, edit)
    span, block = target
    must_be_new = edit.reject and edit.operation != "replace" and isinstance(edit.content, str)
    if must_be_new and edit.content.strip() in span.extract(text):
        raise ContentExists("The target already has this content.")
    if edit.is_json:
        return _write_rows(outline, block, edit)
    return _OPERATIONS[edit.operation](outline, span, edit)


def read_part(text: str, kind: str, target: str, delimiter: str) -> Any:
    """Return the text of a part, or the value of a field. Raises NoSuchTarget, InvalidFrontmatter."""
    fields = frontmatter.read(text) if kind == "frontmatter" else {}
    if target in fields:
        return fields[target]
    edit = LegacyEdit("replace", kind, target, "", False, delimiter)
    outline = parse_outline(text)
    find = _find_heading if kind == "heading" else _find_block
    part = None if kind == "frontmatter" else find(outline, edit)
    if part is None:
        raise NoSuchTarget(f"The note has no {kind} {target!r}.")
    return part[0].extract(text)


def map_headings(outline: NoteOutline) -> dict[str, NoteSection]:
    """Return the sections by path, joined by `::`; of equal paths the last one."""
    return {"::".join(path): section for path, section in _iter_sections(outline.root, ())}


def section_content(outline: NoteOutline, section: NoteSection) -> TextSpan:
    """Return the span up to the next heading of the same or a higher level, blank lines included."""
    return TextSpan(section.body.start, len(outline.text) if section.marker is None else section.end)


def _iter_sections(section: NoteSection, parents: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], NoteSection]]:
    for child in section.children.values():
        path = (*parents, child.text)
        yield path, child
        yield from _iter_sections(child, path)


def _find_heading(outline: NoteOutline, edit: LegacyEdit) -> tuple[TextSpan, None] | None:
    section = outline.root if not edit.target else _find_section(outline.root, edit.target.split(edit.delimiter))
    if section is None:
        return None
    content = section_content(outline, section)
    marker = section.marker or TextSpan(content.start, content.start)
    spans = {"content": content, "marker": marker, "markerAndContent": TextSpan(marker.start, content.end)}
    return spans[edit.scope], None


def _find_section(root: NoteSection, names: list[str]) -> NoteSection | None:
    last = None
    for path, section in _iter_sections(root, ()):
        if list(path) == names:
            last = section
    return last


def _find_block(outline: NoteOutline, edit: LegacyEdit) -> tuple[TextSpan, BlockWithId] | None:
    names = [name for name in outline.blocks if name.partition(REPEAT_MARKER)[0] == edit.target]
    if not names:
        return None
    block = outline.blocks[names[-1]]
    spans = {"content": block.content, "marker": block.marker, "markerAndContent": block.full_span}
    return spans[edit.scope], block


def _edit_field(text: str, edit: LegacyEdit) -> str:
    fields = frontmatter.read(text)
    if edit.target in fields:
        current, added = fields[edit.target], edit.content
        # A single item may be added to a list without a list around it.
        if isinstance(current, list) and not isinstance(added, list) and edit.operation != "replace":
            added = [added]
        value = field_edits.merge_values(current, added, edit.operation)
        return frontmatter.edit(text, {edit.target: value})
    if not edit.create:
        raise NoSuchTarget(f"The note has no frontmatter field {edit.target!r}.")
    return frontmatter.edit(text, {edit.target: edit.content})


def _write_rows(outline: NoteOutline, block: BlockWithId | None, edit: LegacyEdit) -> str:
    rows = edit.content
    if isinstance(rows, list) and rows and all(isinstance(cell, str) for cell in rows):
        rows = [rows]  # a single row
    if block is None or block.kind != "table":
        raise PatchFailed("The target is neither frontmatter nor a table. Only these can be written with a JSON body.")
    if not is_table_rows(rows):
        raise PatchFailed("The rows of a table must be lists of strings.")
    return apply_edits(outline.text, block_edits.make_rows_edit(outline, block, edit.operation, rows))


def _create_target(outline: NoteOutline, edit: LegacyEdit) -> str:
    if not edit.create or edit.is_json:
        raise NoSuchTarget(f"The note has no {edit.kind} {edit.target!r}.")
    text, newline = outline.text, outline.newline
    if edit.kind == "block":
        return f"{text}{newline}{edit.content}{newline}{newline}^{edit.target}"
    names = edit.target.split(edit.delimiter)
    if len(names) > MAX_PATH_DEPTH:
        raise PatchFailed(f"The path of a heading has at most {MAX_PATH_DEPTH} headings.")
    existing = max(n for n in range(len(names)) if n == 0 or _find_section(outline.root, names[:n]) is not None)
    section = _find_section(outline.root, names[:existing]) or outline.root
    position = section_content(outline, section).end
    separator = newline if position and count_newlines_before(text, position) == 0 else ""
    lines = [f"{'#' * level} {name}{newline}" for level, name in enumerate(names[existing:], section.level + 1)]
    return apply_edits(text, TextEdit(TextSpan(position, position), separator + "".join(lines) + edit.content))


def _replace(outline: NoteOutline, span: TextSpan, edit: LegacyEdit) -> str:
    text, newline, new = outline.text, outline.newline, str(edit.content)
    rest = text[span.end :]
    if rest and edit.kind == "heading" and count_newlines_before(text, span.end) == 2:
        new = _end_with_blank_line(new, newline)
    return text[: span.start] + new + rest


def _prepend(outline: NoteOutline, span: TextSpan, edit: LegacyEdit) -> str:
    rest = outline.text[span.start :]
    return outline.text[: span.start] + str(edit.content) + (rest.lstrip() if edit.trim else rest)


def _append(outline: NoteOutline, span: TextSpan, edit: LegacyEdit) -> str:
    """Insert at the end of the section, before the blank line that separates it from the next heading."""
    text, newline, new, end = outline.text, outline.newline, str(edit.content), span.end
    if edit.trim:
        return text[:end].rstrip() + new + text[end:]
    if end == len(text):
        while end > span.start and text[:end].endswith(newline * 2):
            end -= len(newline)
        return text[:end] + new
    if count_newlines_before(text, end) == 2 and text[end] not in "\r\n":
        new = _end_with_blank_line(new, newline)
    return text[:end] + new + text[end:]


def _end_with_blank_line(text: str, newline: str) -> str:
    return text + newline * (2 - count_newlines_before(text, len(text)))


_OPERATIONS = {"replace": _replace, "prepend": _prepend, "append": _append}
