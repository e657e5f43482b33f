"""Edits of sections in patch format 2: content, heading, whole section, one block; delete and move. Pure."""

from __future__ import annotations

import itertools

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
    starts_block,
)
from stentor_vault.server.patching.outline import NoteOutline, NoteSection


class PatchResult(msgspec.Struct, frozen=True):
    """The note after an edit, and warnings for the caller."""

    text: str
    warnings: list[PatchWarning] = []


def write_section(outline: NoteOutline, section: NoteSection, instruction: PatchInstruction) -> PatchResult:
    """Replace, prepend or append to a section's content, heading or both. Raises PatchFailed."""
    if instruction.scope == "marker":
        return PatchResult(apply_edits(outline.text, _make_rename_edit(outline, section, instruction)))
    if instruction.scope == "markerAndContent":
        return _write_full_section(outline, section, instruction)
    new, warnings = _shift_fragment(outline, instruction.text, section.level)
    return PatchResult(
        apply_edits(outline.text, _make_content_edit(outline, section, instruction.operation, new)), warnings
    )


def _shift_fragment(outline: NoteOutline, text: str, by: int) -> tuple[str, list[PatchWarning]]:
    shifted = shift_headings(text, by)
    return normalize_fragment(shifted.text, outline.newline), shifted.warnings


def _make_content_edit(outline: NoteOutline, section: NoteSection, operation: str, new: str) -> TextEdit:
    """Return the edit; blank lines directly below the heading stay, unless the content is deleted."""
    text, span = outline.text, section.content
    is_empty = span.start == span.end
    start = skip_blank_lines(text, span) if new else span.start
    # A setext heading after the new text would take the text's last line as its own, so a blank line is needed.
    before_setext = bool(new) and span.end < len(text) and not starts_atx_heading(text, span.end)
    if operation == "append":
        return make_paragraph_edit(
            text, empty_span(span.end), new, outline.newline, before=not is_empty, after=before_setext
        )
    if operation == "prepend":
        return make_paragraph_edit(
            text, empty_span(start), new, outline.newline, before=False, after=not is_empty or before_setext
        )
    return make_paragraph_edit(text, TextSpan(start, span.end), new, outline.newline, before=False, after=before_setext)


def _make_rename_edit(outline: NoteOutline, section: NoteSection, instruction: PatchInstruction) -> TextEdit:
    marker = require_marker(section)
    name = {
        "replace": instruction.text,
        "prepend": instruction.text + section.text,
        "append": section.text + instruction.text,
    }[instruction.operation]
    end = outline.newline if marker.extract(outline.text).endswith(("\n", "\r")) else ""
    return TextEdit(marker, f"{'#' * section.level} {name}{end}")


def require_marker(section: NoteSection) -> TextSpan:
    """Return the span of the heading's lines. Raises PatchFailed for the root, which has none."""
    if section.marker is None:
        raise PatchFailed(
            "The target is the whole note, which has no heading. Use the scope content or a heading's path."
        )
    return section.marker


def _write_full_section(outline: NoteOutline, section: NoteSection, instruction: PatchInstruction) -> PatchResult:
    new, warnings = _shift_fragment(outline, instruction.text, section.parent.level if section.parent else 0)
    before = not starts_atx_heading(new, 0)
    if instruction.operation == "replace":
        span = section.full_span
    else:
        marker = require_marker(section)
        span = empty_span(marker.start if instruction.operation == "prepend" else section.end)
    edit = make_paragraph_edit(outline.text, span, new, outline.newline, before=before, after=False)
    return PatchResult(apply_edits(outline.text, edit), warnings)


