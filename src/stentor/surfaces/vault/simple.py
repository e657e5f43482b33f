"""The simple search: notes with every word of a query, scored by where and how often. Pure."""

from __future__ import annotations

from typing import Any

MOST_MATCHES = 20
"""Of one word in one note."""


def words_of(query: str) -> list[str]:
    return list(dict.fromkeys(query.lower().split()))


def hit(path: str, name: str, content: str, folded: str, words: list[str], around: int) -> dict[str, Any] | None:
    """A row of the answer, or None when a word is nowhere. A word in the name counts ten times one in the text."""
    lower = name.lower()
    for word in words:
        if word not in folded and word not in lower:
            return None
    named = [match for word in words if (match := _named(name, lower, word)) is not None]
    inside = sorted(_inside(content, folded, words, around), key=lambda match: int(match["match"]["start"]))
    return {"filename": path, "score": 10 * len(named) + len(inside), "matches": [*named, *inside]}


def _named(name: str, lower: str, word: str) -> dict[str, Any] | None:
    at = lower.find(word)
    if at < 0:
        return None
    return {"match": {"start": at, "end": at + len(word), "source": "filename"}, "context": name}


def _inside(content: str, folded: str, words: list[str], around: int) -> list[dict[str, Any]]:
    """The first places of each word in the text, with what stands around them."""
    found = []
    for word in words:
        at = folded.find(word)
        for _ in range(MOST_MATCHES):
            if at < 0:
                break
            end = at + len(word)
            context = content[max(0, at - around) : end + around]
            found.append({"match": {"start": at, "end": end, "source": "content"}, "context": context})
            at = folded.find(word, end)
    return found
