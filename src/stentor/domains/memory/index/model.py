"""What goes into the index and what comes out. Times in microseconds, sizes in bytes."""

from __future__ import annotations

import msgspec

from stentor.core import jsontext
from stentor.domains.memory.documents import Document
from stentor.domains.memory.text import words
from stentor.domains.notes.model import Note, content_hash


class Entry(msgspec.Struct, frozen=True):
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


class State(msgspec.Struct, frozen=True):
    """What the index knows of a file, to compare with the file."""

    path: str
    raw_hash: str
    size: int
    modified_at: int


class Totals(msgspec.Struct, frozen=True):
    """Documents, their bytes, how many have no vectors, and when the index was last written to."""

    documents: int
    size: int
    waiting: int
    synced_at: int | None


class Record(msgspec.Struct, frozen=True):
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


def listed(folders: Folders) -> list[str]:
    return [folders] if isinstance(folders, str) else list(folders)


class Filters(msgspec.Struct, frozen=True):
    weight_min: float | None = None
    created_after: int | None = None
    folder: Folders | None = None


class Row(msgspec.Struct, frozen=True):
    """What a search shows of a document, and what it is filtered by."""

    path: str
    title: str
    body: str
    frontmatter: str
    weight: float | None
    created_at: int

    def passes(self, filters: Filters) -> bool:
        """Whether its weight and age do; not its folder."""
        if filters.weight_min is not None and (self.weight is None or self.weight < filters.weight_min):
            return False
        return filters.created_after is None or self.created_at > filters.created_after


class Model(msgspec.Struct, frozen=True):
    """What made vectors, and how many numbers each has."""

    identity: str
    dimensions: int


class Waiting(msgspec.Struct, frozen=True):
    """A document whose vectors are to be made."""

    doc_id: int
    path: str
    title: str
    body: str
    weight: float | None
    created_at: int
    modified_at: int
    raw_hash: str


class Near(msgspec.Struct, frozen=True):
    """A document, how like the query its nearest chunk is (-1 to 1), and which chunk that is."""

    doc_id: int
    similarity: float
    ordinal: int


def entry_of(note: Note, document: Document, created_at: int | None) -> Entry:
    """`created_at` is the frontmatter's time, if it has one."""
    tags = document.tags
    weights = document.weights
    return Entry(
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
        words.joined(document.title),
        words.joined(" ".join(tags)),
        words.joined(document.content),
    )
