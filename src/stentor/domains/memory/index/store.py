"""SQL of the index: documents in, documents out. Words of a document are kept as terms."""

from __future__ import annotations

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.memory.documents import Document
from stentor.domains.memory.text import words
from stentor.domains.notes.model import Note, content_hash

_COLUMNS = (
    "path, folder, raw_hash, content_hash, size, modified_at, created_at, title, tags, frontmatter, problem, weight, "
    "body"
)
_FIND = Sql("select doc_id from documents where path = :path")
_INSERT = Sql(
    f"""insert into documents ({_COLUMNS}) values (:path, :folder, :raw_hash, :content_hash, :size,
        :modified_at, :created_at, :title, :tags, :frontmatter, :problem, :weight, :body) returning doc_id"""
)
_UPDATE = Sql(
    """update documents set raw_hash = :raw_hash, content_hash = :content_hash, size = :size,
        modified_at = :modified_at, created_at = :created_at, title = :title, tags = :tags,
        frontmatter = :frontmatter, problem = :problem, weight = :weight, body = :body, model = null
    where doc_id = :doc_id"""
)
_TOUCH = Sql("update documents set modified_at = :modified_at, size = :size where path = :path")
_FORGET = Sql("delete from documents where doc_id = :doc_id")
_FORGET_WORDS = Sql("delete from words where rowid = :doc_id")
_FORGET_CHUNKS = Sql("delete from chunks where doc_id = :doc_id")
_WORDS = Sql("insert into words (rowid, title, tags, content) values (:doc_id, :title, :tags, :content)")
_STATE = Sql("select path, raw_hash, size, modified_at from documents where path = :path")
_STATES = Sql("select path, raw_hash, size, modified_at from documents")
_BELOW = Sql("select path from documents where path >= :low and path < :high")
_STATS = Sql("select count(*), coalesce(sum(size), 0) from documents")
_RECORD = Sql("select path, raw_hash, content_hash, size, modified_at, model from documents where path = :path")
_OF_FOLDER = Sql("select doc_id from documents where folder = :folder")
_FOLDER_STATS = Sql(
    "select count(*), coalesce(sum(size), 0), count(model), max(modified_at) from documents where folder = :folder"
)
_FACT = Sql("select value from facts where name = :name")
_SET_FACT = Sql(
    "insert into facts (name, value) values (:name, :value) on conflict (name) do update set value = excluded.value"
)


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


def entry_of(note: Note, document: Document, created_at: int | None) -> Entry:
    """`created_at` is the frontmatter's time in microseconds, if it has one."""
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
        document.title,
        jsontext.dump(tags),
        jsontext.dump(document.frontmatter),
        document.problem,
        max(weights.values(), default=None),
        document.content,
        words.joined(document.title),
        words.joined(" ".join(tags)),
        words.joined(document.content),
    )


def put(tx: Tx, entry: Entry) -> int:
    """Insert or replace a document with its words; answers its id. Its vectors are to be made again."""
    values = msgspec.structs.asdict(entry)
    title, tags, content = (values.pop(name) for name in ("title_words", "tag_words", "body_words"))
    known = tx.row(_FIND, path=entry.path)
    if known is None:
        made = tx.row(_INSERT, **values)
        assert made is not None
        doc_id = int(made[0])
    else:
        doc_id = int(known[0])
        tx.run(_UPDATE, doc_id=doc_id, **values)
        tx.run(_FORGET_WORDS, doc_id=doc_id)
    tx.run(_WORDS, doc_id=doc_id, title=title, tags=tags, content=content)
    return doc_id


def forget(tx: Tx, path: str) -> int | None:
    """Remove a document; answers the id that it had."""
    known = tx.row(_FIND, path=path)
    if known is None:
        return None
    doc_id = int(known[0])
    for statement in (_FORGET, _FORGET_WORDS, _FORGET_CHUNKS):
        tx.run(statement, doc_id=doc_id)
    return doc_id


def touch(tx: Tx, path: str, modified_at: int, size: int) -> None:
    """The file has another time and the same bytes."""
    tx.run(_TOUCH, path=path, modified_at=modified_at, size=size)


def state_of(tx: Tx, path: str) -> State | None:
    row = tx.row(_STATE, path=path)
    return State(*row) if row else None


def states(tx: Tx) -> dict[str, State]:
    return {row[0]: State(*row) for row in tx.rows(_STATES)}


def paths_below(tx: Tx, folder: str) -> list[str]:
    """The indexed files in a folder and its folders."""
    rows = tx.rows(_BELOW, low=f"{folder}/", high=f"{folder}0")  # 0 is the sign after the slash
    return [row[0] for row in rows]


def stats(tx: Tx) -> tuple[int, int]:
    """Documents, and their bytes."""
    row = tx.row(_STATS)
    assert row is not None
    return int(row[0]), int(row[1])


class Record(msgspec.Struct, frozen=True):
    """What the index knows of one document. Without a `model` it has no vectors yet; the time in microseconds."""

    path: str
    raw_hash: str
    content_hash: str
    size: int
    modified_at: int
    model: str | None


class FolderStats(msgspec.Struct, frozen=True):
    """Of the documents in one folder: how many, their bytes, how many have vectors, when the last one changed."""

    documents: int
    size: int
    with_vectors: int
    modified_at: int | None


def record(tx: Tx, path: str) -> Record | None:
    row = tx.row(_RECORD, path=path)
    return Record(*row) if row else None


def of_folder(tx: Tx, folder: str) -> list[int]:
    """The ids of the documents in a folder, not of those in its folders."""
    return [row[0] for row in tx.rows(_OF_FOLDER, folder=folder)]


def folder_stats(tx: Tx, folder: str) -> FolderStats:
    row = tx.row(_FOLDER_STATS, folder=folder)
    assert row is not None
    return FolderStats(*row)


def fact(tx: Tx, name: str) -> int | None:
    row = tx.row(_FACT, name=name)
    return int(row[0]) if row else None


def set_fact(tx: Tx, name: str, value: int) -> None:
    tx.run(_SET_FACT, name=name, value=value)
