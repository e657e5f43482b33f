"""What goes into the index and what comes out. Times in microseconds, sizes in bytes.

What is looked for by word, and what is shown of it. The caller's text never becomes query syntax. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from stentor.core import jsontext
from stentor.domains.memory.documents import NoteDocument
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.text.excerpts import make_excerpt
from stentor.domains.notes.model import Note, content_hash


class IndexEntry(msgspec.Struct, frozen=True):
    """A document ready to be stored: everything is computed before the transaction."""

    path: str
    folder: str
    raw_hash: str
    content_hash: str
    size: int
    modified_at: int
    created_at: int
    title: str
    tags: str
    frontmatter: str
    problem: str | None
    weight: float | None
    body: str
    title_words: str
    tag_words: str
    body_words: str


class IndexedFileState(msgspec.Struct, frozen=True):
    """What the index knows of a file, to compare with the file."""

    path: str
    raw_hash: str
    size: int
    modified_at: int


class IndexTotals(msgspec.Struct, frozen=True):
    """Documents, their bytes, how many have no vectors, and when the index was last written to."""

    documents: int
    size: int
    without_vectors: int
    synced_at: int | None


class IndexedDocument(msgspec.Struct, frozen=True):
    """What the index knows of one document. Without a `model` it has no vectors yet."""

    path: str
    title: str
    raw_hash: str
    content_hash: str
    size: int
    modified_at: int
    model: str | None


class FolderStats(msgspec.Struct, frozen=True):
    """Of the documents in some folders: how many, their bytes, how many have vectors, when the last one changed."""

    documents: int
    size: int
    with_vectors: int
    modified_at: int | None


Folders = str | tuple[str, ...]
"""One folder or several: the documents in them, not those in their folders."""


def folder_list(folders: Folders) -> list[str]:
    return [folders] if isinstance(folders, str) else list(folders)


class SearchFilters(msgspec.Struct, frozen=True):
    weight_min: float | None = None
    created_after: int | None = None
    folder: Folders | None = None


class DocumentRow(msgspec.Struct, frozen=True):
    """What a search shows of a document, and what it is filtered by."""

    path: str
    title: str
    body: str
    frontmatter: str
    weight: float | None
    created_at: int

    def matches(self, filters: SearchFilters) -> bool:
        """Whether its weight and age do; not its folder."""
        if filters.weight_min is not None and (self.weight is None or self.weight < filters.weight_min):
            return False
        return filters.created_after is None or self.created_at > filters.created_after


class EmbeddingModel(msgspec.Struct, frozen=True):
    """What made vectors, and how many numbers each has."""

    identity: str
    dimensions: int


class PendingDocument(msgspec.Struct, frozen=True):
    """A document whose vectors are to be made."""

    doc_id: int
    path: str
    title: str
    body: str
    weight: float | None
    created_at: int
    modified_at: int
    raw_hash: str


class VectorHit(msgspec.Struct, frozen=True):
    """A document, how like the query its nearest chunk is (-1 to 1), and which chunk that is."""

    doc_id: int
    similarity: float
    ordinal: int


def build_entry(note: Note, document: NoteDocument, created_at: int | None) -> IndexEntry:
    """`created_at` is the frontmatter's time, if it has one."""
    tags = document.tags
    weights = document.hebbian_weights
    return IndexEntry(
        note.path,
        note.path.rpartition("/")[0],
        content_hash(note.content),
        document.content_hash,
        note.stat.size,
        note.stat.modified_at,
        created_at or note.stat.modified_at,
        document.title.replace("\0", "\ufffd"),  # which PostgreSQL takes in no text
        jsontext.dump(tags),
        jsontext.dump(document.frontmatter),
        document.problem,
        max(weights.values(), default=None),
        document.content,
        tokenizer.join_terms(document.title),
        tokenizer.join_terms(" ".join(tags)),
        tokenizer.join_terms(document.content),
    )


SearchField = Literal["title", "tags", "content"]
MatchMode = Literal["all", "any"]
SEARCH_FIELDS: tuple[SearchField, ...] = ("title", "tags", "content")
FIELD_WEIGHTS: Mapping[SearchField, float] = {"title": 5.0, "tags": 3.0, "content": 1.0}
"""Of a word by where it stands: in the title it says more than in the text."""


class KeywordQuery(msgspec.Struct, frozen=True):
    """`phrases` are distinct, each of one term or of several that must stand one after the other."""

    phrases: tuple[tuple[str, ...], ...]
    fields: frozenset[SearchField]
    mode: MatchMode


class KeywordHit(msgspec.Struct, frozen=True):
    """`score` is BM25's, larger is better."""

    doc_id: int
    path: str
    title: str
    body: str
    score: float


class KeywordResult(msgspec.Struct, frozen=True):
    path: str
    title: str
    excerpt: str
    relevance_score: float


def build_query(wanted: Sequence[str], fields: Sequence[SearchField], mode: MatchMode) -> KeywordQuery | None:
    """A text of several words is a phrase. None when there is no word to look for."""
    phrases = tuple(dict.fromkeys(tuple(found) for text in wanted if (found := tokenizer.tokenize(text))))
    return KeywordQuery(phrases, frozenset(fields), mode) if phrases and fields else None


def build_results(hits: list[KeywordHit], wanted: frozenset[str]) -> list[KeywordResult]:
    """With excerpts, and scores as shares of the best one."""
    best = max((hit.score for hit in hits), default=0.0) or 1.0
    return [
        KeywordResult(hit.path, hit.title, make_excerpt(hit.body, wanted), round(hit.score / best, 6)) for hit in hits
    ]
