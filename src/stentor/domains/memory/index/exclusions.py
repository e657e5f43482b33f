"""Which documents are excluded from searches: what is marked invalid, what was derived from it, and what does not hold.

`excluded` is derived from the other tables and recomputed with every change that may concern it: first what is
marked, then what was derived from that, and so on. Marks are in files; only sources are marked by `replace_sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from stentor.auth.authority.context import VAULT_NAMESPACE
from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.links import files_of_names
from stentor.domains.memory.index.model import IndexEntry
from stentor.domains.memory.validity.frontmatter_keys import Mark, Source, find_record
from stentor.domains.memory.validity.model import Cause, ChainLink, Exclusion, TargetKind
from stentor_vault.server.search.links import LinkIndex, link_key

_DELETE = [
    Sql("delete from periods where doc_id = :doc_id"),
    Sql("delete from marks where doc_id = :doc_id"),
    Sql("delete from derivations where doc_id = :doc_id"),
]
_INSERT_PERIOD = Sql("insert into periods (doc_id, valid_from, valid_to) values (:doc_id, :valid_from, :valid_to)")
_INSERT_MARK = Sql("insert into marks (doc_id, anchor, claim, mark) values (:doc_id, :anchor, :claim, :mark)")
_INSERT_DERIVATION = Sql(
    """insert into derivations (doc_id, ordinal, name, text, target, anchor)
    values (:doc_id, :ordinal, :name, :text, :target, :anchor)"""
)
_LIST_OUTSIDE_PERIOD = Sql("select doc_id from periods where valid_from > :at or valid_to <= :at order by doc_id")
# Until the index was compared with the whole vault, the source of a derived note may be invalid and not indexed yet.
_LIST_LEFT_OUT = Sql(
    """select doc_id from periods where valid_from > :at or valid_to <= :at
    union select doc_id from excluded
    union select doc_id from (select 1 where not exists (select 1 from facts where name = 'compared_at')) building
        cross join derivations where target <> ''
    order by doc_id"""
)
_IS_RESTRICTED = Sql(
    """select 1 where exists (select 1 from excluded) or exists (select 1 from periods)
    or not exists (select 1 from facts where name = 'compared_at')
        and exists (select 1 from derivations where target <> '')"""
)
_LIST_MARKS = Sql("select m.doc_id, d.path, m.anchor, m.claim, m.mark from marks m join documents d using (doc_id)")
_LIST_SOURCES = Sql("select name, mark from invalid_sources order by name")
_FIND_AFFECTED = Sql(
    """select 1 where exists (select 1 from excluded where doc_id = :doc_id)
    or exists (select 1 from marks where doc_id = :doc_id)"""
)
_SELECT_SOURCE = "select 1 from {texts} join invalid_sources s on s.name = n.value limit 1"
_SELECT_AFFECTED = """select d.path, m.anchor, e.doc_id from {texts} join documents d on d.path = n.value
    left join marks m on m.doc_id = d.doc_id left join excluded e on e.doc_id = d.doc_id
    where m.doc_id is not null or e.doc_id is not null"""
_TEXTS = {"sqlite": "json_each(:texts) n", "postgresql": "json_array_elements_text(:texts::json) n (value)"}
_FIND_SOURCES = {dialect: Sql(_SELECT_SOURCE.format(texts=texts)) for dialect, texts in _TEXTS.items()}
_LIST_AFFECTED = {dialect: Sql(_SELECT_AFFECTED.format(texts=texts)) for dialect, texts in _TEXTS.items()}
_DELETE_SOURCES = Sql("delete from invalid_sources")
_INSERT_SOURCE = Sql("insert into invalid_sources (name, mark) values (:name, :mark)")
_SELECT_DERIVED = """select d.doc_id, d.path, s.ordinal, s.name, s.text, s.target, s.anchor
    from derivations s join {names} on s.name = n.value join documents d on d.doc_id = s.doc_id"""
_LIST_DERIVED = {
    "sqlite": Sql(_SELECT_DERIVED.format(names="json_each(:names) n")),
    "postgresql": Sql(_SELECT_DERIVED.format(names="json_array_elements_text(:names::json) n (value)")),
}
_LIST_EXCLUDED = Sql("select doc_id, parent_id, text, cause from excluded")
# One statement for all rows: a source may have tens of thousands of notes that were derived from it.
_DELETE_EXCLUDED = {
    "sqlite": Sql("delete from excluded where doc_id in (select value from json_each(:ids))"),
    "postgresql": Sql(
        "delete from excluded where doc_id in (select value::integer from json_array_elements_text(:ids::json))"
    ),
}
_INSERT_EXCLUDED = {
    "sqlite": Sql(
        """insert into excluded (doc_id, parent_id, text, cause)
        select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(:rows)"""
    ),
    "postgresql": Sql(
        """insert into excluded (doc_id, parent_id, text, cause)
        select (value ->> 0)::integer, (value ->> 1)::integer, value ->> 2, value ->> 3
        from json_array_elements(:rows::json)"""
    ),
}
_SELECT_EXCLUSIONS = "select e.doc_id, d.path, e.parent_id, e.text, e.cause from excluded e join documents d"
_FIND_EXCLUDED = Sql(f"{_SELECT_EXCLUSIONS} using (doc_id) where e.doc_id = :doc_id")
_LIST_EXCLUSIONS = Sql(f"{_SELECT_EXCLUSIONS} using (doc_id)")
_Row = tuple[int, str, int | None, str, str]
"""The id, the path, the id of the parent, the entry that names it, and the cause."""
_FIND_ID = Sql("select doc_id from documents where path = :path")
MAX_CHAIN = 50
"""Steps of a chain that are shown."""
NOTE_NAMES = "/"
"""Prefix of the names of notes in `derivations`. A source of this name has rows without a target."""


class _Excluded(msgspec.Struct, frozen=True):
    """A row of the table; `parent_id` is the document that this one was derived from, `text` the entry that says so."""

    doc_id: int
    parent_id: int | None
    text: str
    cause: str


def insert(tx: Tx, doc_id: int, entry: IndexEntry, record_prefix: str) -> None:
    """Store what a document without stored keys says. `record_prefix` begins the ids of the vault's records."""
    validity = entry.validity
    if validity.valid_from is not None or validity.valid_to is not None:
        tx.run(_INSERT_PERIOD, doc_id=doc_id, valid_from=validity.valid_from, valid_to=validity.valid_to)
    marks = [] if validity.mark is None else [("", "", validity.mark)]
    claims = {claim.anchor: claim.mark for claim in reversed(validity.claims)}
    marks += [(anchor, claim, claims[claim]) for anchor, claim in entry.invalid_anchors.items()]
    tx.many(
        _INSERT_MARK,
        [{"doc_id": doc_id, "anchor": anchor, "claim": claim, "mark": _dump(mark)} for anchor, claim, mark in marks],
    )
    tx.many(_INSERT_DERIVATION, list(_derivation_rows(doc_id, entry, record_prefix)))


