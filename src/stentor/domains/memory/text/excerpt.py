"""A piece of a text around what was looked for. Pure."""

from __future__ import annotations

from stentor.domains.memory.text import words

LENGTH = 200
_BEFORE = 60


def excerpt(text: str, wanted: frozenset[str]) -> str:
    """About 200 characters with the first hit in them, cut between words; the beginning when there is none."""
    hits = words.places(text, wanted)
    start = max(0, hits[0][0] - _BEFORE) if hits else 0
    if start:
        blank = text.find(" ", start, hits[0][0])
        start = blank + 1 if blank >= 0 else start
    end = min(len(text), start + LENGTH)
    if end < len(text):
        blank = text.rfind(" ", hits[0][1] if hits else start + 1, end)
        end = blank if blank > start else end
    cut = " ".join(text[start:end].split())
    return f"{'… ' if start else ''}{cut}{' …' if end < len(text) else ''}"
