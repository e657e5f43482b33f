"""Parts of a note read, in the form in which an edit of the same place takes them; and the map of all parts. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from stentor.domains.notes import frontmatter
from stentor.domains.notes.frontmatter import BadFrontmatter
from stentor.surfaces.vault.patching import legacy
from stentor.surfaces.vault.patching.faults import NoSuchTarget
from stentor.surfaces.vault.patching.levels import shifted
from stentor.surfaces.vault.patching.outline import Section, outline


def part(text: str, kind: str, names: tuple[str, ...], scope: str) -> Any:
    """A text, or the value of a field. Raises NoSuchTarget, BadFrontmatter."""
    if kind == "heading":
        return heading(text, names, scope)
    return block(text, names[0], scope) if kind == "block" else field(text, names[0], scope)


def heading(text: str, path: tuple[str, ...], scope: str) -> str:
    """Levels are counted from the target, or from its parent with `markerAndContent`. Raises NoSuchTarget."""
    found = outline(text)
    section = found.section(path)
    if section is None:
        raise NoSuchTarget(f"The note has no heading {list(path)!r}.")
    if scope == "marker":
        return section.text
    if scope == "content":
        return shifted(section.content.of(text), -section.level).text
    return shifted(section.whole.of(text), -(section.parent.level if section.parent else 0)).text


def block(text: str, name: str, scope: str) -> str:
    """Raises NoSuchTarget."""
    found = outline(text).blocks.get(name)
    if found is None:
        raise NoSuchTarget(f"The note has no block ^{name}.")
    if scope == "marker":
        return found.name
    return (found.content if scope == "content" else found.whole).of(text)


def field(text: str, name: str, scope: str) -> Any:
    """Raises NoSuchTarget, BadFrontmatter."""
    known = frontmatter.read(text)
    if name not in known:
        raise NoSuchTarget(f"The note has no frontmatter field {name!r}.")
    if scope == "marker":
        return name
    return {name: known[name]} if scope == "markerAndContent" else known[name]


def document_map(text: str) -> dict[str, Any]:
    """`headings` in each other as in the note, `blocks` by id, `frontmatterFields`, `version`. Raises BadFrontmatter.

    What a note has twice below the same heading gets a name of its own, which works as a target.
    """
    found = outline(text)
    return {
        "headings": _tree(found.root),
        "blocks": list(found.blocks),
        "frontmatterFields": _fields(text),
        "version": hashlib.sha256(text.encode()).hexdigest(),
    }


def old_document_map(text: str) -> dict[str, Any]:
    """That of format 1: headings with those above them, joined by `::`, each name once; no version."""
    found = outline(text)
    return {
        "headings": list(legacy.headings(found)),
        "blocks": list(dict.fromkeys(block.name for block in found.blocks.values())),
        "frontmatterFields": _fields(text),
    }


def _fields(text: str) -> list[str]:
    """None of a block that is YAML and no list of names and values."""
    try:
        return list(frontmatter.read(text))
    except BadFrontmatter:
        return []


def _tree(section: Section) -> dict[str, Any]:
    return {name: _tree(child) for name, child in section.children.items()}
