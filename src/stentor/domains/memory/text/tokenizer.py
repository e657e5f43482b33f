"""Turns text into search terms, and finds terms in text. Pure.

Words are case-folded, stripped of accents and stemmed in English; each Chinese, Japanese or Korean character is a term.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from stentor.core.lazy_import import lazy_module

if TYPE_CHECKING:
    import snowballstemmer
else:
    # It loads the stemmers of thirty languages, 3 MB, and a service without notes needs none.
    snowballstemmer = lazy_module("snowballstemmer")

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_ALPHANUMERIC = re.compile(r"[^\W_]+")
_WORD = re.compile(r"\w+")
_CJK_OR_REST = re.compile(f"[{_CJK}]|[^{_CJK}]+")
MAX_SPANS = 64

STOP_WORDS = frozenset(
    "a an and are as at be been but by can could did do does for from had has have how i if in into is it its of on or "
    "our shall should so that the their them then there these they this those to was we were what when where which who "
    "whom whose why will with would you your".split()
)
"""English words that do not tell what a question is about."""


def drop_stop_words(texts: Sequence[str]) -> list[str]:
    """Return the words and phrases without those that are one stop word; all of them if nothing else is left."""
    return [text for text in texts if _is_significant(_WORD.findall(text))] or list(texts)


def _is_significant(words: Sequence[str]) -> bool:
    return len(words) > 1 or (len(words) == 1 and words[0].lower() not in STOP_WORDS)


def tokenize(text: str) -> list[str]:
    """Return the terms of a text, in order."""
    if text.isascii():  # the common case, without the search for characters of other scripts
        return [normalize_word(word) for word in _ALPHANUMERIC.findall(text)]
    terms: list[str] = []
    for word in _ALPHANUMERIC.findall(text):
        if word.isascii():
            terms.append(normalize_word(word))
        else:
            terms.extend(normalize_word(part) for part in _CJK_OR_REST.findall(word))
    return terms


def join_terms(text: str) -> str:
    """Return the terms of a text separated by spaces, as the indexes store them."""
    return " ".join(tokenize(text))


@lru_cache(maxsize=1)
def _stemmer() -> snowballstemmer.english_stemmer.EnglishStemmer:
    return snowballstemmer.stemmer("english")


# Stemming takes most of the time of indexing, and a vault uses the same words again and again.
@lru_cache(maxsize=1 << 17)
def normalize_word(word: str) -> str:
    """Return the term of a word: `deploy` for `Deployment`, `deploying` and `deploys`; `grosse` for `Größe`."""
    word = word.casefold()
    if not word.isascii():
        word = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    return str(_stemmer().stemWord(word)) if word.isascii() and word.isalpha() else word


def find_spans(text: str, terms: frozenset[str]) -> list[tuple[int, int]]:
    """Return the positions (start and end) of the first words of the text that have one of these terms."""
    prefixes = sorted({_prefix_pattern(term) for term in terms})
    if not prefixes:
        return []
    # A regular expression finds the candidates; only they are stemmed, which is slower by far.
    candidates = re.compile("|".join(prefixes), re.IGNORECASE)
    folded = fold_text(text)
    spans: list[tuple[int, int]] = []
    for match in candidates.finditer(folded):
        word = _ALPHANUMERIC.match(folded, match.start())
        end = word.end() if word and folded[match.start()].isascii() else match.end()
        if normalize_word(text[match.start() : end]) in terms:
            spans.append((match.start(), end))
            if len(spans) == MAX_SPANS:
                break
    return spans


def _prefix_pattern(term: str) -> str:
    """Return a pattern for a word's beginning, without the stem's last letter, which may differ from the word's."""
    if len(term) == 1 and not term.isascii():
        return re.escape(term)
    return r"(?<![^\W_])" + re.escape(term[: max(1, len(term) - 1)])


def fold_text(text: str) -> str:
    """Return the text in lower case without accents, character by character, so that positions stay valid."""
    return text.lower() if text.isascii() else "".join(map(_fold_character, text))


@lru_cache(maxsize=1 << 14)
def _fold_character(character: str) -> str:
    if character.isascii():
        return character.lower()
    folded = "".join(c for c in unicodedata.normalize("NFKD", character.casefold()) if not unicodedata.combining(c))
    # A character that would become several, such as ß, stays as it is: the positions behind it would shift.
    return folded if len(folded) == 1 else character
