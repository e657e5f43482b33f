"""An extractive summarizer: the sentences that say most of what the text is about, in their order.

Sentences are chosen one by one, each for the weight of the words that no chosen sentence has yet,
so that a summary does not say one thing twice. `lead` is the plain baseline: the first sentences.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable

import msgspec

SUMMARY_METHODS = ("salience", "lead")
MAX_SENTENCES = 50
MAX_SENTENCES_READ = 2_000
"""Sentences that are looked at; of a longer text the first ones."""

_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$")
_MARKUP = re.compile(r"(?m)^\s{0,3}(#{1,6}\s+|[-*+]\s+|\d+\.\s+|>\s?|\|.*$|[-=]{3,}\s*$)|!?\[([^\]]*)\]\([^)]*\)|[`*]")
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
    """Nobody waits for the summary any more."""


class TextSummary(msgspec.Struct, frozen=True):
    """`coverage` in [0,1]: the share of the text's word weight that the sentences hold."""

    sentences: tuple[str, ...]
    coverage: float


def summarize(
    text: str, count: int, method: str = "salience", is_cancelled: Callable[[], bool] = lambda: False
) -> TextSummary:
    """At most `count` sentences of the text. Raises Stopped soon after `stopped` turns true."""
    sentences = split_sentences(text)[:MAX_SENTENCES_READ]
    words = [_words(sentence, is_cancelled) for sentence in sentences]
    weights = Counter(word for found in words for word in found)
    chosen = (
        list(range(min(count, len(sentences)))) if method == "lead" else _choose(words, weights, count, is_cancelled)
    )
    held = set().union(*(words[i] for i in chosen)) if chosen else set()
    total = sum(weights.values())
    coverage = sum(weights[word] for word in held) / total if total else 0.0
    return TextSummary(tuple(sentences[i] for i in chosen), round(coverage, 4))


def split_sentences(text: str) -> list[str]:
    """Sentences of plain text or Markdown, without markup and code blocks."""
    plain = _MARKUP.sub(lambda match: match.group(2) or "", _FENCE.sub("\n\n", text))
    found = (" ".join(part.split()) for part in _BOUNDARY.split(plain) if part)
    return [sentence for sentence in found if sentence]


def _words(sentence: str, stopped: Callable[[], bool]) -> frozenset[str]:
    if stopped():
        raise SummaryCancelled
    return frozenset(word for word in _WORD.findall(sentence.lower()) if word not in _STOP)


def _choose(words: list[frozenset[str]], weights: Counter[str], count: int, stopped: Callable[[], bool]) -> list[int]:
    """Greedy: the best gain for the length, until enough are chosen or nothing new is said."""
    chosen: list[int] = []
    held: set[str] = set()
    left = set(range(len(words)))
    while left and len(chosen) < count:
        if stopped():
            raise SummaryCancelled
        best = max(left, key=lambda i: (_gain(words[i], held, weights), -i))
        if chosen and not words[best] - held:
            break
        chosen.append(best)
        held |= words[best]
        left.remove(best)
    return sorted(chosen)


def _gain(words: frozenset[str], held: set[str], weights: Counter[str]) -> float:
    """Weight of the new words; a very long sentence pays for its length."""
    new = sum(weights[word] for word in words - held)
    return new / math.sqrt(len(words) + 8)
