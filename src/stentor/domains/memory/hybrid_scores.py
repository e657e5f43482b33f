"""The scores of a hybrid search: by keywords and by meaning together, with the support of neighbouring pieces. Pure.

Pieces are notes of one sequence, such as the turns of a conversation or the pages of a log. A short piece says little
by itself: "Yes, last Friday" answers the question in the piece before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from statistics import pstdev

import msgspec

from stentor.domains.memory.index.model import DocumentRow

SEMANTIC_WEIGHT = 0.55
"""Share of the similarity in a hybrid score, if both kinds of scores vary equally. Source: ADR 59."""
DATED_SEMANTIC_WEIGHT = 0.25
"""The same for a question with a year: the notes of other years are as similar to it. Source: ADR 59."""
SUPPORT_BY_DISTANCE = {1: 0.25, 2: 0.12}
"""Share of a neighbour's score that a piece gets, by how many pieces they are apart. Source: ADR 59."""
WHOLE_CHARS = 360
"""Pieces of at most this many characters get this share in full, longer ones less and less."""
MIN_SUPPORT = 0.1
"""Support from which a piece that does not match by itself is a match: the answer beside the question."""
_LAST_NUMBER = re.compile(r"(\d{1,9})\D*$")


class HybridScore(msgspec.Struct, frozen=True):
    keyword: float
    similarity: float
    support: float
    combined: float

    @property
    def rounded(self) -> float:
        """The published score; 0 for a document that matches only a word that nearly all documents have."""
        return round(self.combined, 6)


def rank_matches(
    rows: Mapping[int, DocumentRow],
    keyword_scores: Mapping[int, float],
    similarities: Mapping[int, float],
    matches: Collection[int],
    *,
    has_year: bool,
) -> dict[int, HybridScore]:
    """Return the scores of the matches, and of pieces beside them, the best first. `rows` are all candidates.

    `has_year` is whether the question has a year.
    """
    share = DATED_SEMANTIC_WEIGHT if has_year else SEMANTIC_WEIGHT
    scores = _combine_scores(rows, keyword_scores, similarities, matches, share)
    found = (
        (doc_id, score)
        for doc_id, score in scores.items()
        if (doc_id in matches or score.support >= MIN_SUPPORT) and score.rounded > 0
    )
    return dict(sorted(found, key=lambda entry: (-entry[1].combined, rows[entry[0]].path)))


def _combine_scores(
    rows: Mapping[int, DocumentRow],
    keyword_scores: Mapping[int, float],
    similarities: Mapping[int, float],
    matches: Collection[int],
    share: float,
) -> dict[int, HybridScore]:
    """Scale and add the scores over all candidates, including those that do not match.

    `share` is the weight (0 to 1) of the similarity if both kinds of scores vary equally.
    The non-matching candidates define the noise level: the lowest similarity among the candidates becomes 0.
    """
    known = [similarities[doc_id] for doc_id in rows if doc_id in similarities]
    lowest = min(known if len(known) == len(rows) else [0.0, *known], default=0.0)
    keyword, similarity = _scale(rows, keyword_scores, 0.0), _scale(rows, similarities, lowest)
    weight = _semantic_weight(keyword.values(), similarity.values(), share) if rows and similarities else 0.0
    sums = {row.path: (1 - weight) * keyword[doc_id] + weight * similarity[doc_id] for doc_id, row in rows.items()}
    lengths = {row.path: len(row.body) for row in rows.values()}
    supports = find_support(sums, lengths, {rows[doc_id].path for doc_id in matches})
    combined = {path: score + supports.get(path, 0.0) for path, score in sums.items()}
    highest = max(1.0, *combined.values()) if combined else 1.0
    return {
        doc_id: HybridScore(
            keyword[doc_id], similarity[doc_id], supports.get(row.path, 0.0), combined[row.path] / highest
        )
        for doc_id, row in rows.items()
    }


def _semantic_weight(keyword: Iterable[float], similarity: Iterable[float], share: float) -> float:
    """Return the weight (0 to 1) that gives the similarity this share of how the scores of the candidates vary.

    Scores that are all alike but for one tell little about the others. This is the sum of standard scores, scaled.
    """
    keyword_spread, similarity_spread = pstdev(keyword), pstdev(similarity)
    # A kind whose scores are all equal does not change the order; it must not take all of the score either.
    if not keyword_spread or not similarity_spread:
        return share
    keyword_weight, similarity_weight = (1 - share) / keyword_spread, share / similarity_spread
    return similarity_weight / (keyword_weight + similarity_weight)


def _scale(rows: Mapping[int, DocumentRow], scores: Mapping[int, float], low: float) -> dict[int, float]:
    """Scale scores so that `low` becomes 0 and the highest 1; a document without a score gets 0."""
    width = max((scores[doc_id] for doc_id in rows if doc_id in scores), default=low) - low
    if not width:  # all scores are equal: each counts as the best
        return {doc_id: float(doc_id in scores) for doc_id in rows}
    return {doc_id: (scores[doc_id] - low) / width if doc_id in scores else 0.0 for doc_id in rows}


def find_support(scores: Mapping[str, float], lengths: Mapping[str, int], matches: Collection[str]) -> dict[str, float]:
    """Return what the matching pieces beside each note add to its score, by path; notes without such are left out.

    Only what a match has above the mean of all scores counts, so that being one of many pieces is no merit.
    """
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    places = {path: place for path in scores if (place := place_in_sequence(path)) is not None}
    above: dict[tuple[str, int], float] = {}
    for path in places.keys() & set(matches):
        above[places[path]] = max(above.get(places[path], 0.0), scores[path] - mean)
    supports: dict[str, float] = {}
    for path, (sequence, number) in places.items():
        support = sum(
            share * (above.get((sequence, number - distance), 0.0) + above.get((sequence, number + distance), 0.0))
            for distance, share in SUPPORT_BY_DISTANCE.items()
        )
        if support:
            supports[path] = support * min(1.0, WHOLE_CHARS / max(1, lengths[path]))
    return supports


def place_in_sequence(path: str) -> tuple[str, int] | None:
    """Return the sequence of a note and its number there, by the last number of the file name; None without one.

    `talk/turn-012 Ann.md` is number 12 of `talk/turn-`.
    """
    stem = path.removesuffix(".md")
    folder, slash, name = stem.rpartition("/")
    match = _LAST_NUMBER.search(name)
    return (f"{folder}{slash}{name[: match.start()]}", int(match[1])) if match else None
