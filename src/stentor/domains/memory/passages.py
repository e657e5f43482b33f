"""The passages of documents that say most about a question, and the sentences in them. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from stentor.domains.memory.text import words
from stentor.domains.memory.text.outline import sections

MAX_LENGTH = 600
_SENTENCE = re.compile(r"(?<=[.!?。！？])[\"')\]]*\s+|(?<=[。！？])")
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)")
_MARK = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$")


class Source(msgspec.Struct, frozen=True):
    """A document to look in; `score` from 0 to 1 says how good a match it is as a whole."""

    path: str
    title: str
    body: str
    score: float


class Passage(msgspec.Struct, frozen=True):
    """`sentences` are those of the text that say most, in their order; `held` the question's terms in them."""

    path: str
    title: str
    heading: str
    text: str
    sentences: tuple[str, ...]
    held: frozenset[str]
    score: float


class _Piece(msgspec.Struct, frozen=True):
    """A paragraph or an item of a list; how often each asked term stands in its text, and which in its heading."""

    source: Source
    heading: str
    text: str
    length: int
    counts: Counter[str]
    above: frozenset[str]

    @property
    def held(self) -> frozenset[str]:
        return self.above | frozenset(self.counts)


def passages(sources: Sequence[Source], question: str, most: int, sentences: int = 2) -> list[Passage]:
    """The best passage of each document, the best first; none without a word of the question."""
    asked = asked_for(question)
    pieces = [piece for source in sources for piece in _pieces(source, asked)]
    weights = _weights(pieces)
    mean = sum(piece.length for piece in pieces) / len(pieces) if pieces else 1.0
    best: dict[str, Passage] = {}
    for piece in pieces:
        score = _score(piece, weights, mean)
        known = best.get(piece.source.path)
        if score > 0 and (known is None or score > known.score):
            best[piece.source.path] = _passage(piece, score, asked, weights, sentences)
    return sorted(best.values(), key=lambda passage: (-passage.score, passage.path))[:most]


def _score(piece: _Piece, weights: Mapping[str, float], mean: float) -> float:
    """As BM25 has it within the paragraph; a word of the heading alone counts half, a better document more."""
    slack = 0.3 + 0.9 * piece.length / (mean or 1)
    own = sum(weights[term] * count / (count + slack) for term, count in piece.counts.items())
    above = sum(weights[term] / 2 for term in piece.above if term not in piece.counts)
    return (own + above / (1 + slack)) * (0.5 + piece.source.score / 2)


def asked_for(question: str) -> frozenset[str]:
    """The terms of a question that say what it is about; all of them when none does."""
    found = words.terms(" ".join(word for word in re.findall(r"\w+", question) if word.lower() not in words.STOP))
    return frozenset(found or words.terms(question))


def covered(found: Sequence[Passage], question: str) -> float:
    """The share of the question's terms that the passages hold, from 0 to 1."""
    asked = asked_for(question)
    held = frozenset(term for passage in found for term in passage.held)
    return len(asked & held) / len(asked) if asked else 0.0


def _pieces(source: Source, asked: frozenset[str]) -> Iterator[_Piece]:
    for section in sections(_FENCE.sub("", source.body)):
        above = asked & frozenset(words.terms(section.heading))
        for paragraph in _PARAGRAPH.split(section.text):
            text = " ".join(_MARK.sub("", paragraph).split())[:MAX_LENGTH]
            if text and not text.startswith("|"):  # a table is no prose
                found = words.terms(text)
                counts = Counter(term for term in found if term in asked)
                yield _Piece(source, section.heading, text, len(found), counts, above)


def _weights(pieces: Sequence[_Piece]) -> Mapping[str, float]:
    """A word that few passages have says more."""
    counts = Counter(term for piece in pieces for term in piece.held)
    return {term: math.log(1 + len(pieces) / count) for term, count in counts.items()}


def _passage(piece: _Piece, score: float, asked: frozenset[str], weights: Mapping[str, float], most: int) -> Passage:
    parts = [part.strip() for part in _SENTENCE.split(piece.text) if part and part.strip()]
    held = [asked & frozenset(words.terms(part)) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: (-sum(weights.get(term, 0.0) for term in held[i]), i))
    chosen = sorted(order[:most])
    source = piece.source
    sentences = tuple(parts[i] for i in chosen)
    return Passage(source.path, source.title, piece.heading, piece.text, sentences, piece.held, round(score, 6))
