"""A piece of a text around what was looked for. Pure.

The passages of documents that say most about a question, and the sentences in them. Pure.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.text.markdown import split_sections

EXCERPT_CHARS = 200
_BEFORE = 60


def make_excerpt(text: str, wanted: frozenset[str]) -> str:
    """About 200 characters with the first hit in them, cut between words; the beginning when there is none."""
    hits = tokenizer.find_spans(text, wanted)
    start = max(0, hits[0][0] - _BEFORE) if hits else 0
    if start:
        blank = text.find(" ", start, hits[0][0])
        start = blank + 1 if blank >= 0 else start
    end = min(len(text), start + EXCERPT_CHARS)
    if end < len(text):
        blank = text.rfind(" ", hits[0][1] if hits else start + 1, end)
        end = blank if blank > start else end
    cut = " ".join(text[start:end].split())
    return f"{'… ' if start else ''}{cut}{' …' if end < len(text) else ''}"


MAX_PASSAGE_CHARS = 600
_SENTENCE = re.compile(r"(?<=[.!?。！？])[\"')\]]*\s+|(?<=[。！？])")
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)")
_MARK = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$")


class PassageSource(msgspec.Struct, frozen=True):
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
    matched_terms: frozenset[str]
    score: float


class _Paragraph(msgspec.Struct, frozen=True):
    """A paragraph or an item of a list; how often each asked term stands in its text, and which in its heading."""

    source: PassageSource
    heading: str
    text: str
    length: int
    counts: Counter[str]
    above: frozenset[str]

    @property
    def matched_terms(self) -> frozenset[str]:
        return self.above | frozenset(self.counts)


def rank_passages(sources: Sequence[PassageSource], question: str, limit: int, sentences: int = 2) -> list[Passage]:
    """The best passage of each document, the best first; none without a word of the question."""
    asked = question_terms(question)
    pieces = [piece for source in sources for piece in _pieces(source, asked)]
    weights = _weights(pieces)
    mean = sum(piece.length for piece in pieces) / len(pieces) if pieces else 1.0
    best: dict[str, Passage] = {}
    for piece in pieces:
        score = _score(piece, weights, mean)
        known = best.get(piece.source.path)
        if score > 0 and (known is None or score > known.score):
            best[piece.source.path] = _passage(piece, score, asked, weights, sentences)
    return sorted(best.values(), key=lambda passage: (-passage.score, passage.path))[:limit]


def _score(piece: _Paragraph, weights: Mapping[str, float], mean: float) -> float:
    """As BM25 has it within the paragraph; a word of the heading alone counts half, a better document more."""
    slack = 0.3 + 0.9 * piece.length / (mean or 1)
    own = sum(weights[term] * count / (count + slack) for term, count in piece.counts.items())
    above = sum(weights[term] / 2 for term in piece.above if term not in piece.counts)
    return (own + above / (1 + slack)) * (0.5 + piece.source.score / 2)


def question_terms(question: str) -> frozenset[str]:
    """The terms of a question that say what it is about; all of them when none does."""
    found = tokenizer.tokenize(
        " ".join(word for word in re.findall(r"\w+", question) if word.lower() not in tokenizer.STOP_WORDS)
    )
    return frozenset(found or tokenizer.tokenize(question))


def term_coverage(found: Sequence[Passage], question: str) -> float:
    """The share of the question's terms that the passages hold, from 0 to 1."""
    asked = question_terms(question)
    held = frozenset(term for passage in found for term in passage.matched_terms)
    return len(asked & held) / len(asked) if asked else 0.0


def _pieces(source: PassageSource, asked: frozenset[str]) -> Iterator[_Paragraph]:
    for section in split_sections(_FENCE.sub("", source.body)):
        above = asked & frozenset(tokenizer.tokenize(section.heading))
        for paragraph in _PARAGRAPH.split(section.text):
            text = " ".join(_MARK.sub("", paragraph).split())[:MAX_PASSAGE_CHARS]
            if text and not text.startswith("|"):  # a table is no prose
                found = tokenizer.tokenize(text)
                counts = Counter(term for term in found if term in asked)
                yield _Paragraph(source, section.heading, text, len(found), counts, above)


def _weights(pieces: Sequence[_Paragraph]) -> Mapping[str, float]:
    """A word that few passages have says more."""
    counts = Counter(term for piece in pieces for term in piece.matched_terms)
    return {term: math.log(1 + len(pieces) / count) for term, count in counts.items()}


def _passage(
    piece: _Paragraph, score: float, asked: frozenset[str], weights: Mapping[str, float], most: int
) -> Passage:
    parts = [part.strip() for part in _SENTENCE.split(piece.text) if part and part.strip()]
    held = [asked & frozenset(tokenizer.tokenize(part)) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: (-sum(weights.get(term, 0.0) for term in held[i]), i))
    chosen = sorted(order[:most])
    source = piece.source
    sentences = tuple(parts[i] for i in chosen)
    return Passage(
        source.path, source.title, piece.heading, piece.text, sentences, piece.matched_terms, round(score, 6)
    )
