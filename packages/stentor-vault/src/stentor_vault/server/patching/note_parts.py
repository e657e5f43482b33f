"""One instruction of format 2 applied to a note. Pure.

Parts of a note read, in the form in which an edit of the same place takes them; and the map of all parts. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

from stentor_vault.notes import frontmatter
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.server.patching import block_edits, field_edits, legacy, section_edits
from stentor_vault.server.patching.instruction import ContentExists, NoSuchTarget, PatchInstruction, VersionMismatch
from stentor_vault.server.patching.markdown_text import shift_headings
from stentor_vault.server.patching.outline import LabelledBlock, NoteOutline, NoteSection, parse_outline
from stentor_vault.server.patching.section_edits import PatchResult


def apply_instruction(text: str, wanted: PatchInstruction) -> PatchResult:
    """The note afterwards; whatever is outside of the target keeps every sign. Raises the faults of this package."""
    present = hashlib.sha256(text.encode()).hexdigest()
    if wanted.if_match not in (None, present):
        raise VersionMismatch(f"The note is at version {present} now.", {"version": present})
    if wanted.target_type == "frontmatter":
        return PatchResult(field_edits.patch_field(text, wanted))
    found = parse_outline(text)
    if wanted.target_type == "heading":
        return _patch_heading(found, found.find_section(wanted.path), wanted)
    return _patch_block(found, found.blocks.get(wanted.name), wanted)


def _patch_heading(found: NoteOutline, section: NoteSection | None, wanted: PatchInstruction) -> PatchResult:
    if section is None:
        if wanted.create_target_if_missing:
            return section_edits.create_section(found, wanted)
        raise NoSuchTarget(f"The note has no heading {list(wanted.path)!r}.")
    _reject_repetition(found, section, wanted)
    if wanted.within is not None:
        return section_edits.write_body_block(found, section, wanted)
    if wanted.scope == "parent":
        return section_edits.move_section(found, section, wanted)
    if wanted.operation == "delete":
        return section_edits.delete_section(found, section, wanted.scope)
    return section_edits.write_section(found, section, wanted)


def _patch_block(found: NoteOutline, block: LabelledBlock | None, wanted: PatchInstruction) -> PatchResult:
    if block is None:
        if wanted.create_target_if_missing:
            return block_edits.create_block(found, wanted)
        raise NoSuchTarget(f"The note has no block ^{wanted.name}.")
    if _must_be_new(wanted):
        spans: dict[str, Any] = {"content": block.content, "marker": block.marker}
        _reject_existing(spans.get(wanted.scope, block.full_span).extract(found.text), wanted.text)
    return block_edits.write_block(found, block, wanted)


def _must_be_new(wanted: PatchInstruction) -> bool:
    asked = wanted.reject_if_content_preexists and wanted.operation in ("prepend", "append")
    return asked and bool(wanted.text.strip())


def _reject_repetition(found: NoteOutline, section: NoteSection, wanted: PatchInstruction) -> None:
    """The content is looked for as it would be written, that is with its headings at their levels."""
    if not _must_be_new(wanted):
        return None
    if wanted.within is not None and wanted.scope == "content":
        part, _ = section_edits.find_body_block(section, wanted.within)
        return _reject_existing(found.text[part.start : part.end], wanted.text)
    if wanted.scope == "marker":
        return _reject_existing(section.text, wanted.text)
    whole = wanted.scope == "markerAndContent" and wanted.within is None
    level = (section.parent.level if section.parent else 0) if whole else section.level
    span = section.full_span if whole else section.content
    return _reject_existing(span.extract(found.text), shift_headings(wanted.text, level).text)


def _reject_existing(present: str, words: str) -> None:
    if words.strip() in present:
        raise ContentExists("The target has this content already.")


def read_part(text: str, kind: str, names: tuple[str, ...], scope: str) -> Any:
    """A text, or the value of a field. Raises NoSuchTarget, BadFrontmatter."""
    if kind == "heading":
        return read_heading(text, names, scope)
    return read_block(text, names[0], scope) if kind == "block" else read_field(text, names[0], scope)


def read_heading(text: str, path: tuple[str, ...], scope: str) -> str:
    """Levels are counted from the target, or from its parent with `markerAndContent`. Raises NoSuchTarget."""
    found = parse_outline(text)
    section = found.find_section(path)
    if section is None:
        raise NoSuchTarget(f"The note has no heading {list(path)!r}.")
    if scope == "marker":
        return section.text
    if scope == "content":
        return shift_headings(section.content.extract(text), -section.level).text
    return shift_headings(section.full_span.extract(text), -(section.parent.level if section.parent else 0)).text


def read_block(text: str, name: str, scope: str) -> str:
    """Raises NoSuchTarget."""
    found = parse_outline(text).blocks.get(name)
    if found is None:
        raise NoSuchTarget(f"The note has no block ^{name}.")
    if scope == "marker":
        return found.name
    return (found.content if scope == "content" else found.full_span).extract(text)


def read_field(text: str, name: str, scope: str) -> Any:
    """Raises NoSuchTarget, BadFrontmatter."""
    known = frontmatter.read(text)
    if name not in known:
        raise NoSuchTarget(f"The note has no frontmatter field {name!r}.")
    if scope == "marker":
        return name
    return {name: known[name]} if scope == "markerAndContent" else known[name]


def build_document_map(text: str) -> dict[str, Any]:
    """`headings` in each other as in the note, `blocks` by id, `frontmatterFields`, `version`. Raises BadFrontmatter.

    What a note has twice below the same heading gets a name of its own, which works as a target.
    """
    found = parse_outline(text)
    return {
        "headings": _heading_tree(found.root),
        "blocks": list(found.blocks),
        "frontmatterFields": _field_names(text),
        "version": hashlib.sha256(text.encode()).hexdigest(),
    }


def build_legacy_document_map(text: str) -> dict[str, Any]:
    """That of format 1: headings with those above them, joined by `::`, each name once; no version."""
    found = parse_outline(text)
    return {
        "headings": list(legacy.map_headings(found)),
        "blocks": list(dict.fromkeys(block.name for block in found.blocks.values())),
        "frontmatterFields": _field_names(text),
    }


def _field_names(text: str) -> list[str]:
    """None of a block that is YAML and no list of names and values."""
    try:
        return list(frontmatter.read(text))
    except InvalidFrontmatter:
        return []


def _heading_tree(section: NoteSection) -> dict[str, Any]:
    return {name: _heading_tree(child) for name, child in section.children.items()}
