"""Edits of a heading's text, of its name, of the whole section, and of one block of its text. Pure.

Sections moved and taken away. Pure.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UnsetType

from stentor_vault.server.patching.instruction import (
    HeadingPath,
    MoveDestination,
    NoSuchTarget,
    PatchFailed,
    PatchInstruction,
    SiblingPlace,
)
from stentor_vault.server.patching.markdown_text import (
    MAX_HEADING_LEVEL,
    MarkdownBlock,
    PatchWarning,
    TextEdit,
    TextSpan,
    apply_edits,
    convert_newlines,
    count_newlines_before,
    depth_warning,
    empty_span,
    make_paragraph_edit,
    normalize_fragment,
    shift_headings,
    skip_blank_lines,
    starts_atx_heading,
)
from stentor_vault.server.patching.outline import NoteOutline, NoteSection

_ATX_START = re.compile(r" {0,3}#{1,6}(?=[ \t\r\n]|\Z)")


class PatchResult(msgspec.Struct, frozen=True):
    """The note afterwards, and what the caller should know of the edit."""

    text: str
    warnings: list[PatchWarning] = []


def write_section(outline: NoteOutline, section: NoteSection, wanted: PatchInstruction) -> PatchResult:
    """`replace`, `prepend` and `append` on content, marker and both."""
    if wanted.scope == "marker":
        return PatchResult(apply_edits(outline.text, _renamed(outline, section, wanted)))
    if wanted.scope == "markerAndContent":
        return _whole(outline, section, wanted)
    new, warnings = _shifted(outline, wanted.text, section.level)
    return PatchResult(apply_edits(outline.text, _content(outline, section, wanted.operation, new)), warnings)


def _shifted(outline: NoteOutline, words: str, by: int) -> tuple[str, list[PatchWarning]]:
    found = shift_headings(words, by)
    return normalize_fragment(found.text, outline.newline), found.warnings


def _content(outline: NoteOutline, section: NoteSection, operation: str, new: str) -> TextEdit:
    """Blank lines below the heading stay where they are, unless the text is taken away."""
    text, span = outline.text, section.content
    empty = span.start == span.end
    begin = skip_blank_lines(text, span) if new else span.start
    underlined = bool(new) and _underlined(text, span.end)
    if operation == "append":
        return make_paragraph_edit(text, empty_span(span.end), new, outline.newline, before=not empty, after=underlined)
    if operation == "prepend":
        return make_paragraph_edit(
            text, empty_span(begin), new, outline.newline, before=False, after=not empty or underlined
        )
    return make_paragraph_edit(text, TextSpan(begin, span.end), new, outline.newline, before=False, after=underlined)


def _underlined(text: str, at: int) -> bool:
    """Whether a heading begins there that is made by the line below it: text just before it would become part of it."""
    return at < len(text) and _ATX_START.match(text, at) is None


def _renamed(outline: NoteOutline, section: NoteSection, wanted: PatchInstruction) -> TextEdit:
    marker = require_marker(section)
    name = {
        "replace": wanted.text,
        "prepend": wanted.text + section.text,
        "append": section.text + wanted.text,
    }[wanted.operation]
    end = outline.newline if marker.extract(outline.text).endswith(("\n", "\r")) else ""
    return TextEdit(marker, f"{'#' * section.level} {name}{end}")


def require_marker(section: NoteSection) -> TextSpan:
    """Raises PatchFailed for the root, which has none."""
    if section.marker is None:
        raise PatchFailed("The note as a whole has no heading, so that there is none to change, move or stand beside.")
    return section.marker


def _whole(outline: NoteOutline, section: NoteSection, wanted: PatchInstruction) -> PatchResult:
    new, warnings = _shifted(outline, wanted.text, section.parent.level if section.parent else 0)
    before = not starts_atx_heading(new, 0)
    if wanted.operation == "replace":
        span = section.full_span
    else:
        marker = require_marker(section)
        span = empty_span(marker.start if wanted.operation == "prepend" else section.end)
    edit = make_paragraph_edit(outline.text, span, new, outline.newline, before=before, after=False)
    return PatchResult(apply_edits(outline.text, edit), warnings)


def create_section(outline: NoteOutline, wanted: PatchInstruction) -> PatchResult:
    """The headings of the path that are missing, below the deepest that is there, and the content in the last."""
    if wanted.operation == "delete" or wanted.scope != "content":
        raise NoSuchTarget("The heading is missing, and only its content can be made with it.")
    known = max(n for n in range(len(wanted.path)) if outline.find_section(wanted.path[:n]) is not None)
    section = outline.find_section(wanted.path[:known])
    assert section is not None
    names = wanted.path[known:]
    if any("\n" in name or "\r" in name for name in names):
        raise PatchFailed("A heading is one line, so that it cannot be made of a name with more.")
    lines = [f"{'#' * level} {name}{outline.newline}" for level, name in enumerate(names, section.level + 1)]
    deepest = section.level + len(names)
    new, warnings = _shifted(outline, wanted.text, deepest)
    if deepest > MAX_HEADING_LEVEL:
        warnings = [depth_warning(names[-1], deepest), *warnings]
    joint = outline.newline if count_newlines_before(outline.text, section.end) == 0 and section.end > 0 else ""
    return PatchResult(
        apply_edits(outline.text, TextEdit(empty_span(section.end), joint + "".join(lines) + new)), warnings
    )


def find_body_block(section: NoteSection, within: int) -> tuple[MarkdownBlock, int]:
    """One block of the section's own text, and its place. Raises NoSuchTarget."""
    count = len(section.body_blocks)
    index = within + count if within < 0 else within
    if not 0 <= index < count:
        raise NoSuchTarget(f"The heading's own text has {count} blocks; there is no number {within}.")
    return section.body_blocks[index], index


