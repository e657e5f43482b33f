"""Searches by word, by meaning, and by both. Source: core contract, "Memory bus"."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from stentor.core import jsontext
from stentor.core.db import Database
from stentor.core.runlog import EventDraft
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable
from stentor.domains.memory.embedding_worker import EmbeddingWorker
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.model import (
    SEARCH_FIELDS,
    DocumentRow,
    Folders,
    KeywordResult,
    MatchMode,
    SearchField,
    SearchFilters,
    build_query,
    build_results,
)
from stentor.domains.memory.service import MemoryCaller, MemoryService
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.text.excerpts import Passage, PassageSource, make_excerpt, rank_passages

PREVIEW_CHARS = 200
MAX_CANDIDATES = 100
"""Documents of each kind that a hybrid search weighs against each other."""
SEMANTIC_WEIGHT = 0.5
"""Of the meaning in a hybrid score. Source: facts of the retrieval quality."""


class SemanticMatch(msgspec.Struct, frozen=True):
    """`source_level` says whether a section of the document is like the query, or the document as a whole."""

    path: str
    content_preview: str
    similarity_score: float
    source_level: Literal["document", "section"]
    hebbian_weights: dict[str, float]


class HybridMatch(msgspec.Struct, frozen=True):
    """The scores of each kind are shares of the range among the candidates; `score` is their weighted sum."""

    path: str
    title: str
    excerpt: str
    score: float
    keyword_score: float
    similarity_score: float


class SearchService:
    """Each search leaves a memory_read event; what cannot be recorded is not answered."""

    def __init__(self, db: Database, index: SearchIndex, bus: MemoryService, meanings: EmbeddingWorker) -> None:
        self._db = db
        self._index = index
        self._bus = bus
        self._meanings = meanings

    async def keyword(
        self,
        caller: MemoryCaller,
        wanted: Sequence[str],
        fields: Sequence[SearchField],
        mode: MatchMode,
        limit: int,
        folder: Folders | None = None,
    ) -> tuple[list[KeywordResult], int]:
        """The best matches, and how many there are in all."""
        query = build_query(wanted, fields, mode)
        hits, total = ([], 0) if query is None else await self._index.search_keywords(query, limit, folder)
        await self._record(caller, "keyword", total)
        return build_results(hits, _terms(wanted)), total

    async def semantic(
        self, caller: MemoryCaller, query: str, embedding: Sequence[float] | None, most: int, filters: SearchFilters
    ) -> tuple[list[SemanticMatch], int]:
        """The nearest documents, however far they are, and how many pass the filters. Raises EmbeddingUnavailable."""
        vector = await self._meanings.query_vector(query, embedding)
        near, total = await self._index.vectors.nearest(vector, most, filters)
        rows = await self._index.read_rows([one.doc_id for one in near])
        await self._record(caller, "semantic", total)
        found = [_semantic(rows[one.doc_id], one.similarity, one.ordinal) for one in near if one.doc_id in rows]
        return found, total

    async def hybrid(
        self, caller: MemoryCaller, query: str, most: int, filters: SearchFilters
    ) -> tuple[list[HybridMatch], int]:
        """By word and by meaning; by word alone while there is no model.

        A document matches that has a telling word of the query, or is alike beyond noise.
        """
        asked = tokenizer.drop_stop_words(query)
        text = build_query(asked, SEARCH_FIELDS, "any")
        hits, _ = (
            ([], 0)
            if text is None
            else await self._index.search_keywords(text, MAX_CANDIDATES, filters.folder, with_total=False)
        )
        by_word = {hit.doc_id: hit.score for hit in hits}
        by_meaning = await self._alike(query, by_word, filters)
        rows = await self._index.read_rows(list({**by_word, **by_meaning}))
        rows = {doc_id: row for doc_id, row in rows.items() if row.matches(filters)}
        scores = _fused(rows, by_word, by_meaning)
        floor = self._meanings.min_similarity
        best = sorted(
            (one for one in rows if (one in by_word or by_meaning.get(one, -1.0) >= floor) and scores[one].shown > 0),
            key=lambda one: (-scores[one].score, rows[one].path),
        )
        await self._record(caller, "hybrid", len(best))
        terms = _terms(asked)
        return [_hybrid(rows[one], scores[one], terms) for one in best[:most]], len(best)

    async def passages(self, caller: MemoryCaller, question: str, most: int) -> list[Passage]:
        """The passages that say most about a question, each of another document."""
        found, _ = await self.hybrid(caller, question, most * 3, SearchFilters())
        bodies = await self._index.read_bodies([one.path for one in found])
        sources = [
            PassageSource(one.path, one.title, bodies[one.path], one.score) for one in found if one.path in bodies
        ]
        return await asyncio.to_thread(rank_passages, sources, question, most)

    async def _alike(self, query: str, by_word: Mapping[int, float], filters: SearchFilters) -> dict[int, float]:
        """Similarities of the nearest documents, and of those that were found by word."""
        if self._meanings.problem is not None:
            return {}
        try:
            vector = await self._meanings.query_vector(query, None)
            near, _ = await self._index.vectors.nearest(vector, MAX_CANDIDATES, filters)
        except EmbeddingUnavailable:
            return {}
        known = {one.doc_id: one.similarity for one in near}
        return known | await self._index.vectors.similarities(vector, [one for one in by_word if one not in known])

    async def _record(self, caller: MemoryCaller, mode: str, total: int) -> None:
        meta = {"search": mode, "matches": total, "by": caller.principal.name}
        event = EventDraft("memory_read", "memory", f"A {mode} search found {total}.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._bus.record_event(tx, caller, event))


def _terms(texts: Sequence[str]) -> frozenset[str]:
    return frozenset(term for text in texts for term in tokenizer.tokenize(text))


def _semantic(row: DocumentRow, similarity: float, ordinal: int) -> SemanticMatch:
    weights = jsontext.load(row.frontmatter).get("hebbian_weights")
    shown = weights if isinstance(weights, dict) else {}
    return SemanticMatch(
        row.path, row.body[:PREVIEW_CHARS], round(similarity, 6), "section" if ordinal else "document", shown
    )


class _Fused(msgspec.Struct, frozen=True):
    word: float
    meaning: float
    score: float

    @property
    def shown(self) -> float:
        """0 for a document with nothing but a word that nearly all have."""
        return round(self.score, 6)


def _fused(
    rows: Mapping[int, DocumentRow], by_word: Mapping[int, float], by_meaning: Mapping[int, float]
) -> dict[int, _Fused]:
    """Both kinds of scores among all candidates, also those that turn out to be no match: they are what is noise."""
    known = [by_meaning[doc_id] for doc_id in rows if doc_id in by_meaning]
    lowest = min(known if len(known) == len(rows) else [0.0, *known], default=0.0)
    word, meaning = _shares(rows, by_word, 0.0), _shares(rows, by_meaning, lowest)
    share = SEMANTIC_WEIGHT if by_meaning else 0.0
    return {
        doc_id: _Fused(word[doc_id], meaning[doc_id], (1 - share) * word[doc_id] + share * meaning[doc_id])
        for doc_id in rows
    }


def _hybrid(row: DocumentRow, fused: _Fused, wanted: frozenset[str]) -> HybridMatch:
    return HybridMatch(
        row.path,
        row.title,
        make_excerpt(row.body, wanted),
        fused.shown,
        round(fused.word, 6),
        round(fused.meaning, 6),
    )


def _shares(rows: Mapping[int, DocumentRow], scores: Mapping[int, float], low: float) -> dict[int, float]:
    """Each score as its share of the range from `low` to the highest; what has no score has no share."""
    width = max((scores[doc_id] for doc_id in rows if doc_id in scores), default=low) - low
    if not width:  # all alike: each is the best
        return {doc_id: float(doc_id in scores) for doc_id in rows}
    return {doc_id: (scores[doc_id] - low) / width if doc_id in scores else 0.0 for doc_id in rows}
