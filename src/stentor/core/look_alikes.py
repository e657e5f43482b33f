"""Names that a reader may take for each other."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_LATIN_BY_LOOK_ALIKE = str.maketrans(
    "АВЕЅІЈКМНОРСТХУаеѕіјорсхуһԁԛԝӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧαινορυıɑɡօոսհ",
    "ABESIJKMHOPCTXYaesijopcxyhdqwlABEZHIKMNOPTYXaivopuiagonuh",
)
"""Cyrillic, Greek and other letters, and the Latin ones that they look like (after Unicode TS 39)."""
_INVISIBLE = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""What Python calls printable but nobody sees: variation selectors, Hangul fillers, the empty Braille pattern."""
_ONE_OF_LOOK_ALIKES = str.maketrans("0i1", "oll")


@lru_cache(16_384)
def same_looking(name: str) -> str:
    """Return a form that is equal for names that a reader may take for each other.

    They differ in case, spaces, width, invisible characters, letters of another script that look like Latin ones, `0`
    and `o`, or `1`, `i` and `l`. Accents count. Only for a notice: `ink` and `lnk` are equal, too.
    """
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name)).translate(_LATIN_BY_LOOK_ALIKE).casefold()
    return " ".join(text.split()).translate(_ONE_OF_LOOK_ALIKES)
