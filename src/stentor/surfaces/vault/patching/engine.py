"""One instruction of format 2 applied to a note. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from stentor.surfaces.vault.patching import fields, headings, labels, structure
from stentor.surfaces.vault.patching.faults import ContentPresent, NoSuchTarget, OtherVersion
from stentor.surfaces.vault.patching.headings import Patched
from stentor.surfaces.vault.patching.instruction import Instruction
from stentor.surfaces.vault.patching.levels import shifted
from stentor.surfaces.vault.patching.outline import Labelled, Outline, Section, outline


def patched(text: str, wanted: Instruction) -> Patched:
    """The note afterwards; whatever is outside of the target keeps every sign. Raises the faults of this package."""
    present = hashlib.sha256(text.encode()).hexdigest()
    if wanted.if_match not in (None, present):
        raise OtherVersion(f"The note is at version {present} now.", {"version": present})
    if wanted.target_type == "frontmatter":
        return Patched(fields.patched(text, wanted))
    found = outline(text)
    if wanted.target_type == "heading":
        return _heading(found, found.section(wanted.path), wanted)
    return _block(found, found.blocks.get(wanted.name), wanted)


def _heading(found: Outline, section: Section | None, wanted: Instruction) -> Patched:
    if section is None:
        if wanted.create_target_if_missing:
            return headings.created(found, wanted)
        raise NoSuchTarget(f"The note has no heading {list(wanted.path)!r}.")
    _refuse_repetition(found, section, wanted)
    if wanted.within is not None:
        return headings.part_written(found, section, wanted)
    if wanted.scope == "parent":
        return structure.moved(found, section, wanted)
    if wanted.operation == "delete":
        return structure.deleted(found, section, wanted.scope)
    return headings.written(found, section, wanted)


def _block(found: Outline, block: Labelled | None, wanted: Instruction) -> Patched:
    if block is None:
        if wanted.create_target_if_missing:
            return labels.created(found, wanted)
        raise NoSuchTarget(f"The note has no block ^{wanted.name}.")
    if _is_once(wanted):
        spans: dict[str, Any] = {"content": block.content, "marker": block.marker}
        _refuse_present(spans.get(wanted.scope, block.whole).of(found.text), wanted.words)
    return labels.written(found, block, wanted)


def _is_once(wanted: Instruction) -> bool:
    asked = wanted.reject_if_content_preexists and wanted.operation in ("prepend", "append")
    return asked and bool(wanted.words.strip())


def _refuse_repetition(found: Outline, section: Section, wanted: Instruction) -> None:
    """The content is looked for as it would be written, that is with its headings at their levels."""
    if not _is_once(wanted):
        return None
    if wanted.within is not None and wanted.scope == "content":
        part, _ = headings.part_of(section, wanted.within)
        return _refuse_present(found.text[part.start : part.end], wanted.words)
    if wanted.scope == "marker":
        return _refuse_present(section.text, wanted.words)
    whole = wanted.scope == "markerAndContent" and wanted.within is None
    level = (section.parent.level if section.parent else 0) if whole else section.level
    span = section.whole if whole else section.content
    return _refuse_present(span.of(found.text), shifted(wanted.words, level).text)


def _refuse_present(present: str, words: str) -> None:
    if words.strip() in present:
        raise ContentPresent("The target has this content already.")
