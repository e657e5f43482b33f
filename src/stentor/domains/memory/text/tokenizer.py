"""Words of a text as search terms: folded, without accents, stemmed; of Chinese, Japanese and Korean each sign."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import snowballstemmer

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(r"[^\W_]+")
_WORD = re.compile(r"\w+")
_PIECE = re.compile(f"[{_CJK}]|[^{_CJK}]+")
_stemmer = snowballstemmer.stemmer("english")

STOP_WORDS = frozenset(
    "a an and are as at be been but by can could did do does for from had has have how i if in into is it its of on or "
    "our shall should so that the their them then there these they this those to was we were what when where which who "
    "whom whose why will with would you your".split()
)
"""Words that say nothing of what a question is about."""


def drop_stop_words(text: str) -> list[str]:
    """The words of a question that say what it is about; all of them when none does."""
    found = text.split()
    return [word for word in found if not all(part.lower() in STOP_WORDS for part in _WORD.findall(word))] or found


def tokenize(text: str) -> list[str]:
    """The terms of a text, in its order."""
    if text.isascii():
        return [normalize_word(word) for word in _RUN.findall(text)]
    found: list[str] = []
    for word in _RUN.findall(text):
        if word.isascii():
            found.append(normalize_word(word))
        else:
            found.extend(normalize_word(piece) for piece in _PIECE.findall(word))
    return found


def join_terms(text: str) -> str:
    """The same as a text that the index splits at its blanks."""
    return " ".join(tokenize(text))


@lru_cache(maxsize=1 << 17)
def normalize_word(word: str) -> str:
    """One word: `Deployment`, `deploying` and `deploys` are `deploy`; `Größe` is `grosse`."""
    word = word.casefold()
    if not word.isascii():
        word = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    return str(_stemmer.stemWord(word)) if word.isascii() and word.isalpha() else word


def find_spans(text: str, wanted: frozenset[str]) -> list[tuple[int, int]]:
    """Where words of the text stand whose term is wanted: begin and end, the first few of each part of the text."""
    heads = sorted({_head(one) for one in wanted})
    if not heads:
        return []
    found = re.compile("|".join(heads), re.IGNORECASE)
    plain = fold_text(text)
    hits: list[tuple[int, int]] = []
    for match in found.finditer(plain):
        run = _RUN.match(plain, match.start())
        end = run.end() if run and plain[match.start()].isascii() else match.end()
        if normalize_word(text[match.start() : end]) in wanted:
            hits.append((match.start(), end))
            if len(hits) == MAX_SPANS:
                break
    return hits


MAX_SPANS = 64


def _head(one: str) -> str:
    """A pattern for the begin of a word; a stem's last letter may differ from the word's."""
    if len(one) == 1 and not one.isascii():
        return re.escape(one)
    return r"(?<![^\W_])" + re.escape(one[: max(1, len(one) - 1)])


def fold_text(text: str) -> str:
    """Lower case without accents, a sign for a sign, so that places stay places."""
    return text.lower() if text.isascii() else "".join(map(_folded, text))


@lru_cache(maxsize=1 << 14)
def _folded(sign: str) -> str:
    if sign.isascii():
        return sign.lower()
    plain = "".join(c for c in unicodedata.normalize("NFKD", sign.casefold()) if not unicodedata.combining(c))
    return plain if len(plain) == 1 else sign
