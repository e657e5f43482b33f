"""What the search index holds of a task, what an index must offer, and a search, parsed. No I/O."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol

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


class TaskText(msgspec.Struct, frozen=True):
    """The text of a task: its title, type, input, result and error, as stored and cut."""

    tenant: str
    task_id: str
    text: str


class Position(msgspec.Struct, frozen=True):
    """The last event of the run log that the index covers: its number and its id."""

    number: int
    event_id: str


class TaskIndex(Protocol):
    """The words of tasks. A task that is put again replaces itself and becomes the newest."""

    async def read_position(self) -> Position | None:
        """Return how far the index goes; None for an empty one."""
        ...

    async def put(self, texts: Sequence[TaskText], position: Position) -> None:
        """Add or replace texts, and set the position, in one transaction."""
        ...

    async def find(self, tenant: str, phrases: list[Phrase], before: int, limit: int) -> list[tuple[int, str]]:
        """Return (document, task id) of matches before a document, the newest first."""
        ...

    async def clear(self) -> None: ...

    async def close(self) -> None: ...


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
