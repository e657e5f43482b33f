"""Turns text into search terms, and finds terms in text. Pure.

Words are case-folded, stripped of accents and stemmed in English; each Chinese, Japanese or Korean character is a term.
`C++`, `C#` and `F#` are words of their own.
"""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import merge
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from stentor.core.lazy_import import lazy_module

if TYPE_CHECKING:
    import snowballstemmer
else:
    # It loads the stemmers of thirty languages, 3 MB, and a service without notes needs none.
    snowballstemmer = lazy_module("snowballstemmer")

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_MARK = "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670]"
"""An accent that is a character of its own, as in text from macOS and from PDFs; a vowel of Hebrew or Arabic."""
_SIGNS = r"(?:\+\+(?<=(?<![A-Za-z0-9_])[Cc]\+\+)|\#(?<=(?<![A-Za-z0-9_])[CcFf]\#)(?![\w#]))?"
"""The end of C++, C# and F#, but not of `x++`, `[[C#Heading]]` or `## C ##`."""
_SPELLED_OUT = {"c++": "cplusplus", "c#": "csharp", "f#": "fsharp"}
_SUFFIX = re.compile(r"(?<=[^\W_])['\u2019](?:s|m|d|re|ve|ll)(?![^\W_])", re.IGNORECASE)
"""The end of `Ann's` and `we'll`."""
# At most eight in a row: to bring a run into its normal form takes quadratic time.
_ALPHANUMERIC = re.compile(rf"[^\W_]+(?:{_MARK}{{1,8}}[^\W_]+)*{_MARK}{{0,8}}{_SIGNS}")
_NEGATION = re.compile(r"\W*[A-Za-z]+[nN]['\u2019][tT]\W*")
"""`didn't`."""
_TERM = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+(?:{_MARK}{{1,8}}[^\W_{_CJK}]+)*{_MARK}{{0,8}}{_SIGNS}")
"""A word, or one character of a CJK script: what has a term."""
_CAMEL_PART = re.compile(r"[A-Z]+s?(?![a-z])|[A-Z]?[a-z]+")
"""`HTTP`, `Response` and `IDs` of `HTTPResponseIDs`."""
_PLURAL_ACRONYM = re.compile(r"[A-Z]{2,}s")
_VERSION = re.compile(r"(?<![A-Za-z0-9_])[vV](\d+(?:\.\d+)+(?:-[^\W_]+)?)")
# The lookbehind comes after the first character, which is faster because few positions match that.
_JOINED = re.compile(
    "[A-Za-z](?<![A-Za-z0-9_-].)[A-Za-z0-9]*+[-_\u2010\u2011][A-Za-z0-9]++(?:[-_\u2010\u2011][A-Za-z0-9]++){0,2}+"
    "(?![A-Za-z0-9_\u2010\u2011-])"
)
"""`e-mail`, `Wi-Fi`, `covid-19` and `max_retries`, but neither a UUID nor a title in a URL."""
_GROUPED = re.compile(
    r"\d(?<![\w.,'].)\d{0,2}(?:(?:,\d{3})+(?!,\d)|(?:\.\d{3}){2,}(?!\.\d)|(?:'\d{3})+|(?:[\u00a0\u2009\u202f]\d{3})+)"
    r"(?![\w'])"
)
"""`1,234,567`, and also `1.234.567`, but not the `1.234` that may be a bit more than one."""
_MONTH_OF_DATE = re.compile(r"[12]\d\d\d-(?<![\w.-].....)(0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?![\d-])")
_SPELLED = (_VERSION, _JOINED, _GROUPED, _MONTH_OF_DATE)
_MONTHS = "january february march april may june july august september october november december".split()
_MONTH_NUMBERS = {month[:3]: number for number, month in enumerate(_MONTHS, 1)}
# ASCII only: an s also matches ſ without regard to case, and an i the Turkish ones.
_MONTH_NAME = f"(?a:({'|'.join(f'{month[:3]}(?:{month[3:]})?' for month in _MONTHS)}|sept))\\.?"
_DAY = "([0-3]?[0-9])(?:st|nd|rd|th|\\.)?"
_DAY_NUMBER, _LATE_DAY, _MONTH_NUMBER = "(0?[1-9]|[12][0-9]|3[01])", "(1[3-9]|2[0-9]|3[01])", "(0?[1-9]|1[0-2])"
_FULL_YEAR = "([12][0-9]{3})"
_DATES = [
    (re.compile(rf"(?<![\w.-])(?:{pattern})(?![\w-]|\.\d)", re.IGNORECASE), order)
    for pattern, order in (
        (rf"{_FULL_YEAR}([-/])(0[1-9]|1[0-2])\2(0[1-9]|[12][0-9]|3[01])", (1, 3, 4)),
        (rf"{_DAY}(?: of|)[ -]{_MONTH_NAME},?[ -]{_FULL_YEAR}", (3, 2, 1)),
        (rf"{_MONTH_NAME}[ -]{_DAY},?[ -]{_FULL_YEAR}", (3, 1, 2)),
        (rf"{_DAY_NUMBER}\.{_MONTH_NUMBER}\.{_FULL_YEAR}", (3, 2, 1)),
        (rf"{_LATE_DAY}/{_MONTH_NUMBER}/{_FULL_YEAR}", (3, 2, 1)),
        (rf"{_MONTH_NUMBER}/{_LATE_DAY}/{_FULL_YEAR}", (3, 1, 2)),
    )
]
"""Ways to write a date, each with the groups of its year, month and day: `2024-03-01`, `2024/03/01`, `1-Mar-2024`,
`1st of March 2024`, `Mar. 1, 2024`, `01.03.2024`, and `13/03/2024` or `03/13/2024`, but not `03/01/2024`: it may be
in March or in January.
"""
_YEAR = re.compile(r"(?<![\w.:-])(?:19|20)\d\d(?!\w|[.,:]\d)")
MAX_DATES = 3
"""Dates of a question that are looked for in other forms: each is a phrase or two more."""
_OTHER_SPELLINGS = re.compile(rf"\W*(?:{_VERSION.pattern}|([eE][-\u2010\u2011][A-Za-z]+)|({_GROUPED.pattern}))\W*")
"""What is looked for by the terms of another spelling that its texts have too."""
_SEPARATORS = re.compile(r"[\W_]")
_QUOTED = re.compile(r'"([^"]+)"|[“„]([^“”„]+)[“”]')
_CJK_OR_REST = re.compile(f"[{_CJK}]{_MARK}*|[^{_CJK}]+")
_COMPOUND = re.compile(r"(?<=[A-Za-z]{2})[-/\u2010\u2011](?=[A-Za-z]{2})")
_CJK_RUN = re.compile(f"[{_CJK}]{{3,}}")
MAX_PAIRED_CHARS = 200
"""Only the beginning of a question is split into pairs: each takes milliseconds of a search in thousands of notes."""
MAX_SPANS = 64
MAX_SPELLED_CHARS = 20_000
"""After them only words are hits: to look for other spellings in a long note takes milliseconds."""
MAX_STEMMED_CHARS = 64
"""A longer word is its own term."""

