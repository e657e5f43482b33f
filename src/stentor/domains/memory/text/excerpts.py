"""Excerpts around search hits, and the passages of documents that best answer a question. Pure.

Documents are found by `search`; the terms come from `tokenizer`.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from stentor.domains.memory.text import tokenizer
from stentor_vault.text.markdown import Chunk, split_chunks, split_sections

EXCERPT_CHARS = 200
EXCERPT_LEAD_CHARS = 60
"""Characters of an excerpt before its first hit."""
MAX_EXCERPT_OFFSET = 20_000
"""No better excerpt is looked for after this offset, except next to the first hit: each word takes time."""
MAX_PASSAGE_CHARS = 600
PASSAGE_SENTENCES = 2
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])[\"')\]]*\s+|(?<=[。！？])")
_PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)")
_LIST_MARKER = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_CODE_BLOCK = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$")


class PassageSource(msgspec.Struct, frozen=True):
    """A document to take passages from; `score` (0 to 1) is how well the whole document matches."""

    path: str
    title: str
    body: str
    score: float


class Passage(msgspec.Struct, frozen=True):
    """A passage; `sentences` are its best ones in their order, `matched_terms` the question's terms in it."""

    path: str
    title: str
    heading: str
    text: str
    sentences: tuple[str, ...]
    matched_terms: frozenset[str]
    score: float


class _Paragraph(msgspec.Struct, frozen=True):
    """A paragraph or list item, with the counts of the question's terms in it and those in its heading."""

    source: PassageSource
    heading: str
    text: str
    length: int
    counts: Counter[str]
    heading_terms: frozenset[str]

    @property
    def matched_terms(self) -> frozenset[str]:
        return self.heading_terms | frozenset(self.counts)


def make_excerpt(text: str, terms: frozenset[str], low: int = 0, high: int = sys.maxsize, default: int = 0) -> str:
    """Return about 200 characters with most of the terms, cut between words.

    Only terms between `low` and `high` count; without any the excerpt begins at `default`.
    """
    hit = _find_best_hit(text, terms, low, high)
    start = max(0, hit[0] - EXCERPT_LEAD_CHARS) if hit else default
    if start and hit:
        space = text.find(" ", start, hit[0])
        start = space + 1 if space >= 0 else start
    end = min(len(text), start + EXCERPT_CHARS)
    if end < len(text):
        # Not before the end of the hit, which must not be cut off.
        space = text.rfind(" ", hit[1] if hit else start + 1, end)
        end = space if space > start else end
    excerpt = " ".join(text[start:end].split())
    return f"{'… ' if start else ''}{excerpt}{' …' if end < len(text) else ''}"


def make_chunk_excerpt(body: str, headings: Sequence[str], ordinal: int, terms: frozenset[str]) -> str:
    """Return about 200 characters of one chunk with most of the terms, or of its beginning.

    `headings` are those of all chunks of the body. A section with one chunk is found exactly. Of several in a section
    the place is an estimate, because the lengths of chunks in tokens are not known here.
    """
    sections = groupby(split_sections(body), lambda section: section.heading)
    for (heading, chunks), (_, parts) in zip(groupby(headings), sections, strict=False):
        text, count = "\n\n".join(part.text for part in parts) or heading, len(list(chunks))
        if ordinal < count:
            starts = [*_chunk_starts(text, count), len(text)]
            place = ordinal * (len(starts) - 1) // count
            return make_excerpt(text, terms, starts[place], starts[place + 1], starts[place])
        ordinal -= count
    return make_excerpt(body, terms)  # it has changed since


def has_clearly_more(text: str, other: str, terms: frozenset[str]) -> bool:
    """Return whether a text has all the terms and another one does not, or at least two more of them."""
    count, other_count = (len({term for _, _, term in tokenizer.iter_hits(part, terms)}) for part in (text, other))
    return count > other_count and (count == len(terms) or count > other_count + 1)


def _chunk_starts(text: str, count: int) -> list[int]:
    """Return where the chunks begin, with a size limit in characters that leads to this number of chunks."""
    if count == 1:
        return [0]
    low, high, chunks = len(text) // count, 3 * len(text) // count, list[Chunk]()
    while low <= high and len(chunks) != count:
        length = (low + high) // 2
        chunks = split_chunks("", text, length, len)
        low, high = (length + 1, high) if len(chunks) > count else (low, length - 1)
    starts = [0]
    for chunk in chunks[1:]:
        starts.append(max(starts[-1], text.find(chunk.text[:EXCERPT_CHARS].partition("\n")[0], starts[-1] + 1)))
    return starts