def _derivation_rows(doc_id: int, entry: IndexEntry, record_prefix: str) -> Iterator[dict[str, object]]:
    for ordinal, named in enumerate(entry.validity.sources):
        source = find_record(named, record_prefix)
        row = {"doc_id": doc_id, "ordinal": ordinal, "text": source.text}
        yield {**row, "name": source.name, "target": "", "anchor": ""}
        if source.target:
            name = NOTE_NAMES + link_key(source.target)
            yield {**row, "name": name, "target": source.target, "anchor": source.anchor}


def delete(tx: Tx, doc_id: int) -> None:
    for statement in _DELETE:
        tx.run(statement, doc_id=doc_id)


def is_affected(tx: Tx, doc_id: int) -> bool:
    """Return whether a document is excluded, or has a passage that is."""
    return tx.row(_FIND_AFFECTED, doc_id=doc_id) is not None


def is_restricted(tx: Tx) -> bool:
    """Return whether any document is excluded, valid for a limited time, or waiting for its source."""
    return tx.row(_IS_RESTRICTED) is not None


def has_derived(tx: Tx, dialect: str, paths: Iterable[str]) -> bool:
    """Return whether anything may be derived from these files, so that it matters if there are such files."""
    names = sorted({NOTE_NAMES + link_key(path) for path in paths})
    return bool(names) and bool(tx.rows(_LIST_DERIVED[dialect], names=jsontext.dump(names)))