def write_body_block(outline: NoteOutline, section: NoteSection, wanted: PatchInstruction) -> PatchResult:
    """One block: its text as it is written, or a new block beside it."""
    assert wanted.within is not None
    part, index = find_body_block(section, wanted.within)
    if wanted.scope == "markerAndContent":
        return _write_beside_block(outline, section, index, wanted)
    span = TextSpan(part.start, part.end)
    if wanted.operation == "delete":
        return PatchResult(
            apply_edits(outline.text, TextEdit(TextSpan(part.start, skip_blank_line(outline.text, part.end)), ""))
        )
    return PatchResult(apply_edits(outline.text, make_literal_edit(outline, span, wanted)))


def _write_beside_block(
    outline: NoteOutline, section: NoteSection, index: int, wanted: PatchInstruction
) -> PatchResult:
    """After a block means before the next one, so that a line with the block's id stays with it."""
    new, warnings = _shifted(outline, wanted.text, section.level)
    parts, body = section.body_blocks, section.body
    if wanted.operation == "prepend":
        at = parts[index].start
    else:
        at = parts[index + 1].start if index + 1 < len(parts) else body.end
    before, after = at != body.start, at != body.end
    edit = make_paragraph_edit(outline.text, empty_span(at), new, outline.newline, before=before, after=after)
    return PatchResult(apply_edits(outline.text, edit), warnings)


def make_literal_edit(outline: NoteOutline, span: TextSpan, wanted: PatchInstruction) -> TextEdit:
    """The caller's text as it is, but for its line ends."""
    new = convert_newlines(wanted.text, outline.newline)
    places = {"replace": span, "prepend": empty_span(span.start), "append": empty_span(span.end)}
    return TextEdit(places[wanted.operation], new)


def skip_blank_line(text: str, at: int) -> int:
    """After the line end there and one blank line."""
    for _ in range(2):
        at += 2 if text[at : at + 2] == "\r\n" else 1 if text[at : at + 1] in ("\n", "\r") else 0
    return at


def delete_section(outline: NoteOutline, section: NoteSection, scope: str) -> PatchResult:
    """The text below the heading, the section with the blank lines after it, or the heading's line alone."""
    if scope == "content":
        return PatchResult(apply_edits(outline.text, TextEdit(section.content, "")))
    if scope == "markerAndContent":
        return PatchResult(apply_edits(outline.text, TextEdit(TextSpan(section.start, section.end), "")))
    return _delete_heading_line(outline, section)


def _delete_heading_line(outline: NoteOutline, section: NoteSection) -> PatchResult:
    """What was below belongs to the section before; to the parent, one level up, when there is none before."""
    lines = TextEdit(require_marker(section), "")
    assert section.parent is not None
    elders = []
    for sibling in section.parent.children.values():
        if sibling is section:
            break
        elders.append(sibling)
    below = list(section.children.values())
    if not below or any(elder.level == section.level for elder in elders):
        return PatchResult(apply_edits(outline.text, lines))
    span = TextSpan(below[0].start, section.full_span.end)
    raised = shift_headings(span.extract(outline.text), -1)
    return PatchResult(apply_edits(outline.text, lines, TextEdit(span, raised.text)), raised.warnings)


def move_section(outline: NoteOutline, section: NoteSection, wanted: PatchInstruction) -> PatchResult:
    """Below another heading, with its own sections; all levels change by the same. Raises PatchFailed, NoSuchTarget."""
    require_marker(section)
    assert isinstance(wanted.destination, MoveDestination)
    parent = _require_section(outline, wanted.destination.parent)
    _reject_cycle(section, parent)
    at = _find_offset(outline, parent, wanted.destination.place)
    changed = shift_headings(section.full_span.extract(outline.text), parent.level + 1 - section.level)
    gone = TextSpan(section.start, section.end)
    gap = TextSpan(section.full_span.end, section.end).extract(
        outline.text
    ) or outline.newline * _count_missing_newlines(changed.text)
    new = changed.text + (gap if at < len(outline.text) else outline.newline * _count_missing_newlines(changed.text))
    if count_newlines_before(outline.text, at) == 0 and at > 0:
        new = outline.newline + new
    return PatchResult(apply_edits(outline.text, TextEdit(gone, ""), TextEdit(empty_span(at), new)), changed.warnings)


def _count_missing_newlines(text: str) -> int:
    return 0 if text.endswith(("\n", "\r")) else 1


def _require_section(outline: NoteOutline, path: HeadingPath | None) -> NoteSection:
    section = outline.find_section(path or ())
    if section is None:
        raise NoSuchTarget(f"The note has no heading {list(path or ())!r} to move the section to.")
    return section


def _reject_cycle(section: NoteSection, parent: NoteSection) -> None:
    above: NoteSection | None = parent
    while above is not None:
        if above is section:
            raise PatchFailed("A section cannot be moved below itself.")
        above = above.parent


def _find_offset(outline: NoteOutline, parent: NoteSection, place: str | SiblingPlace) -> int:
    children = list(parent.children.values())
    if isinstance(place, SiblingPlace):
        return _find_sibling_offset(outline, parent, place)
    if place == "first":
        return children[0].start if children else parent.trailing_blank.end
    return children[-1].end if children else parent.trailing_blank.end


def _find_sibling_offset(outline: NoteOutline, parent: NoteSection, place: SiblingPlace) -> int:
    before = not isinstance(place.before, UnsetType)
    path = place.before if before else place.after
    sibling = outline.find_section(path) if isinstance(path, tuple) else None
    if sibling is None or sibling.parent is not parent:
        raise NoSuchTarget("destination.place: there is no such section below the new parent.")
    return sibling.start if before else sibling.end
