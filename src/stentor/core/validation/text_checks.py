"""Checks of texts and times in fields that clients send, for pydantic's validators.

Each returns its value or raises ValueError, except `check_name`. HTTP and the formats of messages share them, so
they depend on neither. `confusable_skeleton` finds names that a reader may mistake for each other.
"""

from __future__ import annotations

import re
import time
import unicodedata
from datetime import datetime
from functools import lru_cache

from stentor.core.clock import micros_from_datetime
from stentor.core.errors import InvalidRequest

UUID_PATTERN = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
MAX_START_SECONDS = 10 * 365 * 86_400
"""How far ahead a task or a message may be scheduled."""
_JOINERS = "\u200c\u200d"
"""Zero-width characters that Persian, Indic languages and emoji of several people need."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")
NAME_PATTERN = r"[a-z0-9][a-z0-9_.-]{0,62}"
"""The name of a record in a URL."""
_NAME = re.compile(NAME_PATTERN)
_LATIN_BY_LOOK_ALIKE = str.maketrans(
    "АВЕЅІЈКМНОРСТХУаеѕіјорсхуһԁԛԝӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧαινορυıɑɡօոսհ",
    "ABESIJKMHOPCTXYaesijopcxyhdqwlABEZHIKMNOPTYXaivopuiagonuh",
)
"""Cyrillic, Greek and other letters, and the Latin letters that look the same (from Unicode TS 39)."""
_INVISIBLE = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Printable for Python and still invisible: variation selectors, Hangul fillers, the empty Braille pattern."""
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\ufe00-\ufe0f\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point without format characters (Cf), after NFKC."""
_ONE_OF_LOOK_ALIKES = str.maketrans("0i1", "oll")


def check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must consist of printable characters")
    return text


def check_not_blank(text: str) -> str:
    # In a list, a name of spaces would be invisible.
    if is_invisible(text):
        raise ValueError("must not be blank")
    return text


def is_invisible(text: str) -> bool:
    """Return whether a reader sees nothing of a printable text: spaces, and characters without a glyph."""
    if text.isascii():
        return text.isspace()
    return not _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).strip()


def is_readable(character: str) -> bool:
    """Return whether a text for people may contain a character: a printable one, or a joiner.

    Not for names: two that differ in joiners look the same.
    """
    return character.isprintable() or character in _JOINERS


def check_title(text: str) -> str:
    if not text.strip(_JOINERS) or not all(map(is_readable, text)):
        raise ValueError("must consist of printable characters")
    return text


def check_segment(text: str) -> str:
    # Clients and proxies resolve these in a path, so a record with such a name would be unreachable.
    if text in (".", ".."):
        raise ValueError("must not be . or .., which clients would leave out of a path")
    return check_printable(text)


def check_iso8601(text: object) -> str:
    # pydantic would accept a number as seconds since 1970, and a date as its midnight.
    if not isinstance(text, str) or not _TIME.match(text):
        raise ValueError("must be a time with its zone, such as 2026-11-20T21:45:00Z")
    return text


def check_utc(moment: datetime) -> datetime:
    # Times are stored and shown in UTC, where the first and the last hours of some zones have no date.
    try:
        micros_from_datetime(moment)
    except OverflowError:
        raise ValueError("must be in the years 1 to 9999 in UTC") from None
    return moment


def check_start(moment: datetime) -> datetime:
    if moment.timestamp() > time.time() + MAX_START_SECONDS:
        raise ValueError("must be at most ten years ahead")
    return moment


def check_no_nul(text: str) -> str:
    # PostgreSQL stores no NUL in a text.
    if "\0" in text:
        raise ValueError("must not contain the character NUL")
    return text


def check_name(name: str) -> None:
    """Raise InvalidRequest for a text that cannot be a name in a URL, such as that of a key."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "name: must be 1 to 63 characters of a-z, 0-9, `_`, `-` and `.`, beginning with a letter or digit"
        )


def to_visible(text: str) -> str:
    """Return a name as a reader sees it: in NFKC, without characters that have no glyph."""
    text = _IGNORABLE.sub("", unicodedata.normalize("NFKC", text))
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


@lru_cache(16_384)
def confusable_skeleton(name: str) -> str:
    """Return a form that is equal for names that a reader may mistake for each other ("skeleton" in Unicode TS 39).

    It ignores case, spaces, width and invisible characters, and makes one letter of those that look alike: of other
    scripts, `0` and `o`, `1`, `i` and `l`. Accents count. Only for a notice, because `ink` and `lnk` are equal too.
    """
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name)).translate(_LATIN_BY_LOOK_ALIKE).casefold()
    return " ".join(text.split()).translate(_ONE_OF_LOOK_ALIKES)
