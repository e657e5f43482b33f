"""Keyword, semantic and hybrid search over the documents of a vault, and the best passages for a question.

Combines the scores and records each search; the index itself is in `index/`. Source: core contract, "Memory bus".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from stentor.core import jsontext
from stentor.core.clock import Clock
from stentor.core.db import Database
from stentor.core.errors import InvalidRequest
from stentor.core.runlog import EventDraft
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable
from stentor.domains.memory.embedding.embedding_worker import EmbeddingWorker
from stentor.domains.memory.hybrid_scores import HybridScore, rank_matches
from stentor.domains.memory.index.index import SearchIndex, exclude_at
from stentor.domains.memory.index.model import (
    DocumentRow,
    Folders,
    KeywordResult,
    ListExcluded,
    MatchMode,
    SearchField,
    SearchFilters,
    VectorHit,
    build_query,
    build_question,
    build_results,
)
from stentor.domains.memory.model import MaySearch, MemoryCaller
from stentor.domains.memory.service import MemoryService
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.text.excerpts import (
    Passage,
    PassageSource,
    has_clearly_more,
    make_chunk_excerpt,
    make_excerpt,
    rank_passages,
)
from stentor.domains.memory.threads import in_thread_if_long
from stentor.domains.memory.validity.frontmatter_keys import parse_as_of
from stentor.domains.memory.validity.model import Exclusion

PREVIEW_CHARS = 200
INLINE_MAX_CHARS = 50_000
"""Excerpts of longer texts are made in a thread: one of a megabyte takes a tenth of a second."""
ONE_CHUNK_CHARS = 1_000
"""Up to this length a document has about one chunk, and its excerpt is of the words that were found."""
COMPLETENESS_AGE_S = 1
"""For how long a complete index counts as such: a query for each search on PostgreSQL makes short ones slower."""
MAX_CANDIDATES = 100
"""Candidates of each kind (keyword, semantic) that a hybrid search compares."""


class SearchScope(msgspec.Struct, frozen=True):
    """Which notes a search may return: those that hold at `as_of` (microseconds, None for now) and are not invalid.

    `include_invalid` adds those that are invalid, with the reason.
    """

    as_of: int | None = None
    include_invalid: bool = False


VALID_NOW = SearchScope()


def parse_scope(as_of: str | None, *, include_invalid: bool) -> SearchScope:
    """Return the scope of a question. Raises InvalidRequest for a text that is not a time."""
    if as_of is None:
        return SearchScope(None, include_invalid)
    try:
        return SearchScope(parse_as_of(as_of), include_invalid)
    except ValueError:
        raise InvalidRequest("as_of: must be a date such as 2026-02-28, or an ISO time.") from None


class SemanticMatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document found by semantic search.

    `source_level` is "section" unless its first chunk is the best one; `excerpt` is of the best one. `weak` is true if
    no document is nearer to the query than made-up words are.
    """

    path: str
    content_preview: str
    excerpt: str
    similarity_score: float
    source_level: Literal["document", "section"]
    hebbian_weights: dict[str, float]
    invalid: Exclusion | None = None
    weak: bool = False


class HybridMatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document found by hybrid search.

    The keyword and similarity scores are scaled to 0 to 1 over the candidates; `score` is their weighted sum, with
    the support of the pieces beside it. `weak` is true if it has no word of the query and no document is nearer to the
    query than made-up words are.
    """

    path: str
    title: str
    excerpt: str
    score: float
    keyword_score: float
    similarity_score: float
    invalid: Exclusion | None = None
    weak: bool = False


class SearchService:
    """Searches one vault. Each search records a memory_read event; one that cannot be recorded fails."""

    def __init__(
        self, db: Database, index: SearchIndex, memory: MemoryService, embedding_worker: EmbeddingWorker, clock: Clock
    ) -> None:
        self._db = db
        self._clock = clock
        self._index = index
        self._memory = memory
        self._embedding_worker = embedding_worker

    async def keyword(
        self,
        caller: MemoryCaller,
        texts: Sequence[str],
        fields: Sequence[SearchField],
        mode: MatchMode,
        limit: int,
        folder: Folders | None = None,
        scope: SearchScope = VALID_NOW,
    ) -> tuple[list[KeywordResult], int]:
        """Return the best matches of these words and phrases, and the total number of matches.

        Where any of them is enough, stop words are ignored, because nearly every document has one, and dates are
        found in their other forms.
        """
        significant = tokenizer.drop_stop_words(texts)
        if mode == "any":
            significant += tokenizer.find_dates(" ".join(texts))
        query = build_query(texts if mode == "all" else significant, fields, mode)
        hits, total, _ = (
            ([], 0, ())
            if query is None
            else await self._index.search_keywords(query, limit, folder, list_excluded=self._exclude(scope))
        )
        marks = await self._explain(scope, [hit.doc_id for hit in hits])
        await self._record_search(caller, "keyword", total)
        make = partial(build_results, hits, tokenizer.query_terms(significant), marks)
        return await in_thread_if_long(sum(len(hit.body) for hit in hits), INLINE_MAX_CHARS, make), total

    async def semantic(
        self,
        caller: MemoryCaller,
        query: str,
        embedding: Sequence[float] | None,
        limit: int,
        filters: SearchFilters,
        scope: SearchScope = VALID_NOW,
    ) -> tuple[list[SemanticMatch], int]:
        """Return the nearest documents that reach the minimum similarity, and how many pass it and the filters.

        Raises EmbeddingUnavailable.
        """
        # Concurrently, because the model is slower.
        vector, excluded = await asyncio.gather(
            self._embedding_worker.query_vector(query, embedding), self._index.list_excluded(self._exclude(scope))
        )
        minimum = self._embedding_worker.min_similarity
        filters = msgspec.structs.replace(filters, similarity_min=minimum, excluded=excluded)
        hits, total = await self._index.vectors.nearest(vector, limit, filters)
        doc_ids = [hit.doc_id for hit in hits]
        rows, marks = await self._index.read_rows(doc_ids), await self._explain(scope, doc_ids)
        terms = tokenizer.query_terms(tokenizer.drop_stop_words(tokenizer.split_words(query)))
        excerpts = await self._chunk_excerpts(rows, {hit.doc_id: hit.ordinal for hit in hits}, terms)
        await self._record_search(caller, "semantic", total)
        weak = bool(hits) and hits[0].similarity < self._embedding_worker.noise_level(vector)
        # A hit without a row was deleted between the two reads.
        matches = [
            _semantic_match(rows[hit.doc_id], hit, excerpts[hit.doc_id], marks, weak=weak)
            for hit in hits
            if hit.doc_id in rows
        ]
        return matches, total

    async def hybrid(
        self,
        caller: MemoryCaller,
        query: str,
        limit: int,
        filters: SearchFilters,
        scope: SearchScope = VALID_NOW,
        may_search: MaySearch | None = None,
    ) -> tuple[list[HybridMatch], int]:
        """Return the best documents by keywords and similarity; by keywords only while embeddings are unavailable.

        A document matches if it has a content word of the query, or reaches the minimum similarity, or is a piece
        beside one that does. A phrase in quotes counts as well as its words. Folders that `may_search` denies are left
        out.
        """
        if may_search is not None and filters.folder is None:
            filters = msgspec.structs.replace(filters, folder=await self._folders(may_search))
        words = tokenizer.drop_stop_words(tokenizer.split_words(query))
        dates = tokenizer.find_dates(query)
        keyword_query = build_question([*words, *tokenizer.find_quoted(query), *dates])
        # Spaces and punctuation mean nothing, but are near to some vector.
        if keyword_query is None:
            await self._record_search(caller, "hybrid", 0)
            return [], 0
        hits, _, excluded = await self._index.search_keywords(
            keyword_query, MAX_CANDIDATES, filters.folder, with_total=False, list_excluded=self._exclude(scope)
        )
        filters = msgspec.structs.replace(filters, excluded=excluded)
        keyword_scores = {hit.doc_id: hit.score for hit in hits}
        similarities, ordinals, noise_level = await self._similarities(query, keyword_scores, filters)
        is_noise = max(similarities.values(), default=1.0) < noise_level
        rows = await self._index.read_rows(list({**keyword_scores, **similarities}))
        rows = {
            doc_id: row
            for doc_id, row in rows.items()
            # Each document again: it may have been moved since its folder was listed.
            if row.matches(filters) and (may_search is None or may_search(row.path.rpartition("/")[0]))
        }
        min_similarity = self._embedding_worker.min_similarity
        own = {
            doc_id for doc_id in rows if doc_id in keyword_scores or similarities.get(doc_id, -1.0) >= min_similarity
        }
        scores = rank_matches(rows, keyword_scores, similarities, own, has_year=tokenizer.has_year(query))
        best, terms = list(scores)[:limit], tokenizer.query_terms([*words, *dates])
        marks = await self._explain(scope, best)
        excerpts = await self._excerpts({id_: rows[id_] for id_ in best}, ordinals, keyword_scores, terms)
        await self._record_search(caller, "hybrid", len(scores))
        matches = [
            _hybrid_match(
                rows[id_], scores[id_], excerpts[id_], marks.get(id_), weak=is_noise and id_ not in keyword_scores
            )
            for id_ in best
        ]
        return matches, len(scores)

    async def is_complete(self) -> bool:
        """Return whether the index has the whole vault. Ask before a search, which may see the last note come."""
        return await self._index.was_reconciled(max_age_s=COMPLETENESS_AGE_S)

    def _exclude(self, scope: SearchScope) -> ListExcluded:
        at = self._clock.now() if scope.as_of is None else scope.as_of
        return exclude_at(at, include_invalid=scope.include_invalid)

    async def _explain(self, scope: SearchScope, doc_ids: Sequence[int]) -> dict[int, Exclusion]:
        return await self._index.explain_exclusions(doc_ids) if scope.include_invalid else {}

    async def _folders(self, may_search: MaySearch) -> Folders | None:
        """Return the folders that may be searched; None for all."""
        folders = await self._index.list_folders()
        searched = tuple(folder for folder in folders if may_search(folder))
        return None if len(searched) == len(folders) else searched

    async def passages(
        self, caller: MemoryCaller, question: str, limit: int, may_search: MaySearch | None = None
    ) -> list[Passage]:
        """Return the passages that best answer a question, each from a different document of the permitted folders."""
        # Three times as many documents as passages: not every document has a passage with a word of the question.
        matches, _ = await self.hybrid(caller, question, limit * 3, SearchFilters(), may_search=may_search)
        bodies = await self._index.read_bodies([match.path for match in matches])
        sources = [
            PassageSource(match.path, match.title, bodies[match.path], match.score)
            for match in matches
            if match.path in bodies
        ]
        return await asyncio.to_thread(rank_passages, sources, question, limit)

    async def _similarities(
        self, query: str, keyword_scores: Mapping[int, float], filters: SearchFilters
    ) -> tuple[dict[int, float], dict[int, int], float]:
        """Return the similarities of the nearest documents and of all keyword hits; none without embeddings.

        Of the nearest ones also the ordinals of their nearest chunks; and the noise level of the query.
        """
        # Checked first, because a model that failed would be loaded again by the call below.
        if self._embedding_worker.problem is not None:
            return {}, {}, -1.0
        try:
            vector = await self._embedding_worker.query_vector(query, None)
            hits, _ = await self._index.vectors.nearest(vector, MAX_CANDIDATES, filters)
        except EmbeddingUnavailable:
            return {}, {}, -1.0
        similarities = {hit.doc_id: hit.similarity for hit in hits}
        missing = [doc_id for doc_id in keyword_scores if doc_id not in similarities]
        similarities |= await self._index.vectors.similarities(vector, missing)
        ordinals = {hit.doc_id: hit.ordinal for hit in hits}
        return similarities, ordinals, self._embedding_worker.noise_level(vector)

    async def _excerpts(
        self,
        rows: Mapping[int, DocumentRow],
        ordinals: Mapping[int, int],
        keyword_scores: Mapping[int, float],
        terms: frozenset[str],
    ) -> dict[int, str]:
        """Return an excerpt of each document: of its nearest chunk, or a place that has clearly more of the terms."""
        nearest = {
            id_: ordinals[id_]
            for id_, row in rows.items()
            if id_ in ordinals and (id_ not in keyword_scores or len(row.body) > ONE_CHUNK_CHARS)
        }
        by_meaning = await self._chunk_excerpts(rows, nearest, terms)
        bodies = {id_: row.body for id_, row in rows.items() if id_ in keyword_scores or not by_meaning.get(id_)}
        by_words = await in_thread_if_long(
            sum(map(len, bodies.values())),
            INLINE_MAX_CHARS,
            lambda: {id_: make_excerpt(body, terms) for id_, body in bodies.items()},
        )
        return by_meaning | {
            id_: excerpt
            for id_, excerpt in by_words.items()
            if not by_meaning.get(id_) or has_clearly_more(excerpt, by_meaning[id_], terms)
        }

    async def _chunk_excerpts(
        self, rows: Mapping[int, DocumentRow], ordinals: Mapping[int, int], terms: frozenset[str]
    ) -> dict[int, str]:
        """Return an excerpt of the chunk with this ordinal for each of these documents that has a row."""
        bodies = {doc_id: rows[doc_id].body for doc_id in ordinals if doc_id in rows}
        if not bodies:
            return {}
        headings = await self._index.read_headings(list(bodies))
        return await asyncio.to_thread(
            lambda: {
                doc_id: make_chunk_excerpt(body, headings.get(doc_id, ()), ordinals[doc_id], terms)
                for doc_id, body in bodies.items()
            }
        )

    async def _record_search(self, caller: MemoryCaller, mode: str, total: int) -> None:
        meta = {"search": mode, "matches": total, "by": caller.principal.name}
        text = f"A {mode} search found {total} {'match' if total == 1 else 'matches'}."
        event = EventDraft("memory_read", "memory", text, meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._memory.record_event(tx, caller, event))


def _semantic_match(
    row: DocumentRow, hit: VectorHit, excerpt: str, marks: Mapping[int, Exclusion], *, weak: bool
) -> SemanticMatch:
    weights = jsontext.load(row.frontmatter).get("hebbian_weights")
    hebbian_weights = weights if isinstance(weights, dict) else {}
    return SemanticMatch(
        row.path,
        row.body[:PREVIEW_CHARS],
        excerpt,
        round(hit.similarity, 6),
        "section" if hit.ordinal else "document",
        hebbian_weights,
        marks.get(hit.doc_id),
        weak,
    )


def _hybrid_match(
    row: DocumentRow, score: HybridScore, excerpt: str, invalid: Exclusion | None, *, weak: bool
) -> HybridMatch:
    return HybridMatch(
        row.path,
        row.title,
        excerpt,
        score.rounded,
        round(score.keyword, 6),
        round(score.similarity, 6),
        invalid,
        weak,
    )
