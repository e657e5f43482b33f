"""What is searched for, parsed: all of its words and phrases must occur. Pure."""

from __future__ import annotations

import re
import unicodedata

import msgspec

from stentor.core.errors import InvalidRequest

MAX_WORDS = 50
"""Words of all phrases together. The time to compare a phrase with a task grows with the number of its words."""
MAX_WORD_CHARACTERS = 100
"""Longer words are cut, in a text and in a search alike."""
MIN_PREFIX_CHARACTERS = 3
# The closing quote may be missing.
_PART = re.compile(r'"([^"]*)"?|([^\s"]+)')
_WORD = re.compile(r"[^\W_]+")
_MARKS = re.compile("[\u0300-\u036f]")


class Phrase(msgspec.Struct, frozen=True):
    """Words that follow each other; with `is_prefix` the last one is the beginning of a word."""

    words: tuple[str, ...]
    is_prefix: bool


def split_words(text: str) -> list[str]:
    """Return the words of a text: runs of letters and digits, in lower case and without accents."""
    if not text.isascii():
        text = _MARKS.sub("", unicodedata.normalize("NFKD", text))
    return [word[:MAX_WORD_CHARACTERS] for word in _WORD.findall(text.lower())]


def parse_query(text: str) -> list[Phrase]:
    """Parse a search. Text in quotes is a phrase, as are the parts of a word such as `SOURCE_UNREADABLE`.

    `word*` is the beginning of a word, of at least MIN_PREFIX_CHARACTERS. Raises InvalidRequest.
    """
    phrases = []
    for quoted, bare in _PART.findall(text):
        words = split_words(quoted or bare)
        if words:
            is_prefix = bare.endswith("*") and len(words[-1]) >= MIN_PREFIX_CHARACTERS
            phrases.append(Phrase(tuple(words), is_prefix))
    if not phrases:
        raise InvalidRequest("text: needs at least one letter or digit.")
    if sum(len(phrase.words) for phrase in phrases) > MAX_WORDS:
        raise InvalidRequest(f"text: has more than {MAX_WORDS} words; use fewer.")
    return phrases