def create_section(outline: NoteOutline, instruction: PatchInstruction) -> PatchResult:
    """Create the missing headings of the path, with the content below the last. Raises NoSuchTarget, PatchFailed."""
    if instruction.operation == "delete" or instruction.scope != "content":
        raise NoSuchTarget("The note has no such heading. createTargetIfMissing works only for the scope content.")
    existing = max(n for n in range(len(instruction.path)) if outline.find_section(instruction.path[:n]) is not None)
    section = outline.find_section(instruction.path[:existing])
    assert section is not None
    names = instruction.path[existing:]
    if any("\n" in name or "\r" in name for name in names):
        raise PatchFailed("target: a heading must be one line; a name has a line break.")
    lines = [f"{'#' * level} {name}{outline.newline}" for level, name in enumerate(names, section.level + 1)]
    deepest = section.level + len(names)
    new, warnings = _shift_fragment(outline, instruction.text, deepest)
    if deepest > MAX_HEADING_LEVEL:
        warnings = [depth_warning(names[-1], deepest), *warnings]
    edit = make_paragraph_edit(
        outline.text, empty_span(section.end), "".join(lines) + new, outline.newline, before=False, after=False
    )
    return PatchResult(apply_edits(outline.text, edit), warnings)


def find_body_block(section: NoteSection, within: int) -> tuple[MarkdownBlock, int]:
    """Return one block of the section's own text, and its index. Raises NoSuchTarget."""
    count = len(section.body_blocks)
    index = within + count if within < 0 else within
    if not 0 <= index < count:
        raise NoSuchTarget(f"within: there is no block {within}; the heading's own text has {count} blocks.")
    return section.body_blocks[index], index


def write_body_block(outline: NoteOutline, section: NoteSection, instruction: PatchInstruction) -> PatchResult:
    """Edit one block of the section's own text, or insert a new block next to it. Raises NoSuchTarget."""
    assert instruction.within is not None
    block, index = find_body_block(section, instruction.within)
    if instruction.scope == "markerAndContent":
        return _write_beside_block(outline, section, index, instruction)
    span = TextSpan(block.start, block.end)
    if instruction.operation == "delete":
        return PatchResult(apply_edits(outline.text, make_block_deletion(outline, span)))
    return PatchResult(apply_edits(outline.text, make_literal_edit(outline, span, instruction)))


def _write_beside_block(
    outline: NoteOutline, section: NoteSection, index: int, instruction: PatchInstruction
) -> PatchResult:
    """Insert a block. After a block means before the next one, so that a line with the block's id stays with it."""
    new, warnings = _shift_fragment(outline, instruction.text, section.level)
    blocks, body = section.body_blocks, section.body
    if instruction.operation == "prepend":
        position = blocks[index].start
    else:
        position = blocks[index + 1].start if index + 1 < len(blocks) else body.end
    before, after = position != body.start, position != body.end
    edit = make_paragraph_edit(outline.text, empty_span(position), new, outline.newline, before=before, after=after)
    return PatchResult(apply_edits(outline.text, edit), warnings)


def make_literal_edit(outline: NoteOutline, span: TextSpan, instruction: PatchInstruction) -> TextEdit:
    """Return an edit with the caller's text as it is, except for its line breaks."""
    new = convert_newlines(instruction.text, outline.newline)
    spans = {"replace": span, "prepend": empty_span(span.start), "append": empty_span(span.end)}
    return TextEdit(spans[instruction.operation], new)


def make_block_deletion(outline: NoteOutline, span: TextSpan) -> TextEdit:
    """Return an edit that deletes a block with its line break, and the blank line after it if there is one before."""
    text, end = outline.text, span.end
    # Without a blank line between them, the blocks around it would become one.
    takes_blank_line = span.start == outline.root.start or count_newlines_before(text, span.start) == 2
    for _ in range(2 if takes_blank_line else 1):
        end += 2 if text[end : end + 2] == "\r\n" else 1 if text[end : end + 1] in ("\n", "\r") else 0
    return TextEdit(TextSpan(span.start, end), "")


def delete_section(outline: NoteOutline, section: NoteSection, scope: str) -> PatchResult:
    """Delete the content, the section with its trailing blank lines, or the heading's lines. Raises PatchFailed."""
    if scope == "content":
        return PatchResult(apply_edits(outline.text, TextEdit(section.content, "")))
    if scope == "markerAndContent":
        return PatchResult(apply_edits(outline.text, _make_deletion(outline, TextSpan(section.start, section.end))))
    return _delete_heading_line(outline, section)


