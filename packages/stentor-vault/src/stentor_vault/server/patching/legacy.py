"""Format 1: edits by headers, deprecated, which takes texts as they are and headings joined by a delimiter. Pure.

A heading that is there twice means the last one. Blank lines between sections stay where they were.
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
from stentor_vault.server.patching.outline import REPEAT_MARKER, LabelledBlock, NoteOutline, NoteSection, parse_outline


class LegacyEdit(msgspec.Struct, frozen=True):
    """`content` is a text, or any JSON value when `is_json`."""

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


def apply_edit(text: str, wanted: LegacyEdit) -> str:
    """Raises the faults of this package, BadFrontmatter."""
    if wanted.kind == "frontmatter":
        return _field(text, wanted)
    found = parse_outline(text)
    place = _heading(found, wanted) if wanted.kind == "heading" else _block(found, wanted)
    if place is None:
        return _created(found, wanted)
    span, block = place
    once = wanted.reject and wanted.operation != "replace" and isinstance(wanted.content, str)
    if once and wanted.content.strip() in span.extract(text):
        raise ContentExists("The target has this content already.")
    if wanted.is_json:
        return _rows(found, block, wanted)
    return _OPERATIONS[wanted.operation](found, span, wanted)


def read_part(text: str, kind: str, target: str, delimiter: str) -> Any:
    """A part as it stands in the note, or the value of a field. Raises NoSuchTarget, BadFrontmatter."""
    known = frontmatter.read(text) if kind == "frontmatter" else {}
    if target in known:
        return known[target]
    wanted = LegacyEdit("replace", kind, target, "", False, delimiter)
    found = parse_outline(text)
    place = None if kind == "frontmatter" else (_heading if kind == "heading" else _block)(found, wanted)
    if place is None:
        raise NoSuchTarget(f"The note has no {kind} {target!r}.")
    return place[0].extract(text)


def map_headings(found: NoteOutline) -> dict[str, NoteSection]:
    """Path, joined by `::`, to section; the last one of a name."""
    return {"::".join(path): section for path, section in _paths(found.root, ())}


def section_content(found: NoteOutline, section: NoteSection) -> TextSpan:
    """Everything up to the next heading of the same level or above."""
    return TextSpan(section.body.start, len(found.text) if section.marker is None else section.end)


def _paths(section: NoteSection, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], NoteSection]]:
    for child in section.children.values():
        path = (*above, child.text)
        yield path, child
        yield from _paths(child, path)


def _heading(found: NoteOutline, wanted: LegacyEdit) -> tuple[TextSpan, None] | None:
    section = found.root if not wanted.target else _known(found.root, wanted.target.split(wanted.delimiter))
    if section is None:
        return None
    content = section_content(found, section)
    marker = section.marker or TextSpan(content.start, content.start)
    spans = {"content": content, "marker": marker, "markerAndContent": TextSpan(marker.start, content.end)}
    return spans[wanted.scope], None


def _known(root: NoteSection, names: list[str]) -> NoteSection | None:
    last = None
    for path, section in _paths(root, ()):
        if list(path) == names:
            last = section
    return last


def _block(found: NoteOutline, wanted: LegacyEdit) -> tuple[TextSpan, LabelledBlock] | None:
    names = [name for name in found.blocks if name.partition(REPEAT_MARKER)[0] == wanted.target]
    if not names:
        return None
    block = found.blocks[names[-1]]
    spans = {"content": block.content, "marker": block.marker, "markerAndContent": block.full_span}
    return spans[wanted.scope], block


def _field(text: str, wanted: LegacyEdit) -> str:
    known = frontmatter.read(text)
    if wanted.target in known:
        value = field_edits.merge_values(known[wanted.target], _listed(known[wanted.target], wanted), wanted.operation)
        return frontmatter.edit(text, {wanted.target: value})
    if not wanted.create:
        raise NoSuchTarget(f"The note has no frontmatter field {wanted.target!r}.")
    return frontmatter.edit(text, {wanted.target: wanted.content})


def _listed(present: Any, wanted: LegacyEdit) -> Any:
    """One more of a list need not be a list."""
    single = isinstance(present, list) and not isinstance(wanted.content, list)
    return [wanted.content] if single and wanted.operation != "replace" else wanted.content


def _rows(found: NoteOutline, block: LabelledBlock | None, wanted: LegacyEdit) -> str:
    given = wanted.content
    if isinstance(given, list) and given and all(isinstance(cell, str) for cell in given):
        given = [given]
    if block is None or block.kind != "table":
        raise PatchFailed("A JSON body is for frontmatter and for the rows of a table; the target is neither.")
    if not is_table_rows(given):
        raise PatchFailed("Rows of a table are lists of texts.")
    return apply_edits(found.text, block_edits.make_rows_edit(found, block, wanted.operation, given))


def _created(found: NoteOutline, wanted: LegacyEdit) -> str:
    if not wanted.create or wanted.is_json:
        raise NoSuchTarget(f"The note has no {wanted.kind} {wanted.target!r}.")
    text, newline = found.text, found.newline
    if wanted.kind == "block":
        return f"{text}{newline}{wanted.content}{newline}{newline}^{wanted.target}"
    names = wanted.target.split(wanted.delimiter)
    if len(names) > MAX_PATH_DEPTH:
        raise PatchFailed(f"A path has {MAX_PATH_DEPTH} headings at most.")
    known = max(n for n in range(len(names)) if n == 0 or _known(found.root, names[:n]) is not None)
    section = _known(found.root, names[:known]) or found.root
    at = section_content(found, section).end
    joint = newline if at and count_newlines_before(text, at) == 0 else ""
    lines = [f"{'#' * level} {name}{newline}" for level, name in enumerate(names[known:], section.level + 1)]
    return apply_edits(text, TextEdit(TextSpan(at, at), joint + "".join(lines) + wanted.content))


def _replaced(found: NoteOutline, span: TextSpan, wanted: LegacyEdit) -> str:
    text, newline, new = found.text, found.newline, str(wanted.content)
    rest = text[span.end :]
    if rest and wanted.kind == "heading" and count_newlines_before(text, span.end) == 2:
        new = _with_blank(new, newline)
    return text[: span.start] + new + rest


def _prepended(found: NoteOutline, span: TextSpan, wanted: LegacyEdit) -> str:
    rest = found.text[span.start :]
    return found.text[: span.start] + str(wanted.content) + (rest.lstrip() if wanted.trim else rest)


def _appended(found: NoteOutline, span: TextSpan, wanted: LegacyEdit) -> str:
    """Before the blank line that ends the section, which comes after the new text then."""
    text, newline, new, end = found.text, found.newline, str(wanted.content), span.end
    if wanted.trim:
        return text[:end].rstrip() + new + text[end:]
    if end == len(text):
        while end > span.start and text[:end].endswith(newline * 2):
            end -= len(newline)
        return text[:end] + new
    if count_newlines_before(text, end) == 2 and text[end] not in "\r\n":
        new = _with_blank(new, newline)
    return text[:end] + new + text[end:]


def _with_blank(text: str, newline: str) -> str:
    """With a blank line at its end."""
    return text + newline * (2 - count_newlines_before(text, len(text)))


_OPERATIONS = {"replace": _replaced, "prepend": _prepended, "append": _appended}
