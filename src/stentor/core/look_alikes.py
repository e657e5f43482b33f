"""Names that a reader may take for each other."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_LATIN_BY_LOOK_ALIKE = str.maketrans(
    "АВЕЅІЈКМНОРСТХУаеѕіјорсхуһԁԛԝӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧαινορυıɑɡօոսհ",
    "ABESIJKMHOPCTXYaesijopcxyhdqwlABEZHIKMNOPTYXaivopuiagonuh",
)
"""Cyrillic, Greek and other letters, and the Latin ones that they look like (after Unicode TS 39)."""
_ONE_OF_LOOK_ALIKES = str.maketrans("0i1", "oll")


@lru_cache(16_384)
def same_looking(name: str) -> str:
    """Return a form that is equal for names that a reader may take for each other.

    They differ in case, spaces, width, letters of another script that look like Latin ones, `0` and `o`, or `1`, `i`
    and `l`. Accents count. Only for a notice: `ink` and `lnk` are equal, too.
    """
    text = unicodedata.normalize("NFKC", name).translate(_LATIN_BY_LOOK_ALIKE).casefold()
    return " ".join(text.split()).translate(_ONE_OF_LOOK_ALIKES)
