"""The data types of the search index: entries, rows, filters, and keyword queries with their results.

Pure: the SQL is in `store` and in the keyword and vector stores. Times are in microseconds, sizes in bytes. A keyword
query holds terms only, so that the caller's text never becomes query syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from stentor.core import jsontext
from stentor.core.clock import micros_from_datetime
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.text.excerpts import make_excerpt
from stentor.domains.memory.validity import frontmatter_keys
from stentor.domains.memory.validity.frontmatter_keys import NoteValidity, read_document
from stentor.domains.memory.validity.model import Exclusion
from stentor_vault.notes.model import Note, content_hash
from stentor_vault.server.search.links import extract_link_targets, link_key
from stentor_vault.text import documents
from stentor_vault.text.documents import NoteDocument, with_parents


class IndexEntry(msgspec.Struct, frozen=True):
    """A document to be indexed. Built before the transaction, so that parsing does not prolong it.

    `tag_keys` are the tags and those that they are below, without case. `name` is the file name as links are looked up
    by it, `links` are the texts of its links to files. `head` is what the file has before the body: its frontmatter
    with both of its lines. `body` is without the passages that are invalid; `full_body` is the whole one if there are
    such passages. `invalid_anchors` are all anchors that lead into them, each with the first claim that has it.
    """

    path: str
    folder: str
    name: str
    raw_hash: str
    content_hash: str
    size: int
    modified_at: int
    created_at: int
    title: str
    tags: str
    tag_keys: str
    frontmatter: str
    problem: str | None
    weight: float | None
    head: str
    body: str
    title_words: str
    tag_words: str
    body_words: str
    links: tuple[str, ...]
    full_body: str | None
    validity: NoteValidity
    invalid_anchors: Mapping[str, str]

    @property
    def has_keys(self) -> bool:
        """Whether there is anything to store about its validity."""
        return self.validity != frontmatter_keys.EMPTY


class IndexedFileState(msgspec.Struct, frozen=True):
    """The state of a file when it was indexed, to be compared with the file."""

    path: str
    raw_hash: str
    size: int
    modified_at: int


class IndexTotals(msgspec.Struct, frozen=True):
    """Figures of the whole index; `synced_at` is the time of the last write to it."""

    documents: int
    size: int
    without_vectors: int
    synced_at: int | None


class IndexedDocument(msgspec.Struct, frozen=True):
    """An indexed document without its text. `model` is None until the document is embedded."""

    path: str
    title: str
    raw_hash: str
    content_hash: str
    size: int
    modified_at: int
    model: str | None


class ListedDocument(msgspec.Struct, frozen=True):
    """An indexed document in a list."""

    path: str
    title: str
    tags: list[str]
    size: int
    modified_at: int


class LinkedDocument(msgspec.Struct, frozen=True):
    """A document of a neighbourhood; `distance` is the number of links to the one in the middle, whose own is 0.

    `title` is empty for the one in the middle if there is no such document.
    """

    path: str
    title: str
    distance: int
    tags: list[str]


class Neighbourhood(msgspec.Struct, frozen=True):
    """The documents around one, nearest first, and the links among them as pairs of paths.

    `omitted` is the number of documents that were found beyond the limit.
    """

    documents: list[LinkedDocument]
    links: list[tuple[str, str]]
    omitted: int


class FolderStats(msgspec.Struct, frozen=True):
    """Figures of the documents in some folders; `modified_at` is the latest change."""

    documents: int
    size: int
    with_vectors: int
    modified_at: int | None


Folders = str | tuple[str, ...]
"""One folder or several, without their subfolders."""


def folder_list(folders: Folders) -> list[str]:
    return [folders] if isinstance(folders, str) else list(folders)


ListExcluded = Callable[[Tx], tuple[int, ...]]
"""Lists the ids of the documents that a search must not return."""


class SearchFilters(msgspec.Struct, frozen=True):
    """Conditions on the documents of a search; None filters nothing.

    `similarity_min` (-1 to 1) applies to vectors only. `excluded` are ids of documents that no search may return.
    """

    weight_min: float | None = None
    created_after: int | None = None
    folder: Folders | None = None
    similarity_min: float | None = None
    excluded: tuple[int, ...] = ()


class DocumentRow(msgspec.Struct, frozen=True):
    """The columns of a document that searches return or filter by."""

    path: str
    title: str
    body: str
    frontmatter: str
    weight: float | None
    created_at: int

    def matches(self, filters: SearchFilters) -> bool:
        """Return whether the weight and the creation time pass; nothing else is checked."""
        if filters.weight_min is not None and (self.weight is None or self.weight < filters.weight_min):
            return False
        return filters.created_after is None or self.created_at > filters.created_after


class EmbeddingModel(msgspec.Struct, frozen=True):
    """An embedding model, and the number of dimensions of its vectors."""

    identity: str
    dimensions: int


class PendingDocument(msgspec.Struct, frozen=True):
    """A document that is not embedded yet."""

    doc_id: int
    path: str
    title: str
    body: str
    weight: float | None
    created_at: int
    modified_at: int
    raw_hash: str


class VectorHit(msgspec.Struct, frozen=True):
    """A document with the similarity (-1 to 1) and the ordinal of its nearest chunk."""

    doc_id: int
    similarity: float
    ordinal: int


def parse_entry(note: Note) -> IndexEntry | None:
    """Return the index entry of a note; None for a file that is not text."""
    document = documents.parse_document(note.path, note.content)
    return None if document is None else _build_entry(note, document, _parse_created_at(document.frontmatter))


def _parse_created_at(frontmatter: JsonObject) -> int | None:
    """Return the frontmatter's `created_at`, as UTC if it has no zone; None if it is not an ISO time."""
    value = frontmatter.get("created_at")
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return micros_from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _build_entry(note: Note, document: NoteDocument, created_at: int | None) -> IndexEntry:
    """Return the index entry of a parsed note; `created_at` is the frontmatter's time, if it has one."""
    weights = document.hebbian_weights
    validity, cut = read_document(document)
    shown = document if cut is None else msgspec.structs.replace(document, content=cut.text)
    tags = shown.tags
    return IndexEntry(
        note.path,
        note.path.rpartition("/")[0],
        link_key(note.path),
        content_hash(note.content),
        document.content_hash,
        note.stat.size,
        note.stat.modified_at,
        created_at or note.stat.modified_at,
        shown.title.replace("\0", "\ufffd"),  # PostgreSQL rejects NUL in text
        jsontext.dump(tags),
        jsontext.dump(with_parents(tag.casefold() for tag in tags)),
        jsontext.dump(document.frontmatter),
        document.problem or validity.problem,
        max(weights.values(), default=None),
        _read_head(note, document),
        shown.content,
        _join_title_terms(note.path, shown),
        tokenizer.join_terms(" ".join(tags)),
        tokenizer.join_terms(shown.content),
        tuple(name for name in extract_link_targets(document.content) if "\0" not in name),
        None if shown is document else document.content,
        validity,
        # Sorted backwards, so that the first of several claims stays.
        {anchor: claim for claim in sorted(cut.anchors, reverse=True) for anchor in cut.anchors[claim]} if cut else {},
    )


