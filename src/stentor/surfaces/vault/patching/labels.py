"""Edits of blocks that have an id, and of the rows of tables. Pure."""

from __future__ import annotations

import re
from typing import Any

from stentor.surfaces.vault.patching.faults import InvalidInstruction, NoSuchTarget, PatchFailed
from stentor.surfaces.vault.patching.headings import Patched, after_blank, literal
from stentor.surfaces.vault.patching.instruction import Instruction
from stentor.surfaces.vault.patching.outline import Labelled, Outline
from stentor.surfaces.vault.patching.spans import Edit, Span, line_ends_before, point, spliced, with_newlines

_LINE_END = re.compile(r"\r\n|\r|\n")


def written(outline: Outline, block: Labelled, wanted: Instruction) -> Patched:
    if wanted.operation == "delete":
        return Patched(spliced(outline.text, _deleted(outline, block, wanted.scope)))
    if wanted.scope == "marker":
        name = block.marker.of(outline.text).rpartition("^")[0] + "^" + wanted.words
        return Patched(spliced(outline.text, Edit(block.marker, name)))
    if wanted.scope == "markerAndContent":
        return Patched(spliced(outline.text, _whole(outline, block, wanted)))
    if isinstance(wanted.value, list):
        return Patched(spliced(outline.text, rows(outline, block, wanted.operation, wanted.value)))
    return Patched(spliced(outline.text, literal(outline, block.content, wanted)))


def _deleted(outline: Outline, block: Labelled, scope: str) -> Edit:
    if scope != "markerAndContent":
        return Edit(block.content if scope == "content" else block.marker, "")
    return Edit(Span(block.whole.start, after_blank(outline.text, block.whole.end)), "")


def _whole(outline: Outline, block: Labelled, wanted: Instruction) -> Edit:
    new, apart = with_newlines(wanted.words, outline.newline), outline.newline * 2
    if wanted.operation == "replace":
        return Edit(block.whole, new)
    if wanted.operation == "prepend":
        return Edit(point(block.whole.start), new + apart)
    return Edit(point(block.whole.end), apart + new)


def created(outline: Outline, wanted: Instruction) -> Patched:
    """A new paragraph with its id at the end of the note."""
    if wanted.operation == "delete" or wanted.scope != "content":
        raise NoSuchTarget(f"The note has no block ^{wanted.name}, and only its content can be made with it.")
    if isinstance(wanted.value, list):
        raise PatchFailed(f"The note has no block ^{wanted.name}; rows need a table that is there.")
    text, newline = outline.text, outline.newline
    missing = 2 - line_ends_before(text, len(text)) if text else 0
    paragraph = f"{with_newlines(wanted.words, newline)} ^{wanted.name}{newline}"
    return Patched(spliced(text, Edit(point(len(text)), newline * missing + paragraph)))


def rows(outline: Outline, block: Labelled, operation: str, given: list[list[Any]]) -> Edit:
    """The rows of the table below its heading, with the given ones. Raises PatchFailed, InvalidInstruction."""
    if block.kind != "table":
        raise PatchFailed(f"The block ^{block.name} is no table, so that it has no rows.")
    lines = _LINE_END.split(block.content.of(outline.text))
    end = outline.newline if lines[-1] == "" else ""
    head, present = lines[:2], [line for line in lines[2:] if line]
    added = [_row(block, row) for row in given]
    body = {"replace": added, "prepend": [*added, *present], "append": [*present, *added]}[operation]
    return Edit(block.content, outline.newline.join([*head, *body]) + end)


def _row(block: Labelled, row: list[Any]) -> str:
    if len(row) != block.columns:
        raise PatchFailed(f"A row has {len(row)} cells; the table ^{block.name} has {block.columns} columns.")
    for cell in row:
        if "\n" in cell or "\r" in cell:
            raise InvalidInstruction("A cell has a line end in it, which no row of a table can hold.")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
