"""The SQL of the `documents` and `facts` tables, for SQLite and PostgreSQL alike.

Terms, links and vectors have their own stores (`sqlite/`, `links`, `postgres/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import (
    DocumentRow,
    FolderStats,
    IndexedDocument,
    IndexedFileState,
    IndexEntry,
    IndexTotals,
    ListedDocument,
)
from stentor_vault.text.documents import clean_tags, with_parents

_COLUMNS = (
    "path, folder, name, raw_hash, content_hash, size, modified_at, created_at, title, tags, tag_keys, frontmatter, "
    "problem, weight, head, body, full_body, has_keys"
)
_OTHER_TABLES = ("title_words", "tag_words", "body_words", "links", "validity", "invalid_anchors")
_FIND_INDEXED = Sql("select doc_id, raw_hash, has_keys, full_body is not null from documents where path = :path")
_INSERT = Sql(
    f"""insert into documents ({_COLUMNS}) values (:path, :folder, :name, :raw_hash, :content_hash, :size,
        :modified_at, :created_at, :title, :tags, :tag_keys, :frontmatter, :problem, :weight, :head, :body,
        :full_body, :has_keys) returning doc_id"""
)
_UPDATE = Sql(
    """update documents set raw_hash = :raw_hash, content_hash = :content_hash, size = :size,
        modified_at = :modified_at, created_at = :created_at, title = :title, tags = :tags,
        tag_keys = :tag_keys, frontmatter = :frontmatter, problem = :problem, weight = :weight, head = :head,
        body = :body, full_body = :full_body, has_keys = :has_keys, model = null
    where doc_id = :doc_id"""
)
_TOUCH = Sql("update documents set modified_at = :modified_at, size = :size where path = :path")
_DELETE = Sql("delete from documents where doc_id = :doc_id")
_DELETE_CHUNKS = Sql("delete from chunks where doc_id = :doc_id")
_FILE_STATE = Sql("select path, raw_hash, size, modified_at from documents where path = :path")
_FILE_STATES = Sql("select path, raw_hash, size, modified_at from documents")
_PATHS_UNDER = Sql("select path from documents where path >= :low and path < :high")
_HAS_DOCUMENTS = Sql("select 1 from documents limit 1")
_TOTALS = Sql("select count(*), cast(coalesce(sum(size), 0) as bigint) from documents")
_COUNT_PENDING = Sql("select count(*) from documents where model is null")
_FIND_DOCUMENT = Sql(
    "select path, title, raw_hash, content_hash, size, modified_at, model from documents where path = :path"
)
_FOLDER_STATS = Sql(
    """select count(*), cast(coalesce(sum(size), 0) as bigint), count(model), max(modified_at)
    from documents where folder = :folder"""
)
_LIST_FOLDERS = Sql("select distinct folder from documents order by folder")
_SELECT_ROWS = "select doc_id, path, title, body, frontmatter, weight, created_at from documents where doc_id in "
_READ_ROWS = {
    "sqlite": Sql(_SELECT_ROWS + "(select value from json_each(:ids))"),
    "postgresql": Sql(_SELECT_ROWS + "(select value::integer from json_array_elements_text(:ids::json))"),
}
_SELECT_HEADINGS = "select doc_id, heading from chunks where doc_id in "
_READ_HEADINGS = {
    "sqlite": Sql(_SELECT_HEADINGS + "(select value from json_each(:ids)) order by doc_id, ordinal"),
    "postgresql": Sql(
        _SELECT_HEADINGS + "(select value::integer from json_array_elements_text(:ids::json)) order by doc_id, ordinal"
    ),
}
_READ_BODY = Sql("select body from documents where path = :path")
_READ_TEXT = Sql("select head, coalesce(full_body, body) from documents where path = :path")
_LIST_RECENT = """select path, title, tags, size, modified_at from documents
    where (:tag = '' or replace(tag_keys, :tag, '') <> tag_keys)
    and modified_at <= :before and (modified_at < :before or path > :after) {}
    order by modified_at desc, path limit :limit"""
_LIST_RECENT_OF_ALL = Sql(_LIST_RECENT.format(""))
_LIST_RECENT_OF_FOLDER = Sql(_LIST_RECENT.format("and folder = :folder"))
# Few lists of tags differ, so few are parsed.
_COUNT_TAG_LISTS = Sql(
    """select tags, count(*)
    from (select doc_id, tags from documents where tags <> '[]' order by doc_id limit 20000) as tagged
    group by tags order by min(doc_id)"""
)
_COUNT_BY_FOLDER = Sql("select folder, count(*) from documents group by folder order by folder")
_READ_FACT = Sql("select value from facts where name = :name")
_WRITE_FACT = Sql.insert("facts", ("name", "value"), key=("name",))


class StoredDocument(msgspec.Struct, frozen=True):
    """A document as it is replaced or deleted; `is_cut`: invalid passages are left out of its text."""

    doc_id: int
    raw_hash: str
    has_keys: bool
    is_cut: bool


def find_stored(tx: Tx, path: str) -> StoredDocument | None:
    row = tx.row(_FIND_INDEXED, path=path)
    return StoredDocument(int(row[0]), str(row[1]), bool(row[2]), bool(row[3])) if row else None


def insert(tx: Tx, entry: IndexEntry) -> int:
    row = tx.row(_INSERT, **_values(entry))
    assert row is not None  # `returning` always yields the inserted row
    return int(row[0])


def update(tx: Tx, doc_id: int, entry: IndexEntry) -> None:
    """Replace a document; it becomes pending for embedding."""
    tx.run(_UPDATE, doc_id=doc_id, **_values(entry))


def _values(entry: IndexEntry) -> dict[str, object]:
    values = {name: value for name, value in msgspec.structs.asdict(entry).items() if name not in _OTHER_TABLES}
    return values | {"has_keys": int(entry.has_keys)}


def delete(tx: Tx, doc_id: int) -> None:
    tx.run(_DELETE, doc_id=doc_id)


def delete_chunks(tx: Tx, doc_id: int) -> None:
    """Delete the chunks of a document. Leaves their vectors: equal texts reuse them until these are deleted."""
    tx.run(_DELETE_CHUNKS, doc_id=doc_id)


def touch(tx: Tx, path: str, modified_at: int, size: int) -> None:
    """Update the size and time of a file whose bytes did not change."""
    tx.run(_TOUCH, path=path, modified_at=modified_at, size=size)


def file_states(tx: Tx) -> dict[str, IndexedFileState]:
    return {row[0]: IndexedFileState(*row) for row in tx.rows(_FILE_STATES)}


def file_states_of(tx: Tx, paths: Iterable[str]) -> dict[str, IndexedFileState]:
    """Return the states of those of these files that are indexed."""
    return {path: IndexedFileState(*row) for path in paths if (row := tx.row(_FILE_STATE, path=path)) is not None}


def paths_under(tx: Tx, folder: str) -> list[str]:
    """Return the indexed files in a folder and its subfolders."""
    # A range, because LIKE would need the folder's name escaped. "0" is the character after "/".
    rows = tx.rows(_PATHS_UNDER, low=f"{folder}/", high=f"{folder}0")
    return [row[0] for row in rows]


def has_documents(tx: Tx) -> bool:
    return tx.row(_HAS_DOCUMENTS) is not None


def totals(tx: Tx) -> IndexTotals:
    documents, size = tx.rows(_TOTALS)[0]
    return IndexTotals(int(documents), int(size), int(tx.rows(_COUNT_PENDING)[0][0]), read_fact(tx, "synced_at"))


def find_document(tx: Tx, path: str) -> IndexedDocument | None:
    row = tx.row(_FIND_DOCUMENT, path=path)
    return IndexedDocument(*row) if row else None


def list_folders(tx: Tx) -> list[str]:
    return [row[0] for row in tx.rows(_LIST_FOLDERS)]


def list_recent(tx: Tx, folder: str | None, tag: str, before: tuple[int, str], limit: int) -> list[ListedDocument]:
    """List documents, the latest changed first, after the position `before` (time in microseconds, path).

    A tag is compared without `#` and case, and has the documents of the tags below it.
    """
    time, path = before
    key = next(iter(clean_tags([tag])), tag).casefold()
    quoted = jsontext.dump(key) if key else ""
    chosen = {"tag": quoted, "before": time, "after": path, "limit": limit}
    if folder is None:
        rows = tx.rows(_LIST_RECENT_OF_ALL, **chosen)
    else:
        rows = tx.rows(_LIST_RECENT_OF_FOLDER, folder=folder, **chosen)
    return [ListedDocument(path, title, jsontext.load(tags), size, at) for path, title, tags, size, at in rows]


def count_tags(tx: Tx) -> dict[str, int]:
    """Count the documents with each tag or one below it, the most used tag first; case does not matter."""
    counts: Counter[str] = Counter()
    spellings: dict[str, str] = {}
    for text, documents in tx.rows(_COUNT_TAG_LISTS):
        tags = {tag.casefold(): tag for tag in with_parents(map(str, jsontext.load(text)))}
        counts.update(dict.fromkeys(tags, int(documents)))
        for key, tag in tags.items():
            spellings.setdefault(key, tag)
    return {spellings[key]: count for key, count in counts.most_common()}


def count_by_folder(tx: Tx) -> dict[str, int]:
    """Count the documents directly in each folder."""
    return {str(folder): int(count) for folder, count in tx.rows(_COUNT_BY_FOLDER)}


def folder_stats(tx: Tx, folders: Iterable[str]) -> FolderStats:
    """Return the figures of all these folders together."""
    stats = [FolderStats(*row) for folder in folders for row in tx.rows(_FOLDER_STATS, folder=folder)]
    return FolderStats(
        sum(entry.documents for entry in stats),
        sum(entry.size for entry in stats),
        sum(entry.with_vectors for entry in stats),
        max((entry.modified_at for entry in stats if entry.modified_at is not None), default=None),
    )


def read_rows(tx: Tx, dialect: str, doc_ids: Sequence[int]) -> dict[int, DocumentRow]:
    """Return documents by id; missing ones are left out. The dialect selects how a JSON array becomes rows."""
    rows = tx.rows(_READ_ROWS[dialect], ids=jsontext.dump(list(doc_ids)))
    return {doc_id: DocumentRow(*row) for doc_id, *row in rows}


def read_headings(tx: Tx, dialect: str, doc_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the headings of the documents' chunks, in their order. There must be vectors of some document."""
    headings: dict[int, list[str]] = {}
    for doc_id, heading in tx.rows(_READ_HEADINGS[dialect], ids=jsontext.dump(list(doc_ids))):
        headings.setdefault(doc_id, []).append(heading)
    return headings


def read_bodies(tx: Tx, paths: Iterable[str]) -> dict[str, str]:
    """Return texts by path; missing documents are left out."""
    return {path: str(row[0]) for path in paths if (row := tx.row(_READ_BODY, path=path)) is not None}


def read_texts(tx: Tx, paths: Iterable[str]) -> dict[str, str]:
    """Return whole files by path, with their frontmatter; missing documents are left out."""
    return {path: f"{row[0]}{row[1]}" for path in paths if (row := tx.row(_READ_TEXT, path=path)) is not None}


def read_fact(tx: Tx, name: str) -> int | None:
    row = tx.row(_READ_FACT, name=name)
    return int(row[0]) if row else None


def write_fact(tx: Tx, name: str, value: int) -> None:
    tx.run(_WRITE_FACT, name=name, value=value)