def _join_title_terms(path: str, document: NoteDocument) -> str:
    """Return the terms of the title, the aliases, and the file's name if it differs from the title."""
    title = tokenizer.join_terms(document.title)
    name = tokenizer.join_terms(path.rpartition("/")[2].removesuffix(".md"))
    aliases = tokenizer.join_terms(" ".join(document.aliases))
    return " ".join(filter(None, [title, aliases, name if name != title else ""]))


def _read_head(note: Note, document: NoteDocument) -> str:
    """Return the text before the body. It has no NUL, because a file with one is not text."""
    body_size = len(document.content.encode())
    return note.content[: len(note.content) - body_size].decode(errors="replace")


SearchField = Literal["title", "tags", "content"]
MatchMode = Literal["all", "any"]
SEARCH_FIELDS: tuple[SearchField, ...] = ("title", "tags", "content")
FIELD_WEIGHTS: Mapping[SearchField, float] = {"title": 5.0, "tags": 3.0, "content": 1.0}
"""BM25 weight of a term by field: a hit in the title counts more than one in the text."""
MIN_LENGTH = 40
"""A shorter document counts as one of this many terms in BM25: three words are not better than thirty."""

MAX_LENGTH_RATIO = 6.0
"""A document counts in BM25 as at most this many times the mean length. Otherwise a note of hundreds of pages would
come after any short one that has a single word of the query."""

MAX_PART_TERMS = 32
"""A longer phrase is looked for in parts: the time for one grows with its terms times the documents that have them."""

MAX_QUESTION_TERMS = 64
"""A question of more terms has no phrases: a log pasted into the search takes seconds with them."""


class KeywordQuery(msgspec.Struct, frozen=True):
    """A parsed query. `phrases` are distinct, each of one term or of several adjacent ones in this order."""

    phrases: tuple[tuple[str, ...], ...]
    fields: frozenset[SearchField]
    mode: MatchMode


class KeywordHit(msgspec.Struct, frozen=True):
    """A document found by keywords; `score` is its BM25 score, larger is better."""

    doc_id: int
    path: str
    title: str
    body: str
    score: float


class KeywordResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published match; `relevance_score` is relative to the best one, from 0 to 1."""

    path: str
    title: str
    excerpt: str
    relevance_score: float
    invalid: Exclusion | None = None


def build_query(texts: Sequence[str], fields: Sequence[SearchField], mode: MatchMode) -> KeywordQuery | None:
    """Build a query; a text of several words is a phrase. Return None if no text has a word."""
    phrases = tuple(dict.fromkeys(tuple(terms) for text in texts if (terms := tokenizer.tokenize_query(text))))
    return KeywordQuery(phrases, frozenset(fields), mode) if phrases and fields else None


def phrase_parts(phrase: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the different parts of a phrase, one for most. Each begins with the last term of the one before."""
    step = MAX_PART_TERMS - 1
    starts = range(0, max(1, len(phrase) - 1), step)
    return list(dict.fromkeys(phrase[start : start + MAX_PART_TERMS] for start in starts))


def build_question(texts: Sequence[str]) -> KeywordQuery | None:
    """Build the query of a question: any of the texts suffices. Of a very long one only the words count."""
    query = build_query(texts, SEARCH_FIELDS, "any")
    # Not the words of scripts without spaces: these are pairs, whose number `split_words` limits.
    if query is None or sum(len(phrase) for phrase in query.phrases if phrase[0].isascii()) <= MAX_QUESTION_TERMS:
        return query
    terms = dict.fromkeys(term for phrase in query.phrases for term in phrase)
    return KeywordQuery(tuple((term,) for term in tokenizer.drop_stop_words(list(terms))), query.fields, query.mode)


def build_results(hits: list[KeywordHit], terms: frozenset[str], marks: Mapping[int, Exclusion]) -> list[KeywordResult]:
    """Return the hits with excerpts around these terms, scores relative to the best one, and their marks by id."""
    best = max((hit.score for hit in hits), default=0.0) or 1.0
    return [
        KeywordResult(
            hit.path, hit.title, make_excerpt(hit.body, terms), round(hit.score / best, 6), marks.get(hit.doc_id)
        )
        for hit in hits
    ]
