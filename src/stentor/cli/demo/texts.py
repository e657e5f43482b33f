"""The demo's input: sections of the project's own Markdown."""

from __future__ import annotations

import re
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path

import msgspec

LONG = 1_200
"""Characters from which a section counts as long."""
SHORTEST = 280
_CODE = re.compile(r"(?ms)^```.*?^```$")
_HEADING = re.compile(r"(?m)^#{1,3} +(.+)$")


class Section(msgspec.Struct, frozen=True):
    title: str
    text: str

    @property
    def is_long(self) -> bool:
        return len(self.text) >= LONG


def sections() -> tuple[list[Section], list[Section]]:
    """Long and short sections of the documentation; of the package's description when it is not at hand."""
    found = [section for title, text in documents() for section in _split(title, text)]
    long = [s for s in found if s.is_long]
    short = [s for s in found if not s.is_long]
    return long or short, short or long


def take(pool: list[Section], start: int, count: int) -> list[Section]:
    """`count` sections from a place on, beginning again at the end."""
    return list(islice(cycle(pool), start, start + count))


def documents() -> list[tuple[str, str]]:
    """Name and text of each page."""
    root = Path(__file__).parents[4]
    paths = [
        root / "README.md",
        *sorted((root / "docs").glob("*.md")),
        *sorted((root / "docs/decisions").glob("*.md")),
    ]
    if not (root / "pyproject.toml").exists():
        return [("README", str(metadata.metadata("stentor")["Description"] or ""))]
    return [(path.stem, path.read_text()) for path in paths if path.exists()]


def _split(document: str, text: str) -> list[Section]:
    """Prose alone: no code, and so not the output of an earlier demo either."""
    parts = _HEADING.split(_CODE.sub("", text))
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [Section(f"{document}: {title}", body.strip()) for title, body in pairs if len(body.strip()) >= SHORTEST]
