"""Edits of a heading's text, of its name, of the whole section, and of one block of its text. Pure."""

from __future__ import annotations

import re

import msgspec

from stentor.surfaces.vault.patching.blocks import Block
from stentor.surfaces.vault.patching.faults import NoSuchTarget, PatchFailed
from stentor.surfaces.vault.patching.instruction import Instruction
from stentor.surfaces.vault.patching.levels import DEEPEST, Warned, shifted, too_deep
from stentor.surfaces.vault.patching.outline import Outline, Section
from stentor.surfaces.vault.patching.spans import (
    Edit,
    Span,
    begins_heading,
    fragment,
    line_ends_before,
    past_blank_lines,
    point,
    set_apart,
    spliced,
    with_newlines,
)

_MARKED = re.compile(r" {0,3}#{1,6}(?=[ \t\r\n]|\Z)")


class Patched(msgspec.Struct, frozen=True):
    """The note afterwards, and what the caller should know of the edit."""

    text: str
    warnings: list[Warned] = []


def written(outline: Outline, section: Section, wanted: Instruction) -> Patched:
    """`replace`, `prepend` and `append` on content, marker and both."""
    if wanted.scope == "marker":
        return Patched(spliced(outline.text, _renamed(outline, section, wanted)))
    if wanted.scope == "markerAndContent":
        return _whole(outline, section, wanted)
    new, warnings = _shifted(outline, wanted.words, section.level)
    return Patched(spliced(outline.text, _content(outline, section, wanted.operation, new)), warnings)


def _shifted(outline: Outline, words: str, by: int) -> tuple[str, list[Warned]]:
    found = shifted(words, by)
    return fragment(found.text, outline.newline), found.warnings


def _content(outline: Outline, section: Section, operation: str, new: str) -> Edit:
    """Blank lines below the heading stay where they are, unless the text is taken away."""
    text, span = outline.text, section.content
    empty = span.start == span.end
    begin = past_blank_lines(text, span) if new else span.start
    underlined = bool(new) and _underlined(text, span.end)
    if operation == "append":
        return set_apart(text, point(span.end), new, outline.newline, before=not empty, after=underlined)
    if operation == "prepend":
        return set_apart(text, point(begin), new, outline.newline, before=False, after=not empty or underlined)
    return set_apart(text, Span(begin, span.end), new, outline.newline, before=False, after=underlined)


def _underlined(text: str, at: int) -> bool:
    """Whether a heading begins there that is made by the line below it: text just before it would become part of it."""
    return at < len(text) and _MARKED.match(text, at) is None


def _renamed(outline: Outline, section: Section, wanted: Instruction) -> Edit:
    marker = marker_of(section)
    name = {
        "replace": wanted.words,
        "prepend": wanted.words + section.text,
        "append": section.text + wanted.words,
    }[wanted.operation]
    end = outline.newline if marker.of(outline.text).endswith(("\n", "\r")) else ""
    return Edit(marker, f"{'#' * section.level} {name}{end}")


def marker_of(section: Section) -> Span:
    """Raises PatchFailed for the root, which has none."""
    if section.marker is None:
        raise PatchFailed("The note as a whole has no heading, so that there is none to change, move or stand beside.")
    return section.marker


def _whole(outline: Outline, section: Section, wanted: Instruction) -> Patched:
    new, warnings = _shifted(outline, wanted.words, section.parent.level if section.parent else 0)
    before = not begins_heading(new, 0)
    if wanted.operation == "replace":
        span = section.whole
    else:
        marker = marker_of(section)
        span = point(marker.start if wanted.operation == "prepend" else section.end)
    edit = set_apart(outline.text, span, new, outline.newline, before=before, after=False)
    return Patched(spliced(outline.text, edit), warnings)


def created(outline: Outline, wanted: Instruction) -> Patched:
    """The headings of the path that are missing, below the deepest that is there, and the content in the last."""
    if wanted.operation == "delete" or wanted.scope != "content":
        raise NoSuchTarget("The heading is missing, and only its content can be made with it.")
    known = max(n for n in range(len(wanted.path)) if outline.section(wanted.path[:n]) is not None)
    section = outline.section(wanted.path[:known])
    assert section is not None
    names = wanted.path[known:]
    if any("\n" in name or "\r" in name for name in names):
        raise PatchFailed("A heading is one line, so that it cannot be made of a name with more.")
    lines = [f"{'#' * level} {name}{outline.newline}" for level, name in enumerate(names, section.level + 1)]
    deepest = section.level + len(names)
    new, warnings = _shifted(outline, wanted.words, deepest)
    if deepest > DEEPEST:
        warnings = [too_deep(names[-1], deepest), *warnings]
    joint = outline.newline if line_ends_before(outline.text, section.end) == 0 and section.end > 0 else ""
    return Patched(spliced(outline.text, Edit(point(section.end), joint + "".join(lines) + new)), warnings)


def part_of(section: Section, within: int) -> tuple[Block, int]:
    """One block of the section's own text, and its place. Raises NoSuchTarget."""
    count = len(section.parts)
    index = within + count if within < 0 else within
    if not 0 <= index < count:
        raise NoSuchTarget(f"The heading's own text has {count} blocks; there is no number {within}.")
    return section.parts[index], index


def part_written(outline: Outline, section: Section, wanted: Instruction) -> Patched:
    """One block: its text as it is written, or a new block beside it."""
    assert wanted.within is not None
    part, index = part_of(section, wanted.within)
    if wanted.scope == "markerAndContent":
        return _beside(outline, section, index, wanted)
    span = Span(part.start, part.end)
    if wanted.operation == "delete":
        return Patched(spliced(outline.text, Edit(Span(part.start, after_blank(outline.text, part.end)), "")))
    return Patched(spliced(outline.text, literal(outline, span, wanted)))


def _beside(outline: Outline, section: Section, index: int, wanted: Instruction) -> Patched:
    """After a block means before the next one, so that a line with the block's id stays with it."""
    new, warnings = _shifted(outline, wanted.words, section.level)
    parts, body = section.parts, section.body
    if wanted.operation == "prepend":
        at = parts[index].start
    else:
        at = parts[index + 1].start if index + 1 < len(parts) else body.end
    before, after = at != body.start, at != body.end
    edit = set_apart(outline.text, point(at), new, outline.newline, before=before, after=after)
    return Patched(spliced(outline.text, edit), warnings)


def literal(outline: Outline, span: Span, wanted: Instruction) -> Edit:
    """The caller's text as it is, but for its line ends."""
    new = with_newlines(wanted.words, outline.newline)
    places = {"replace": span, "prepend": point(span.start), "append": point(span.end)}
    return Edit(places[wanted.operation], new)


def after_blank(text: str, at: int) -> int:
    """After the line end there and one blank line."""
    for _ in range(2):
        at += 2 if text[at : at + 2] == "\r\n" else 1 if text[at : at + 1] in ("\n", "\r") else 0
    return at