STOP_WORDS = frozenset(
    "a an and are as at be been but by can could did do does for from had has have he her him his how i if in into is "
    "it its me my of on or our shall she should so that the their them then there these they this those to was we "
    "were what when where which who whom whose why will with would you your".split()
)
"""English words that do not tell what a question is about."""

_BASE_LETTERS = str.maketrans(
    {"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ŧ": "t", "ı": "i"}
)
"""What is typed for a letter that Unicode does not take for one with an accent: `Tromso` for Tromsø."""

_IRREGULAR = {
    form: word
    for word, forms in (
        pair.split(":")
        for pair in (
            "analysis:analyses appendix:appendices become:became begin:began,begun break:broke bring:brought "
            "build:built buy:bought catch:caught child:children choose:chose,chosen come:came crisis:crises "
            "criterion:criteria diagnosis:diagnoses draw:drew drive:drove,driven eat:ate,eaten fall:fell,fallen "
            "fight:fought fly:flew,flown foot:feet forget:forgot,forgotten get:got,gotten give:gave,given "
            "go:went,gone goose:geese grow:grew,grown half:halves hear:heard hide:hid,hidden hold:held "
            "hypothesis:hypotheses index:indices keep:kept knife:knives know:knew lose:lost make:made man:men "
            "matrix:matrices meet:met mouse:mice pay:paid phenomenon:phenomena ride:rode,ridden run:ran say:said "
            "sell:sold send:sent shelf:shelves sing:sang,sung sit:sat sleep:slept speak:spoke,spoken spend:spent "
            "stand:stood steal:stole,stolen swim:swam,swum take:took,taken teach:taught tell:told thief:thieves "
            "throw:threw,thrown tooth:teeth understand:understood vertex:vertices wake:woke,woken wear:wore,worn "
            "wife:wives win:won wolf:wolves woman:women write:wrote,written"
        ).split()
    )
    for form in forms.split(",")
}
"""English forms that the stemmer does not know, without those that are words of their own, such as `left`."""
_OTHER_INITIALS = {word: form[0] for form, word in _IRREGULAR.items() if form[0] != word[0]}
"""`w` of `went` for `go`."""

_local = threading.local()


def drop_stop_words(texts: Sequence[str]) -> list[str]:
    """Return the words and phrases without those that are one stop word; all of them if nothing else is left."""
    return [text for text in texts if _is_significant(text)] or list(texts)


