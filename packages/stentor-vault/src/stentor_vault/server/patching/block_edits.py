"""Edits of blocks that have an id, and of the rows of tables. Pure."""

from __future__ import annotations

import re
from typing import Any

from stentor_vault.server.patching.instruction import InvalidInstruction, NoSuchTarget, PatchFailed, PatchInstruction
from stentor_vault.server.patching.markdown_text import (
    TextEdit,
    apply_edits,
    convert_newlines,
    count_newlines_before,
    empty_span,
)
from stentor_vault.server.patching.outline import BlockWithId, NoteOutline
from stentor_vault.server.patching.section_edits import PatchResult, make_block_deletion, make_literal_edit

_NEWLINE = re.compile(r"\r\n|\r|\n")


def write_block(outline: NoteOutline, block: BlockWithId, instruction: PatchInstruction) -> PatchResult:
    """Apply an instruction to an existing block. Raises PatchFailed, InvalidInstruction."""
    if instruction.operation == "delete":
        return PatchResult(apply_edits(outline.text, _make_delete_edit(outline, block, instruction.scope)))
    if instruction.scope == "marker":
        name = block.marker.extract(outline.text).rpartition("^")[0] + "^" + instruction.text
        return PatchResult(apply_edits(outline.text, TextEdit(block.marker, name)))
    if instruction.scope == "markerAndContent":
        return PatchResult(apply_edits(outline.text, _make_full_edit(outline, block, instruction)))
    if isinstance(instruction.value, list):
        return PatchResult(
            apply_edits(outline.text, make_rows_edit(outline, block, instruction.operation, instruction.value))
        )
    return PatchResult(apply_edits(outline.text, make_literal_edit(outline, block.content, instruction)))


def _make_delete_edit(outline: NoteOutline, block: BlockWithId, scope: str) -> TextEdit:
    if scope != "markerAndContent":
        return TextEdit(block.content if scope == "content" else block.marker, "")
    return make_block_deletion(outline, block.full_span)


def _make_full_edit(outline: NoteOutline, block: BlockWithId, instruction: PatchInstruction) -> TextEdit:
    new, separator = convert_newlines(instruction.text, outline.newline), outline.newline * 2
    if instruction.operation == "replace":
        return TextEdit(block.full_span, new)
    if instruction.operation == "prepend":
        return TextEdit(empty_span(block.full_span.start), new + separator)
    return TextEdit(empty_span(block.full_span.end), separator + new)


def create_block(outline: NoteOutline, instruction: PatchInstruction) -> PatchResult:
    """Create a block: append a paragraph with the id to the note. Raises NoSuchTarget, PatchFailed."""
    if instruction.operation == "delete" or instruction.scope != "content":
        raise NoSuchTarget(
            f"The note has no block ^{instruction.name}. createTargetIfMissing works only for the scope content."
        )
    if isinstance(instruction.value, list):
        raise PatchFailed(f"The note has no block ^{instruction.name}; rows can only be written to an existing table.")
    text, newline = outline.text, outline.newline
    missing_newlines = 2 - count_newlines_before(text, len(text)) if text else 0
    paragraph = f"{convert_newlines(instruction.text, newline)} ^{instruction.name}{newline}"
    return PatchResult(apply_edits(text, TextEdit(empty_span(len(text)), newline * missing_newlines + paragraph)))


def make_rows_edit(outline: NoteOutline, block: BlockWithId, operation: str, rows: list[list[Any]]) -> TextEdit:
    """Return the edit that writes rows below a table's header. Raises PatchFailed, InvalidInstruction."""
    if block.kind != "table":
        raise PatchFailed(f"The block ^{block.name} is not a table, so it has no rows.")
    lines = _NEWLINE.split(block.content.extract(outline.text))
    end = outline.newline if lines[-1] == "" else ""
    header, current = lines[:2], [line for line in lines[2:] if line]
    added = [_format_row(block, row) for row in rows]
    body = {"replace": added, "prepend": [*added, *current], "append": [*current, *added]}[operation]
    return TextEdit(block.content, outline.newline.join([*header, *body]) + end)


def _format_row(block: BlockWithId, row: list[Any]) -> str:
    if len(row) != block.columns:
        raise PatchFailed(f"A row has {len(row)} cells; the table ^{block.name} has {block.columns} columns.")
    for cell in row:
        if "\n" in cell or "\r" in cell:
            raise InvalidInstruction("value: a cell of a table must not contain a line break.")
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
