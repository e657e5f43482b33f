"""The input of the demo: sections of the project's own Markdown, or of the package description if not in a checkout."""

from __future__ import annotations

import re
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path

import msgspec

LONG_SECTION_CHARACTERS = 1_200
"""Minimum length of a long section, in characters."""
MIN_SECTION_CHARACTERS = 280
_CODE = re.compile(r"(?ms)^```.*?^```$")
_HEADING = re.compile(r"(?m)^#{1,3} +(.+)$")


class DemoSection(msgspec.Struct, frozen=True):
    """One section of the documentation."""

    title: str
    text: str

    @property
    def is_long(self) -> bool:
        return len(self.text) >= LONG_SECTION_CHARACTERS


def read_sections() -> tuple[list[DemoSection], list[DemoSection]]:
    """Return the long and the short sections of the documentation, or of the package description outside a checkout."""
    sections = [section for path, text in read_documents() for section in _split_sections(Path(path).stem, text)]
    long = [s for s in sections if s.is_long]
    short = [s for s in sections if not s.is_long]
    return long or short, short or long


def take_sections(pool: list[DemoSection], start: int, count: int) -> list[DemoSection]:
    """Return `count` sections from an index on, wrapping around at the end."""
    return list(islice(cycle(pool), start, start + count))


def read_documents() -> list[tuple[str, str]]:
    """Return the path and the text of each page of the documentation."""
    root = Path(__file__).parents[4]
    paths = [
        root / "README.md",
        *sorted(path for path in (root / "docs").glob("*.md") if path.stem != "demo"),  # the output of an earlier demo
        *sorted((root / "docs/decisions").glob("*.md")),
    ]
    if not (root / "pyproject.toml").exists():
        return [("README.md", str(metadata.metadata("stentor")["Description"] or ""))]
    return [(path.relative_to(root).as_posix(), path.read_text()) for path in paths if path.exists()]


def _split_sections(document: str, text: str) -> list[DemoSection]:
    """Split a page into sections without their code blocks, which may show output of an earlier demo."""
    parts = _HEADING.split(_CODE.sub("", text))
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [
        DemoSection(f"{document}: {title}", body.strip())
        for title, body in pairs
        if len(body.strip()) >= MIN_SECTION_CHARACTERS
    ]
