"""What is looked for by word, and what is shown of it. The caller's text never becomes query syntax. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from stentor.domains.memory.text import words
from stentor.domains.memory.text.excerpt import excerpt

Field = Literal["title", "tags", "content"]
MatchMode = Literal["all", "any"]
FIELDS: tuple[Field, ...] = ("title", "tags", "content")
WEIGHTS: Mapping[Field, float] = {"title": 5.0, "tags": 3.0, "content": 1.0}
"""Of a word by where it stands: in the title it says more than in the text."""


class Query(msgspec.Struct, frozen=True):
    """`phrases` are distinct, each of one term or of several that must stand one after the other."""

    phrases: tuple[tuple[str, ...], ...]
    fields: frozenset[Field]
    mode: MatchMode


class Hit(msgspec.Struct, frozen=True):
    """`score` is BM25's, larger is better."""

    doc_id: int
    path: str
    title: str
    body: str
    score: float


class Match(msgspec.Struct, frozen=True):
    path: str
    title: str
    excerpt: str
    relevance_score: float


def query_of(wanted: Sequence[str], fields: Sequence[Field], mode: MatchMode) -> Query | None:
    """A text of several words is a phrase. None when there is no word to look for."""
    phrases = tuple(dict.fromkeys(tuple(found) for text in wanted if (found := words.terms(text))))
    return Query(phrases, frozenset(fields), mode) if phrases and fields else None


def shown(hits: list[Hit], wanted: frozenset[str]) -> list[Match]:
    """With excerpts, and scores as shares of the best one."""
    best = max((hit.score for hit in hits), default=0.0) or 1.0
    return [Match(hit.path, hit.title, excerpt(hit.body, wanted), round(hit.score / best, 6)) for hit in hits]
