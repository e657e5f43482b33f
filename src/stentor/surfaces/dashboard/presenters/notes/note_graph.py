"""Lays out the notes around a note as a drawing: the note, a column of the notes beside it, and one of those beyond.

Every label keeps its size on a narrow screen, where a circle of forty notes would be unreadable. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.notes.note_rendering import note_url

WIDTH = 290
ROW_HEIGHT = 22
MIDDLE_X, BESIDE_X, BEYOND_X = 8, 34, 168
"""Horizontal positions of the dots, in pixels of a drawing that is WIDTH wide."""
LABEL_OFFSET = 8
FAN_WIDTH = 28
"""Width in which the lines between the two columns bend."""
# An estimate: the server cannot measure text in the reader's font.
CHARACTER_WIDTH = 6.2
"""Mean width of a character in pixels; wide ones, as in Chinese, take two."""
ARROWS = {"to": "→", "from": "←", "both": "↔", "via": ""}


class GraphNote(msgspec.Struct, frozen=True):
    """A note with its dot and label. `relation` says whether the middle links "to" it, "from" it, "both", or "via"
    other notes, whose titles are `through`.
    """

    title: str
    label: str
    address: str
    path: str
    relation: str
    through: list[str]
    shared_tags: list[str]
    x: int
    y: float

    @property
    def width(self) -> float:
        """The width of its dot and label, which can be clicked."""
        return _label_end(self) - self.x + LABEL_OFFSET

    @property
    def description(self) -> str:
        """The name of the link for a screen reader."""
        where = {
            "to": "linked from this note",
            "from": "links to this note",
            "both": "linked in both directions",
            "via": f"linked through {', '.join(self.through[:3])}",
        }[self.relation]
        shares = f", shares #{' #'.join(self.shared_tags)}" if self.shared_tags else ""
        return f"{self.title}, {where}{shares}"


class NoteGraph(msgspec.Struct, frozen=True):
    """The drawing; `lines` are SVG paths, `omitted` is the number of notes that it leaves out."""

    width: int
    height: int
    middle_y: float
    notes: list[GraphNote]
    lines: list[str]
    omitted: int


def build_graph(neighbourhood: JsonObject, vault: str) -> NoteGraph:
    """Lay out the output of the operation `memory.neighbourhood`."""
    middle, *others = neighbourhood["documents"]
    links = [(link["source"], link["target"]) for link in neighbourhood["links"]]
    beside = [one for one in others if one["distance"] == 1]
    rows = {one["path"]: row for row, one in enumerate(beside)}
    beyond = sorted(
        (one for one in others if one["distance"] == 2), key=lambda one: _mean_row(rows, _linked(links, one["path"]))
    )
    height = max(len(beside), len(beyond), 1) * ROW_HEIGHT
    titles = {one["path"]: one["title"] or _stem(one["path"]) for one in neighbourhood["documents"]}
    notes = []
    for column, x in ((beside, BESIDE_X), (beyond, BEYOND_X)):
        end = BEYOND_X - FAN_WIDTH if x == BESIDE_X and beyond else WIDTH
        top = (height - len(column) * ROW_HEIGHT) / 2
        for row, one in enumerate(column):
            path, title = one["path"], titles[one["path"]]
            relation = _relation(links, middle["path"], path)
            room = (end - x - LABEL_OFFSET) / CHARACTER_WIDTH
            notes.append(
                GraphNote(
                    title,
                    _fit(f"{ARROWS[relation]} {title}".strip(), room),
                    note_url(path, vault),
                    path,
                    relation,
                    [titles[other] for other in _linked(links, path) if other in rows],
                    sorted(set(one["tags"]) & set(middle["tags"])),
                    x,
                    top + (row + 0.5) * ROW_HEIGHT,
                )
            )
    lines = _lines(middle["path"], height / 2, notes, links)
    return NoteGraph(WIDTH, height, height / 2, notes, lines, neighbourhood["omitted"])


def _linked(links: Iterable[tuple[str, str]], path: str) -> list[str]:
    """Return the notes that a note links to or that link to it, without duplicates."""
    ends = (b if a == path else a for a, b in links if path in (a, b))
    return list(dict.fromkeys(ends))


def _mean_row(rows: dict[str, int], paths: Iterable[str]) -> float:
    known = [rows[path] for path in paths if path in rows]
    return sum(known) / len(known) if known else 0.0


def _relation(links: Sequence[tuple[str, str]], middle: str, path: str) -> str:
    to, back = (middle, path) in links, (path, middle) in links
    return "both" if to and back else "to" if to else "from" if back else "via"


def _lines(middle: str, middle_y: float, notes: Iterable[GraphNote], links: Iterable[tuple[str, str]]) -> list[str]:
    placed = {note.path: note for note in notes}
    # Lines to the second column leave the first one at the end of its longest label, so that they cross none.
    fan_x = max((_label_end(note) for note in placed.values() if note.x == BESIDE_X), default=0.0)
    lines = []
    # Two notes that link to each other get one line.
    for pair in dict.fromkeys(tuple(sorted(link)) for link in links):
        ends = sorted((placed[path] for path in pair if path in placed), key=lambda note: (note.x, note.y))
        if len(ends) == 2 and ends[0].x == ends[1].x:
            lines.append(_bow(ends[0], ends[1]))
        elif len(ends) == 2:
            start = f"M{_label_end(ends[0]):g} {ends[0].y:g}L"
            lines.append(start + _curve(fan_x, ends[0].y, ends[1].x, ends[1].y))
        elif ends and middle in pair:
            lines.append("M" + _curve(MIDDLE_X, middle_y, ends[0].x, ends[0].y))
    return lines


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line that starts and ends horizontally, as an SVG path without its first command."""
    bend = (x1 + x2) / 2
    return f"{x1:g} {y1:g}C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"


def _bow(upper: GraphNote, lower: GraphNote) -> str:
    """Return a line between two notes of a column, which swings out to the left of their dots."""
    out = upper.x - 16
    return f"M{upper.x} {upper.y:g}C{out} {upper.y:g} {out} {lower.y:g} {lower.x} {lower.y:g}"


def _label_end(note: GraphNote) -> float:
    return note.x + LABEL_OFFSET + 3 + _width(note.label) * CHARACTER_WIDTH


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _fit(text: str, room: float) -> str:
    """Shorten a text to this many characters of the usual width."""
    if _width(text) <= room:
        return text
    while text and _width(text) > room - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".md")