def split_words(text: str) -> list[str]:
    """Return the words of a question, and of scripts without spaces each pair of characters, which is a word or two.

    Of `well-known` and `client/server` each word is one; `IL-6`, `X-ray` and dates stay whole, and are phrases.
    """
    text = _COMPOUND.sub(" ", text)
    if not text.isascii():
        begin = _CJK_RUN.sub(lambda run: f" {' '.join(map(''.join, pairwise(run[0])))} ", text[:MAX_PAIRED_CHARS])
        text = begin + _CJK_RUN.sub(" ", text[MAX_PAIRED_CHARS:])
    return text.split()


def _is_significant(text: str) -> bool:
    words = find_words(text)
    if len(words) == 1:
        return words[0].lower() not in STOP_WORDS
    return len(words) > 1 and not _NEGATION.fullmatch(text)


def find_words(text: str) -> list[str]:
    """Return the runs of letters and digits of a text, with their accents, and the names of C++, C# and F#.

    `Ann's` is the word `Ann`, or a question about it would look for a phrase that no text with `Ann` has.
    """
    if "'" in text or "\u2019" in text:
        text = _SUFFIX.sub(" ", text)
    return _ALPHANUMERIC.findall(text)


def find_quoted(text: str) -> list[str]:
    """Return the texts of several terms that stand between double quotes."""
    quoted = [straight or curly for straight, curly in _QUOTED.findall(text)]
    return [phrase for phrase in quoted if len(tokenize(phrase)) > 1]


def find_dates(text: str) -> list[str]:
    """Return the forms of the dates in a question: `2024-03-01`, `1 March 2024`, `March 1, 2024` and `01.03.2024`."""
    found = sorted((match.start(), *map(match.group, order)) for p, order in _DATES for match in p.finditer(text))
    forms: list[str] = []
    for _, year, named, day in found[:MAX_DATES]:
        number = int(named) if named.isdecimal() else _MONTH_NUMBERS[named[:3].lower()]
        month = _MONTHS[number - 1]
        iso, dotted = f"{year}-{number:02}-{int(day):02}", f"{int(day):02}.{number:02}.{year}"
        forms += [iso, f"{int(day)} {month} {year}", f"{month} {int(day)} {year}", dotted]
    return forms


def has_year(text: str) -> bool:
    """Return whether a question has a year from 1900 to 2099, alone or in a date."""
    return _YEAR.search(text) is not None or bool(find_dates(text))


def tokenize(text: str) -> list[str]:
    """Return the terms of a text, in order."""
    return _normalize_words(find_words(text))


def tokenize_query(text: str) -> list[str]:
    """Return the terms that a word or phrase of a query is looked for by.

    `v1.2`, `e-mail` and `1,234` are looked for by `1.2`, `email` and `1234`, which find both.
    """
    other = _OTHER_SPELLINGS.fullmatch(text)
    if other is None:
        return tokenize(text)
    version, compound, number = other.groups()
    return tokenize(version or _join(compound or number))


def query_terms(texts: Sequence[str]) -> frozenset[str]:
    """Return the terms of the words and phrases of a query."""
    return frozenset(term for text in texts for term in tokenize_query(text))


def join_terms(text: str) -> str:
    """Return the terms that a text is found by, separated by spaces, as the indexes store them."""
    return " ".join(list_terms(text))


def list_terms(text: str) -> list[str]:
    """Return the terms that a text is found by.

    At the end, so that the others keep their neighbours, come once each what else is looked for: the parts of names
    such as `VaultWatcher`, if the text does not have all of them as words, versions such as v1.2 without the `v`,
    `email` for `e-mail`, `1234` for `1,234`, and the months of dates.
    """
    words = find_words(text)
    terms = _normalize_words(words)
    own, added = frozenset(terms), list[str]()
    for word in dict.fromkeys(words):
        if not word.islower() and not own.issuperset(parts := _normalize_words(split_camel_case(word))):
            added += parts
    for parts in dict.fromkeys(tuple(tokenize(spelling)) for _, spelling in _iter_other_spellings(text)):
        # The parts of a version are a phrase.
        if len(parts) > 1 or parts[0] not in own:
            added += parts
    return terms + added


def _iter_other_spellings(
    text: str, patterns: Sequence[re.Pattern[str]] = _SPELLED, start: int = 0, stop: int = sys.maxsize
) -> Iterator[tuple[re.Match[str], str]]:
    """Yield what has another spelling, between `start` and `stop`, with that."""
    for pattern in patterns:
        for match in pattern.finditer(text, start, stop):
            if pattern is _VERSION:
                yield match, match[1]
            elif pattern is _MONTH_OF_DATE:
                yield match, _MONTHS[int(match[1]) - 1]
            else:
                yield match, _join(match[0])


