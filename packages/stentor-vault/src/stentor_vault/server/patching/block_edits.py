"""Edits of blocks that have an id, and of the rows of tables. Pure."""

from __future__ import annotations

import re
from typing import Any

from stentor_vault.server.patching.instruction import InvalidInstruction, NoSuchTarget, PatchFailed, PatchInstruction
from stentor_vault.server.patching.markdown_text import (
    TextEdit,
    TextSpan,
    apply_edits,
    convert_newlines,
    count_newlines_before,
    empty_span,
)
from stentor_vault.server.patching.outline import LabelledBlock, NoteOutline
from stentor_vault.server.patching.section_edits import PatchResult, make_literal_edit, skip_blank_line

_LINE_END = re.compile(r"\r\n|\r|\n")


def write_block(outline: NoteOutline, block: LabelledBlock, wanted: PatchInstruction) -> PatchResult:
    if wanted.operation == "delete":
        return PatchResult(apply_edits(outline.text, _deleted(outline, block, wanted.scope)))
    if wanted.scope == "marker":
        name = block.marker.extract(outline.text).rpartition("^")[0] + "^" + wanted.text
        return PatchResult(apply_edits(outline.text, TextEdit(block.marker, name)))
    if wanted.scope == "markerAndContent":
        return PatchResult(apply_edits(outline.text, _whole(outline, block, wanted)))
    if isinstance(wanted.value, list):
        return PatchResult(apply_edits(outline.text, make_rows_edit(outline, block, wanted.operation, wanted.value)))
    return PatchResult(apply_edits(outline.text, make_literal_edit(outline, block.content, wanted)))


def _deleted(outline: NoteOutline, block: LabelledBlock, scope: str) -> TextEdit:
    if scope != "markerAndContent":
        return TextEdit(block.content if scope == "content" else block.marker, "")
    return TextEdit(TextSpan(block.full_span.start, skip_blank_line(outline.text, block.full_span.end)), "")


def _whole(outline: NoteOutline, block: LabelledBlock, wanted: PatchInstruction) -> TextEdit:
    new, apart = convert_newlines(wanted.text, outline.newline), outline.newline * 2
    if wanted.operation == "replace":
        return TextEdit(block.full_span, new)
    if wanted.operation == "prepend":
        return TextEdit(empty_span(block.full_span.start), new + apart)
    return TextEdit(empty_span(block.full_span.end), apart + new)


def create_block(outline: NoteOutline, wanted: PatchInstruction) -> PatchResult:
    """A new paragraph with its id at the end of the note."""
    if wanted.operation == "delete" or wanted.scope != "content":
        raise NoSuchTarget(f"The note has no block ^{wanted.name}, and only its content can be made with it.")
    if isinstance(wanted.value, list):
        raise PatchFailed(f"The note has no block ^{wanted.name}; rows need a table that is there.")
    text, newline = outline.text, outline.newline
    missing = 2 - count_newlines_before(text, len(text)) if text else 0
    paragraph = f"{convert_newlines(wanted.text, newline)} ^{wanted.name}{newline}"
    return PatchResult(apply_edits(text, TextEdit(empty_span(len(text)), newline * missing + paragraph)))


def make_rows_edit(outline: NoteOutline, block: LabelledBlock, operation: str, given: list[list[Any]]) -> TextEdit:
    """The rows of the table below its heading, with the given ones. Raises PatchFailed, InvalidInstruction."""
    if block.kind != "table":
        raise PatchFailed(f"The block ^{block.name} is no table, so that it has no rows.")
    lines = _LINE_END.split(block.content.extract(outline.text))
    end = outline.newline if lines[-1] == "" else ""
    head, present = lines[:2], [line for line in lines[2:] if line]
    added = [_row(block, row) for row in given]
    body = {"replace": added, "prepend": [*added, *present], "append": [*present, *added]}[operation]
    return TextEdit(block.content, outline.newline.join([*head, *body]) + end)


def _row(block: LabelledBlock, row: list[Any]) -> str:
    if len(row) != block.columns:
        raise PatchFailed(f"A row has {len(row)} cells; the table ^{block.name} has {block.columns} columns.")
    for cell in row:
        if "\n" in cell or "\r" in cell:
            raise InvalidInstruction("A cell has a line end in it, which no row of a table can hold.")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