def _find_best_hit(text: str, terms: frozenset[str], low: int, high: int) -> tuple[int, int] | None:
    """Return the position of the first word of the excerpt with most terms, of several the first one."""
    width = EXCERPT_CHARS - EXCERPT_LEAD_CHARS
    first = next(tokenizer.iter_hits(text, terms, low, high), None)
    if first is None:
        return None
    window: deque[tuple[int, int, str]] = deque()
    best, most = None, 0
    last = min(high, max(low + MAX_EXCERPT_OFFSET, first[1] + width))
    for hit in tokenizer.iter_hits(text, terms, first[0], last):
        window.append(hit)
        while hit[1] - window[0][0] > width and len(window) > 1:
            window.popleft()
        count = len({term for _, _, term in window})
        if count > most:
            best, most = window[0][:2], count
        if most == len(terms):
            break
    return best


def rank_passages(sources: Sequence[PassageSource], question: str, limit: int) -> list[Passage]:
    """Return the best passage of each document, best first; documents without a term of the question are left out."""
    terms = question_terms(question)
    paragraphs = [paragraph for source in sources for paragraph in _split_paragraphs(source, terms)]
    weights = _term_weights(paragraphs)
    mean_length = sum(paragraph.length for paragraph in paragraphs) / len(paragraphs) if paragraphs else 1.0
    best: dict[str, Passage] = {}
    for paragraph in paragraphs:
        score = _score(paragraph, weights, mean_length)
        known = best.get(paragraph.source.path)
        if score > 0 and (known is None or score > known.score):
            best[paragraph.source.path] = _make_passage(paragraph, score, terms, weights)
    return sorted(best.values(), key=lambda passage: (-passage.score, passage.path))[:limit]


def question_terms(question: str) -> frozenset[str]:
    """Return the terms of the question's content words; of all its words if every one is a stop word."""
    return tokenizer.query_terms(tokenizer.drop_stop_words(question.split()))


def term_coverage(passages: Sequence[Passage], question: str) -> float:
    """Return the share (0 to 1) of the question's terms that occur in the passages."""
    terms = question_terms(question)
    matched = frozenset(term for passage in passages for term in passage.matched_terms)
    return len(terms & matched) / len(terms) if terms else 0.0


def _split_paragraphs(source: PassageSource, terms: frozenset[str]) -> Iterator[_Paragraph]:
    for section in split_sections(_CODE_BLOCK.sub("", source.body)):
        heading_terms = terms & frozenset(tokenizer.list_terms(section.heading))
        for paragraph in _PARAGRAPH_END.split(section.text):
            text = " ".join(_LIST_MARKER.sub("", paragraph).split())[:MAX_PASSAGE_CHARS]
            if text and not text.startswith("|"):  # a table cannot be quoted as prose
                words = tokenizer.list_terms(text)
                counts = Counter(term for term in words if term in terms)
                yield _Paragraph(source, section.heading, text, len(words), counts, heading_terms)


def _term_weights(paragraphs: Sequence[_Paragraph]) -> Mapping[str, float]:
    """Weight each term by its rarity among the paragraphs."""
    counts = Counter(term for paragraph in paragraphs for term in paragraph.matched_terms)
    return {term: math.log(1 + len(paragraphs) / count) for term, count in counts.items()}


def _score(paragraph: _Paragraph, weights: Mapping[str, float], mean_length: float) -> float:
    """Score like BM25; a term only in the heading counts half, and the document's score scales the result."""
    # k1 (1 - b) and k1 b of BM25, with k1 = 1.2 and b = 0.75.
    saturation = 0.3 + 0.9 * paragraph.length / (mean_length or 1)
    text_score = sum(weights[term] * count / (count + saturation) for term, count in paragraph.counts.items())
    heading_score = sum(weights[term] / 2 for term in paragraph.heading_terms if term not in paragraph.counts)
    return (text_score + heading_score / (1 + saturation)) * (0.5 + paragraph.source.score / 2)


def _make_passage(paragraph: _Paragraph, score: float, terms: frozenset[str], weights: Mapping[str, float]) -> Passage:
    parts = [part.strip() for part in _SENTENCE_END.split(paragraph.text) if part and part.strip()]
    matched = [terms & frozenset(tokenizer.list_terms(part)) for part in parts]
    ranked = sorted(range(len(parts)), key=lambda i: (-sum(weights.get(term, 0.0) for term in matched[i]), i))
    # The best sentences, but in the order of the text, so that they still read as one.
    sentences = tuple(parts[i] for i in sorted(ranked[:PASSAGE_SENTENCES]))
    source = paragraph.source
    return Passage(
        source.path,
        source.title,
        paragraph.heading,
        paragraph.text,
        sentences,
        paragraph.matched_terms,
        round(score, 6),
    )