def _find_other_hits(text: str, terms: frozenset[str], start: int, stop: int) -> list[tuple[int, int, str]]:
    initials = frozenset(term[:1] for term in terms)
    has_number = any(map(str.isdigit, initials))
    patterns = [pattern for pattern in _SPELLED if has_number or pattern in (_JOINED, _MONTH_OF_DATE)]
    return sorted(
        (match.start(), match.end(), term)
        for match, spelling in _iter_other_spellings(text, patterns, start, stop)
        if spelling[0].lower() in initials and (term := next(filter(terms.__contains__, tokenize(spelling)), None))
    )


def _join(text: str) -> str:
    return _SEPARATORS.sub("", text)


def split_camel_case(word: str) -> list[str]:
    """Return the parts of at least two letters of a name in camelCase, `PDF` of `PDFs`; none for any other word."""
    # Words with digits are more likely identifiers or base64 than names.
    if not (word.isascii() and word.isalpha()) or len(word) > MAX_STEMMED_CHARS:
        return []
    if _PLURAL_ACRONYM.fullmatch(word):
        return [word[:-1]]
    parts = _CAMEL_PART.findall(word)
    return [part for part in parts if len(part) > 1] if len(parts) > 1 else []


def _normalize_words(words: Sequence[str]) -> list[str]:
    terms: list[str] = []
    for word in words:
        if word.isascii():
            terms.append(normalize_word(word))
        else:
            parts = _CJK_OR_REST.findall(unicodedata.normalize("NFC", word))
            terms.extend(map(normalize_word, parts))
    return terms


def _stemmer() -> snowballstemmer.english_stemmer.EnglishStemmer:
    # One for each thread: a stemmer keeps its word in itself, and long notes are indexed outside of the event loop.
    if not hasattr(_local, "stemmer"):
        _local.stemmer = snowballstemmer.stemmer("english")
    return _local.stemmer


def normalize_word(word: str) -> str:
    """Return the term of a word: `deploy` for `Deployment`, `deploying` and `deploys`; `grosse` for `Größe`."""
    # Stemming takes quadratic time, and no real word is that long.
    return _normalize_short(word) if len(word) <= MAX_STEMMED_CHARS else _fold_word(word)


# Stemming takes most of the time of indexing, and a vault uses the same words again and again.
@lru_cache(maxsize=1 << 17)
def _normalize_short(word: str) -> str:
    word = _fold_word(word)
    word = _SPELLED_OUT.get(word) or _IRREGULAR.get(word, word)
    return str(_stemmer().stemWord(word)) if word.isascii() and word.isalpha() else word


def _fold_word(word: str) -> str:
    word = word.casefold()
    if not word.isascii():
        # Folded again, as the compatible form of a letter may be a capital: 𝐇 has no other case, and becomes H.
        decomposed = unicodedata.normalize("NFKD", word).casefold()
        # Not only without accents: what else is neither letter nor digit (the ⁄ of ½, a part of the Thai ำ) would
        # split the term in FTS5.
        word = "".join(c for c in decomposed if c.isalnum()).translate(_BASE_LETTERS)
    return word


def find_spans(text: str, terms: frozenset[str]) -> list[tuple[int, int]]:
    """Return the positions (start and end) of the first words of the text that have one of these terms."""
    return [(start, end) for start, end, _ in islice(iter_hits(text, terms), MAX_SPANS)]


def iter_hits(
    text: str, terms: frozenset[str], start: int = 0, stop: int = sys.maxsize
) -> Iterator[tuple[int, int, str]]:
    """Yield the positions (start and end) of the words that have one of these terms, with the term.

    Only words between `start` and `stop` count; one that continues after `stop` is cut there. Of other spellings only
    those in the first `MAX_SPELLED_CHARS` count.
    """
    if not terms:
        return
    others = _find_other_hits(text, terms, start, min(stop, start + MAX_SPELLED_CHARS))
    position = start
    # Of two that begin at the same place, the longer one wins.
    for hit in merge(others, _iter_word_hits(text, terms, start, stop), key=lambda hit: (hit[0], -hit[1])):
        if hit[0] >= position:
            yield hit
            position = hit[1]


def _iter_word_hits(text: str, terms: frozenset[str], start: int, stop: int) -> Iterator[tuple[int, int, str]]:
    # A stem has the first letter of its words, and takes far longer than to compare it.
    initials = {term[:1] for term in terms} | {_OTHER_INITIALS.get(term, "") for term in terms}
    for match in _TERM.finditer(text, start, stop):
        word = match[0]
        if (word[0].lower() in initials or not word.isascii()) and (term := normalize_word(word)) in terms:
            yield match.start(), match.end(), term
        elif not word.islower():
            for part in split_camel_case(word):
                if (term := normalize_word(part)) in terms:
                    yield match.start(), match.end(), term
                    break
