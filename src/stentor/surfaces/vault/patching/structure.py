"""Sections moved and taken away. Pure."""

from __future__ import annotations

from msgspec import UnsetType

from stentor.surfaces.vault.patching.faults import NoSuchTarget, PatchFailed
from stentor.surfaces.vault.patching.headings import Patched, marker_of
from stentor.surfaces.vault.patching.instruction import Beside, Destination, Instruction, Path
from stentor.surfaces.vault.patching.levels import shifted
from stentor.surfaces.vault.patching.outline import Outline, Section
from stentor.surfaces.vault.patching.spans import Edit, Span, line_ends_before, point, spliced


def deleted(outline: Outline, section: Section, scope: str) -> Patched:
    """The text below the heading, the section with the blank lines after it, or the heading's line alone."""
    if scope == "content":
        return Patched(spliced(outline.text, Edit(section.content, "")))
    if scope == "markerAndContent":
        return Patched(spliced(outline.text, Edit(Span(section.start, section.end), "")))
    return _dissolved(outline, section)


def _dissolved(outline: Outline, section: Section) -> Patched:
    """What was below belongs to the section before; to the parent, one level up, when there is none before."""
    lines = Edit(marker_of(section), "")
    assert section.parent is not None
    elders = []
    for sibling in section.parent.children.values():
        if sibling is section:
            break
        elders.append(sibling)
    below = list(section.children.values())
    if not below or any(elder.level == section.level for elder in elders):
        return Patched(spliced(outline.text, lines))
    span = Span(below[0].start, section.whole.end)
    raised = shifted(span.of(outline.text), -1)
    return Patched(spliced(outline.text, lines, Edit(span, raised.text)), raised.warnings)


def moved(outline: Outline, section: Section, wanted: Instruction) -> Patched:
    """Below another heading, with its own sections; all levels change by the same. Raises PatchFailed, NoSuchTarget."""
    marker_of(section)
    assert isinstance(wanted.destination, Destination)
    parent = _known(outline, wanted.destination.parent)
    _refuse_circle(section, parent)
    at = _place(outline, parent, wanted.destination.place)
    changed = shifted(section.whole.of(outline.text), parent.level + 1 - section.level)
    gone = Span(section.start, section.end)
    gap = Span(section.whole.end, section.end).of(outline.text) or outline.newline * _missing(changed.text)
    new = changed.text + (gap if at < len(outline.text) else outline.newline * _missing(changed.text))
    if line_ends_before(outline.text, at) == 0 and at > 0:
        new = outline.newline + new
    return Patched(spliced(outline.text, Edit(gone, ""), Edit(point(at), new)), changed.warnings)


def _missing(text: str) -> int:
    return 0 if text.endswith(("\n", "\r")) else 1


def _known(outline: Outline, path: Path | None) -> Section:
    section = outline.section(path or ())
    if section is None:
        raise NoSuchTarget(f"The note has no heading {list(path or ())!r} to move the section to.")
    return section


def _refuse_circle(section: Section, parent: Section) -> None:
    above: Section | None = parent
    while above is not None:
        if above is section:
            raise PatchFailed("A section cannot be moved below itself.")
        above = above.parent


def _place(outline: Outline, parent: Section, place: str | Beside) -> int:
    children = list(parent.children.values())
    if isinstance(place, Beside):
        return _beside(outline, parent, place)
    if place == "first":
        return children[0].start if children else parent.gap.end
    return children[-1].end if children else parent.gap.end


def _beside(outline: Outline, parent: Section, place: Beside) -> int:
    before = not isinstance(place.before, UnsetType)
    path = place.before if before else place.after
    sibling = outline.section(path) if isinstance(path, tuple) else None
    if sibling is None or sibling.parent is not parent:
        raise NoSuchTarget("destination.place: there is no such section below the new parent.")
    return sibling.start if before else sibling.end
