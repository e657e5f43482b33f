"""Terms as tsvectors, and phrases as tsqueries over them. Pure.

A tsvector knows places up to 16,383, 256 of each word, and 1 MB in all, so that a text is cut into windows which stay
below all of that. A window's own terms have the label A. Behind them stand the first terms of the next window, without
a label, so that a phrase that begins here ends here. A phrase has to begin at a label: it is found in one window alone,
and `ts_rank_cd` with equal weights counts how often.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

OWN, MORE = 224, 31
LONGEST = 200
"""Signs of a term above which it is stored by its hash: neither index takes long ones."""


def key(term: str) -> str:
    """What a term is stored as."""
    return term if len(term) <= LONGEST else f"{term[:LONGEST]}{hashlib.sha256(term.encode()).hexdigest()}"


def windows(terms: Sequence[str]) -> Iterator[str]:
    """The text of a tsvector for each window; none where no phrase can begin."""
    for start in range(0, len(terms) - 1, OWN):
        yield _vector(terms[start : start + OWN + MORE])


def _vector(terms: Sequence[str]) -> str:
    places: dict[str, list[str]] = defaultdict(list)
    for place, term in enumerate(terms, 1):
        places[key(term)].append(f"{place}A" if place <= OWN else str(place))
    return " ".join(f"{_quoted(term)}:{','.join(found)}" for term, found in places.items())


def pieces(phrase: Sequence[str]) -> list[str]:
    """The texts of the tsqueries that a document must match. A phrase that no window can hold is cut; each piece
    begins with the last term of the one before."""
    return [_query(phrase[start : start + MORE + 1]) for start in range(0, len(phrase) - 1, MORE)]


def _query(terms: Sequence[str]) -> str:
    first, *rest = (_quoted(key(term)) for term in terms)
    return " <-> ".join([f"{first}:A", *rest])


def _quoted(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
