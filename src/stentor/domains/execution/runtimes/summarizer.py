"""An extractive summarizer: picks the sentences that cover most of the text's words, in their order. Pure.

Sentences are picked greedily by the weight of the words that no picked sentence has yet, so that a summary does not
repeat itself. The method `lead` is the baseline: the first sentences.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable

import msgspec

SUMMARY_METHODS = ("salience", "lead")
MAX_SENTENCES = 50
MAX_CHARACTERS_READ = 1_000_000
"""Only the beginning of a longer text is read: while a regular expression is matched, no other thread runs."""
MAX_SENTENCES_READ = 2_000
"""Only the first sentences of a longer text are ranked."""

_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$")
# No bracket within brackets, and only pairs within parentheses: otherwise each bracket would be scanned up to the end
# of the text.
_MARKUP = re.compile(
    r"(?m)^\s{0,3}(#{1,6}\s+|[-*+]\s+|\d+\.\s+|>\s?|\|.*$|[-=]{3,}\s*$)"
    r"|!?\[([^\[\]]*)\]\((?:[^()]++|\([^()]*\))*+\)|[`*]"
)
_BOUNDARY = re.compile(r"(?<=[.!?。！？])[\"')\]]*\s+|\n\s*\n|(?<=[。！？])")
_WORD = re.compile(r"[^\W\d_]{3,}")
_STOP = frozenset(
    "the and for are but not you all any can had her was one our out has him his how its may new now old see two who "
    "did get let put say she too use that with have this will your from they know want been good much some time very "
    "when come here just like long make many more only over such take than them well were what where which while into "
    "there their then these those would could should about after also before being between both each other same "
    "because does doing during every must shall under until upon".split()
)


class SummaryCancelled(Exception):
    """Raised in the thread of a summary that was cancelled."""


class TextSummary(msgspec.Struct, frozen=True):
    """Sentences of a text. `coverage` in [0,1] is their share of the text's total word weight."""

    sentences: tuple[str, ...]
    coverage: float


def summarize(
    text: str, count: int, method: str = "salience", is_cancelled: Callable[[], bool] = lambda: False
) -> TextSummary:
    """Return at most `count` sentences. Raises SummaryCancelled soon after `is_cancelled` returns true."""
    sentences = split_sentences(text[:MAX_CHARACTERS_READ])[:MAX_SENTENCES_READ]
    words = [_words(sentence, is_cancelled) for sentence in sentences]
    weights = Counter(word for sentence_words in words for word in sentence_words)
    chosen = (
        list(range(min(count, len(sentences)))) if method == "lead" else _choose(words, weights, count, is_cancelled)
    )
    covered = set().union(*(words[i] for i in chosen)) if chosen else set()
    total = sum(weights.values())
    coverage = sum(weights[word] for word in covered) / total if total else 0.0
    return TextSummary(tuple(sentences[i] for i in chosen), round(coverage, 4))


def split_sentences(text: str) -> list[str]:
    """Split plain text or Markdown into sentences without markup and code blocks."""
    plain = _MARKUP.sub(lambda match: match.group(2) or "", _FENCE.sub("\n\n", text))
    sentences = (" ".join(part.split()) for part in _BOUNDARY.split(plain) if part)
    return [sentence for sentence in sentences if sentence]


def _words(sentence: str, is_cancelled: Callable[[], bool]) -> frozenset[str]:
    if is_cancelled():
        raise SummaryCancelled
    return frozenset(word for word in _WORD.findall(sentence.lower()) if word not in _STOP)


def _choose(
    words: list[frozenset[str]], weights: Counter[str], count: int, is_cancelled: Callable[[], bool]
) -> list[int]:
    """Pick by the best gain for the length, until enough are picked or none has a new word."""
    chosen: list[int] = []
    covered: set[str] = set()
    remaining = set(range(len(words)))
    while remaining and len(chosen) < count:
        if is_cancelled():
            raise SummaryCancelled
        # With equal gains the earlier sentence wins, so that the same text always has the same summary.
        best = max(remaining, key=lambda i: (_gain(words[i], covered, weights), -i))
        if chosen and not words[best] - covered:
            break
        chosen.append(best)
        covered |= words[best]
        remaining.remove(best)
    return sorted(chosen)


def _gain(words: frozenset[str], covered: set[str], weights: Counter[str]) -> float:
    """Return the weight of the new words, reduced for long sentences."""
    new_weight = sum(weights[word] for word in words - covered)
    # Without the 8, sentences of one or two words would win: their gain is divided by almost nothing.
    return new_weight / math.sqrt(len(words) + 8)