def list_excluded_ids(tx: Tx, at: int, *, include_invalid: bool) -> tuple[int, ...]:
    """Return the documents that do not hold at a time (microseconds), and those that are invalid unless included.

    As long as the index lacks notes, each one that was derived from a note counts as invalid.
    """
    # One statement, because each search asks: on PostgreSQL it is a round trip.
    return tuple(row[0] for row in tx.rows(_LIST_OUTSIDE_PERIOD if include_invalid else _LIST_LEFT_OUT, at=at))


def replace_sources(tx: Tx, marks: Mapping[str, Mark]) -> bool:
    """Set the sources that are invalid; return whether that changed anything."""
    rows = {name: _dump(mark) for name, mark in marks.items()}
    if dict(tx.rows(_LIST_SOURCES)) == rows:
        return False
    tx.run(_DELETE_SOURCES)
    tx.many(_INSERT_SOURCE, [{"name": name, "mark": mark} for name, mark in rows.items()])
    return True


def recompute(tx: Tx, dialect: str) -> None:
    """Compute what is excluded from the stored marks, sources and derivations."""
    stored = {row[0]: _Excluded(*row) for row in tx.rows(_LIST_EXCLUDED)}
    wanted = _Derivation(tx, dialect).compute()
    if removed := [doc_id for doc_id, row in stored.items() if wanted.get(doc_id) != row]:
        tx.run(_DELETE_EXCLUDED[dialect], ids=jsontext.dump(removed))
    if added := [msgspec.structs.astuple(row) for doc_id, row in wanted.items() if stored.get(doc_id) != row]:
        tx.run(_INSERT_EXCLUDED[dialect], rows=jsontext.dump(added))


def list_derived(tx: Tx, dialect: str, path: str, anchors: Sequence[str]) -> list[str]:
    """Return the notes that would be excluded if this one were marked, or these passages of it; also indirectly."""
    return _Derivation(tx, dialect).derived_from(path, anchors)


def has_invalid_source(tx: Tx, dialect: str, entries: Iterable[tuple[str, Source]], record_prefix: str) -> bool:
    """Return whether any of these entries of `derived_from`, each with the path of its note, names what is invalid."""
    sources = [(path, find_record(source, record_prefix)) for path, source in entries]
    if not sources:
        return False
    if tx.rows(_FIND_SOURCES[dialect], texts=jsontext.dump(sorted({source.name for _, source in sources}))):
        return True
    files = files_of_names(tx, dialect, {link_key(source.target) for _, source in sources if source.target}, {})
    named = {(_resolve(files, source.target, path), source.anchor) for path, source in sources if source.target}
    paths = sorted({path for path, _ in named if path is not None})
    rows = tx.rows(_LIST_AFFECTED[dialect], texts=jsontext.dump(paths)) if paths else []
    return any(excluded is not None or (path, anchor) in named for path, anchor, excluded in rows)


def explain(tx: Tx, doc_ids: Iterable[int]) -> dict[int, Exclusion]:
    """Return why these documents are excluded; others are left out."""
    rows: dict[int, _Row | None] = {}

    def find(doc_id: int) -> _Row | None:
        if doc_id not in rows:
            rows[doc_id] = tx.row(_FIND_EXCLUDED, doc_id=doc_id)
        return rows[doc_id]

    return {doc_id: exclusion for doc_id in doc_ids if (exclusion := _explain(find, doc_id)) is not None}


def list_exclusions(tx: Tx) -> list[Exclusion]:
    """Return why each excluded document is, by path."""
    rows: dict[int, _Row] = {row[0]: row for row in tx.rows(_LIST_EXCLUSIONS)}
    found = (_explain(rows.get, doc_id) for doc_id in rows)
    return sorted((one for one in found if one is not None), key=lambda one: one.path)


def list_claims(tx: Tx) -> list[Cause]:
    """Return the passages that are marked, by path."""
    marks = {f"{path}{claim}": mark for _, path, anchor, claim, mark in tx.rows(_LIST_MARKS) if anchor}
    return [msgspec.json.decode(_cause(marks[target], "claim", target), type=Cause) for target in sorted(marks)]


def _explain(find: Callable[[int], _Row | None], doc_id: int) -> Exclusion | None:
    row = find(doc_id)
    if row is None:
        return None
    path, cause = row[1], msgspec.json.decode(row[4], type=Cause)
    chain: list[ChainLink] = []
    # A document with its own mark has no text, and so no chain.
    while row is not None and row[3] and len(chain) < MAX_CHAIN:
        chain.append(ChainLink(row[1], row[3]))
        row = None if row[2] is None else find(row[2])
    return Exclusion(path, cause, tuple(chain))