def _make_deletion(outline: NoteOutline, span: TextSpan) -> TextEdit:
    """Return an edit that deletes lines; a blank line remains if the text around them would become one block."""
    text = outline.text
    is_apart = (
        span.start == outline.root.start
        or count_newlines_before(text, span.start) == 2
        or not starts_block(text, span.end)
        or starts_atx_heading(text, span.end)
    )
    return TextEdit(span, "" if is_apart else outline.newline)


def _delete_heading_line(outline: NoteOutline, section: NoteSection) -> PatchResult:
    """Delete the heading: its subsections move to the previous sibling, or else one level up."""
    marker_edit = _make_deletion(outline, require_marker(section))
    assert section.parent is not None
    previous_siblings = itertools.takewhile(lambda sibling: sibling is not section, section.parent.children.values())
    children = list(section.children.values())
    if not children or any(sibling.level == section.level for sibling in previous_siblings):
        return PatchResult(apply_edits(outline.text, marker_edit))
    span = TextSpan(children[0].start, section.full_span.end)
    shifted = shift_headings(span.extract(outline.text), -1, rewrite_setext=True)
    return PatchResult(apply_edits(outline.text, marker_edit, TextEdit(span, shifted.text)), shifted.warnings)


def move_section(outline: NoteOutline, section: NoteSection, instruction: PatchInstruction) -> PatchResult:
    """Move a section with its subsections; all levels shift by the same. Raises PatchFailed, NoSuchTarget."""
    require_marker(section)
    assert isinstance(instruction.destination, MoveDestination)
    parent = _require_section(outline, instruction.destination.parent)
    _reject_cycle(section, parent)
    position = _find_position(outline, parent, instruction.destination.place)
    by = parent.level + 1 - section.level
    shifted = shift_headings(section.full_span.extract(outline.text), by, rewrite_setext=True)
    line_end = "" if shifted.text.endswith(("\n", "\r")) else outline.newline
    # The section takes its trailing blank lines along, except to the end of the note.
    blank_lines = TextSpan(section.full_span.end, section.end).extract(outline.text) or line_end
    new = shifted.text + (blank_lines if position < len(outline.text) else line_end)
    before = not starts_atx_heading(new, 0)
    insertion = make_paragraph_edit(
        outline.text, empty_span(position), new, outline.newline, before=before, after=False
    )
    deletion = _make_deletion(outline, TextSpan(section.start, section.end))
    return PatchResult(apply_edits(outline.text, deletion, insertion), shifted.warnings)


def _require_section(outline: NoteOutline, path: HeadingPath | None) -> NoteSection:
    section = outline.find_section(path or ())
    if section is None:
        raise NoSuchTarget(f"The note has no heading {list(path or ())!r} to move the section to.")
    return section


def _reject_cycle(section: NoteSection, parent: NoteSection) -> None:
    ancestor: NoteSection | None = parent
    while ancestor is not None:
        if ancestor is section:
            raise PatchFailed("A section cannot be moved below itself.")
        ancestor = ancestor.parent


def _find_position(outline: NoteOutline, parent: NoteSection, place: str | SiblingPlace) -> int:
    children = list(parent.children.values())
    if isinstance(place, SiblingPlace):
        return _find_sibling_position(outline, parent, place)
    if place == "first":
        return children[0].start if children else parent.trailing_blank.end
    return children[-1].end if children else parent.trailing_blank.end


def _find_sibling_position(outline: NoteOutline, parent: NoteSection, place: SiblingPlace) -> int:
    before = not isinstance(place.before, UnsetType)
    path = place.before if before else place.after
    sibling = outline.find_section(path) if isinstance(path, tuple) else None
    if sibling is None or sibling.parent is not parent:
        raise NoSuchTarget("destination.place: the new parent has no such section.")
    return sibling.start if before else sibling.end
