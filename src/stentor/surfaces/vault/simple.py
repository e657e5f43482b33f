"""The simple search: notes with every word of a query, scored by where and how often. Pure."""

from __future__ import annotations

import msgspec

MOST_MATCHES = 20
"""Of one word in one note."""
NAMED = 10
"""What a word in the name counts; one in the text counts 1."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Places in the note's text, or in its name."""

    start: int
    end: int
    source: str


class Match(msgspec.Struct, frozen=True, gc=False):
    match: Span
    context: str


class Hit(msgspec.Struct, frozen=True):
    """A row of the answer."""

    filename: str
    score: int
    matches: list[Match]


def words_of(query: str) -> list[str]:
    return list(dict.fromkeys(query.lower().split()))


def hit(path: str, name: str, content: str, folded: str, words: list[str], around: int) -> Hit | None:
    """None when a word is neither in the name nor in the text; `folded` is the text in lower case."""
    lower = name.lower()
    for word in words:
        if word not in folded and word not in lower:
            return None
    matches = [_named(name, lower.index(word), word) for word in words if word in lower]
    score = (NAMED - 1) * len(matches)
    inside: list[Match] = []
    for word in words:
        _look(content, folded, word, around, inside)
    if len(words) > 1:
        inside.sort(key=lambda found: found.match.start)
    return Hit(path, score + len(matches) + len(inside), matches + inside)


def _named(name: str, at: int, word: str) -> Match:
    return Match(Span(at, at + len(word), "filename"), name)


def _look(content: str, folded: str, word: str, around: int, found: list[Match]) -> None:
    """The first places of a word in the text, with what stands around them."""
    at = folded.find(word)
    for _ in range(MOST_MATCHES):
        if at < 0:
            break
        end = at + len(word)
        found.append(Match(Span(at, end, "content"), content[max(0, at - around) : end + around]))
        at = folded.find(word, end)
