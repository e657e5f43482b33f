"""Levels of headings inside of a text that is put below another heading. Pure.

A text that a caller sends counts its `#` from the place where it goes: one `#` is a child of the target.
"""

from __future__ import annotations

import msgspec

from stentor.surfaces.vault.patching.blocks import blocks
from stentor.surfaces.vault.patching.spans import HEADING, Edit, Span, spliced

DEEPEST = 6


class Warned(msgspec.Struct, frozen=True):
    """Something that the caller should know of an edit that was made."""

    code: str
    message: str


class Shifted(msgspec.Struct, frozen=True):
    text: str
    warnings: list[Warned]


def shifted(text: str, by: int) -> Shifted:
    """The text with every heading's level changed; what is in code, lists and quotes is none."""
    if by == 0:
        return Shifted(text, [])
    edits, warnings = [], []
    for block in blocks(text):
        found = HEADING.match(text, block.start) if block.kind == "heading" and block.depth == 0 else None
        if found is None:
            continue  # no heading, or one that is underlined and has no sign to count
        level = max(1, len(found[1]) + by)
        edits.append(Edit(Span(*found.span(1)), "#" * level))
        if level > DEEPEST:
            warnings.append(too_deep(block.text, level))
    return Shifted(spliced(text, *edits), warnings)


def too_deep(text: str, level: int) -> Warned:
    message = f"The heading {text!r} would have level {level}; Markdown has {DEEPEST}, so that it is text."
    return Warned("heading-depth-overflow", message)