def find_exclusion(tx: Tx, path: str) -> Exclusion | None:
    """Return why a note is excluded; None if it is not."""
    row = tx.row(_FIND_ID, path=path)
    return None if row is None else explain(tx, [row[0]]).get(row[0])


class _Derivation:
    """Follows derivations from what is marked, one step after the other. A document is excluded by its first cause."""

    def __init__(self, tx: Tx, dialect: str) -> None:
        self._tx = tx
        self._dialect = dialect
        self._extra_path: str | None = None
        self._found: dict[int, _Excluded] = {}
        self._paths: dict[str, list[str]] = {}
        """The paths of the files of a name; kept, because each step may ask for the same ones."""

    def compute(self) -> dict[int, _Excluded]:
        frontier: dict[str, int] = {}
        claims: dict[tuple[str, str], str] = {}
        # Sorted, so that both databases and any order of changes lead to the same causes.
        marks = sorted(self._tx.rows(_LIST_MARKS), key=lambda row: (row[1], row[2], row[3]))
        for doc_id, path, anchor, claim, mark in marks:
            if anchor:
                claims.setdefault((path, anchor), _cause(mark, "claim", f"{path}{claim}"))
            else:
                self._found[doc_id] = _Excluded(doc_id, None, "", _cause(mark, "note", path))
                frontier[path] = doc_id
        sources = {name: _cause(mark, "source", name) for name, mark in self._tx.rows(_LIST_SOURCES)}
        frontier |= self._step({}, claims, sources)
        while frontier:
            frontier = self._step(frontier, {}, {})
        return self._found

    def derived_from(self, path: str, anchors: Sequence[str]) -> list[str]:
        # Even if it is not indexed yet: a new note may be what the others name.
        self._extra_path = path
        paths: dict[str, int] = {}
        frontier = {path: 0} if not anchors else {}
        frontier |= self._step(frontier, {(path, anchor): "" for anchor in anchors}, {})
        while frontier:
            paths |= frontier
            frontier = self._step(frontier, {}, {})
        return sorted(paths.keys() - {path})

    def _step(
        self, frontier: Mapping[str, int], claims: Mapping[tuple[str, str], str], sources: Mapping[str, str]
    ) -> dict[str, int]:
        """Exclude what was derived from these notes, passages and sources; return those that were not yet, by path."""
        invalid = {*frontier, *(path for path, _ in claims)}
        names = {NOTE_NAMES + link_key(path) for path in invalid} | sources.keys()
        if not names:
            return {}
        rows = sorted(self._tx.rows(_LIST_DERIVED[self._dialect], names=jsontext.dump(sorted(names))), key=_order)
        targets = {link_key(row[5]) for row in rows if row[5]}
        following: dict[str, int] = {}
        files = files_of_names(self._tx, self._dialect, targets, self._paths)
        if self._extra_path is not None:
            files.update(self._extra_path, [])
        for doc_id, path, _, name, text, target, anchor in rows:
            if doc_id in self._found:
                continue
            parent, cause = None, None if target else sources.get(name)
            resolved = _resolve(files, target, path) if target else None
            if resolved is not None and resolved != path:
                parent, cause = frontier.get(resolved), claims.get((resolved, anchor))
            if parent is not None:
                cause = self._found[parent].cause if parent in self._found else ""
            if cause is not None:
                self._found[doc_id] = _Excluded(doc_id, parent, text, cause)
                following[path] = doc_id
        return following


def _resolve(files: LinkIndex, target: str, path: str) -> str | None:
    """Return the file that an entry means: the path or the name of a note, or the id of a record of the vault."""
    return files.resolve(target, path) or files.resolve(target.removeprefix(f"{VAULT_NAMESPACE}/"), path)


def _order(row: tuple[int, str, int, str, str, str, str]) -> tuple[str, int, str]:
    return row[1], row[2], row[3]


def _dump(mark: Mark) -> str:
    return msgspec.json.encode(mark).decode()


def _cause(mark: str, kind: TargetKind, target: str) -> str:
    cause = Cause(**msgspec.json.decode(mark), kind=kind, target=target)
    return msgspec.json.encode(cause).decode()
