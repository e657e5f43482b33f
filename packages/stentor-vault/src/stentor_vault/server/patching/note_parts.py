"""Patch format 2 for whole notes: apply an instruction, read a part, build the document map. Pure.

A part is read in the form in which an edit of the same target writes it. The edits themselves are in
`section_edits`, `block_edits` and `field_edits`; format 1 is in `legacy`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.server.patching import block_edits, field_edits, legacy, section_edits
from stentor_vault.server.patching.instruction import ContentExists, NoSuchTarget, PatchInstruction, VersionMismatch
from stentor_vault.server.patching.markdown_text import shift_headings
from stentor_vault.server.patching.outline import BlockWithId, NoteOutline, NoteSection, parse_outline
from stentor_vault.server.patching.section_edits import PatchResult


def apply_instruction(text: str, instruction: PatchInstruction) -> PatchResult:
    """Apply an instruction; text outside of the target keeps every character.

    Raises the errors of `instruction`, InvalidFrontmatter.
    """
    version = hashlib.sha256(text.encode()).hexdigest()
    if instruction.if_match not in (None, version):
        raise VersionMismatch(f"The note's version is {version}, not ifMatch. Read it again.", {"version": version})
    # Before the outline: fields can be edited in a note whose Markdown takes long to parse.
    if instruction.target_type == "frontmatter":
        return PatchResult(field_edits.patch_field(text, instruction))
    outline = parse_outline(text)
    if instruction.target_type == "heading":
        return _patch_heading(outline, outline.find_section(instruction.path), instruction)
    return _patch_block(outline, outline.blocks.get(instruction.name), instruction)


def _patch_heading(outline: NoteOutline, section: NoteSection | None, instruction: PatchInstruction) -> PatchResult:
    if section is None:
        if instruction.create_target_if_missing:
            return section_edits.create_section(outline, instruction)
        raise NoSuchTarget(f"The note has no heading {list(instruction.path)!r}.")
    _reject_existing_section(outline, section, instruction)
    if instruction.within is not None:
        return section_edits.write_body_block(outline, section, instruction)
    if instruction.scope == "parent":
        return section_edits.move_section(outline, section, instruction)
    if instruction.operation == "delete":
        return section_edits.delete_section(outline, section, instruction.scope)
    return section_edits.write_section(outline, section, instruction)


def _patch_block(outline: NoteOutline, block: BlockWithId | None, instruction: PatchInstruction) -> PatchResult:
    if block is None:
        if instruction.create_target_if_missing:
            return block_edits.create_block(outline, instruction)
        raise NoSuchTarget(f"The note has no block ^{instruction.name}.")
    if _must_be_new(instruction):
        spans = {"content": block.content, "marker": block.marker}
        _reject_existing(spans.get(instruction.scope, block.full_span).extract(outline.text), instruction.text)
    return block_edits.write_block(outline, block, instruction)


def _must_be_new(instruction: PatchInstruction) -> bool:
    is_addition = instruction.operation in ("prepend", "append")
    return instruction.reject_if_content_preexists and is_addition and bool(instruction.text.strip())


def _reject_existing_section(outline: NoteOutline, section: NoteSection, instruction: PatchInstruction) -> None:
    """Raise ContentExists if the target has the content as it would be written, with its headings shifted."""
    if not _must_be_new(instruction):
        return None
    if instruction.within is not None and instruction.scope == "content":
        block, _ = section_edits.find_body_block(section, instruction.within)
        return _reject_existing(outline.text[block.start : block.end], instruction.text)
    if instruction.scope == "marker":
        return _reject_existing(section.text, instruction.text)
    is_full = instruction.scope == "markerAndContent" and instruction.within is None
    level = (section.parent.level if section.parent else 0) if is_full else section.level
    span = section.full_span if is_full else section.content
    return _reject_existing(span.extract(outline.text), shift_headings(instruction.text, level).text)


def _reject_existing(current: str, added: str) -> None:
    if added.strip() in current:
        raise ContentExists("The target already has this content.")


def read_part(text: str, kind: str, names: tuple[str, ...], scope: str) -> Any:
    """Return the text of a part, or the value of a field. Raises NoSuchTarget, InvalidFrontmatter."""
    if kind == "heading":
        return read_heading(text, names, scope)
    return read_block(text, names[0], scope) if kind == "block" else read_field(text, names[0], scope)


def read_heading(text: str, path: tuple[str, ...], scope: str) -> str:
    """Return a section's text. Raises NoSuchTarget.

    Heading levels are relative to the target, or with `markerAndContent` to its parent.
    """
    outline = parse_outline(text)
    section = outline.find_section(path)
    if section is None:
        raise NoSuchTarget(f"The note has no heading {list(path)!r}.")
    if scope == "marker":
        return section.text
    if scope == "content":
        return shift_headings(section.content.extract(text), -section.level).text
    return shift_headings(section.full_span.extract(text), -(section.parent.level if section.parent else 0)).text


def read_block(text: str, name: str, scope: str) -> str:
    """Return a block's text, or its id with the scope `marker`. Raises NoSuchTarget."""
    block = parse_outline(text).blocks.get(name)
    if block is None:
        raise NoSuchTarget(f"The note has no block ^{name}.")
    if scope == "marker":
        return block.name
    return (block.content if scope == "content" else block.full_span).extract(text)


def read_field(text: str, name: str, scope: str) -> Any:
    """Return a field's value, its name, or an object of both. Raises NoSuchTarget, InvalidFrontmatter."""
    fields = frontmatter.read(text)
    if name not in fields:
        raise NoSuchTarget(f"The note has no frontmatter field {name!r}.")
    if scope == "marker":
        return name
    return {name: fields[name]} if scope == "markerAndContent" else fields[name]


def build_document_map(text: str) -> JsonObject:
    """Return nested `headings`, ids of `blocks`, `frontmatterFields` and `version`. Raises InvalidFrontmatter.

    A name that occurs again below the same heading gets a repeat number, with which it works as a target.
    """
    outline = parse_outline(text)
    return {
        "headings": _heading_tree(outline.root),
        "blocks": list(outline.blocks),
        "frontmatterFields": _field_names(text),
        "version": hashlib.sha256(text.encode()).hexdigest(),
    }


def build_legacy_document_map(text: str) -> JsonObject:
    """Return the map of format 1: paths of headings joined by `::` and ids, each once; no version."""
    outline = parse_outline(text)
    return {
        "headings": list(legacy.map_headings(outline)),
        "blocks": list(dict.fromkeys(block.name for block in outline.blocks.values())),
        "frontmatterFields": _field_names(text),
    }


def _field_names(text: str) -> list[str]:
    try:
        return list(frontmatter.read(text))
    except InvalidFrontmatter:  # YAML, as `parse_outline` has checked, but not a mapping
        return []


def _heading_tree(section: NoteSection) -> JsonObject:
    return {name: _heading_tree(child) for name, child in section.children.items()}
