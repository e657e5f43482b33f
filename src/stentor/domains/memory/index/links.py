"""The links between documents: stored by the file name that they end in, and resolved as Obsidian does when asked.

A link names a file by the end of its path, so the file that it leads to depends on which files there are. Only the
link's text is stored; a lookup by file name then returns the few links and files that have to be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import IndexEntry, LinkedDocument, Neighbourhood
from stentor_vault.server.search.links import LinkIndex, link_key

MAX_LINKS = 10_000
"""Links that are read of a document, and to a file name."""
MAX_EXPANDED, MAX_LINKS_EXPANDED = 40, 200
"""Documents beside the middle of a neighbourhood whose links are read, and how many of each."""

# One statement for all links of a transaction: on PostgreSQL each statement is a round trip.
_INSERT = {
    "sqlite": Sql(
        """insert into links (doc_id, name, target) select value ->> 0, value ->> 1, value ->> 2
        from json_each(:links)"""
    ),
    "postgresql": Sql(
        """insert into links (doc_id, name, target) select (value ->> 0)::integer, value ->> 1, value ->> 2
        from json_array_elements(:links::json)"""
    ),
}
_DELETE = Sql("delete from links where doc_id = :doc_id")
_LINKS_OF = Sql(
    """select l.target from documents d join links l on l.doc_id = d.doc_id where d.path = :path
    order by l.target limit :limit"""
)
_LINKS_TO = Sql(
    """select d.path, l.target from links l join documents d on d.doc_id = l.doc_id where l.name = :name
    order by d.path limit :limit"""
)
# Joined, because PostgreSQL's hash indexes cannot look up `= any(...)`.
_SELECT_PATHS = "select d.name, d.path from documents d join {names} on d.name = n.value"
_PATHS_OF_NAMES = {
    "sqlite": Sql(_SELECT_PATHS.format(names="json_each(:names) n")),
    "postgresql": Sql(_SELECT_PATHS.format(names="json_array_elements_text(:names::json) n (value)")),
}
_TITLE_AND_TAGS = Sql("select title, tags from documents where path = :path")


def insert_links(tx: Tx, dialect: str, entries: Mapping[int, IndexEntry]) -> None:
    """Store the links of documents, given by id, that have none stored."""
    rows = [(doc_id, link_key(name), name) for doc_id, entry in entries.items() for name in entry.links]
    if rows:
        tx.run(_INSERT[dialect], links=jsontext.dump(rows))


def delete_links(tx: Tx, doc_id: int) -> None:
    tx.run(_DELETE, doc_id=doc_id)


def files_of_names(tx: Tx, dialect: str, names: Iterable[str], known: dict[str, list[str]]) -> LinkIndex:
    """Return an index of the files of these names, without any links. `known` keeps what was read."""
    wanted = set(names)
    if missing := wanted - known.keys():
        known |= {name: [] for name in missing}
        for name, path in tx.rows(_PATHS_OF_NAMES[dialect], names=jsontext.dump(sorted(missing))):
            known[name].append(path)
    files = LinkIndex()
    for path in {path for name in wanted for path in known[name]}:
        files.update(path, [])
    return files


class LinkReader:
    """Reads links in one transaction; remembers which files have which name."""

    def __init__(self, tx: Tx, dialect: str) -> None:
        self._tx = tx
        self._dialect = dialect
        self._paths: dict[str, list[str]] = {}

    def find_backlinks(self, path: str, limit: int = MAX_LINKS) -> list[str]:
        """Return the documents that link to a file, also to one that does not exist, sorted."""
        name = link_key(path)
        targets: dict[str, list[str]] = {}
        for source, target in self._tx.rows(_LINKS_TO, name=name, limit=limit):
            targets.setdefault(source, []).append(target)
        links = self._files_of([name], path)
        for source, names in targets.items():
            links.update(source, names)
        return [source for source in links.find_backlinks(path) if source != path]

    def find_links(self, path: str, limit: int) -> list[str]:
        """Return the documents that a document links to."""
        targets = [str(row[0]) for row in self._tx.rows(_LINKS_OF, path=path, limit=limit)]
        links = self._files_of((link_key(target) for target in targets), path)
        links.update(path, targets)
        return [other for other in links.get_links(path).links if other != path]

    def find_neighbourhood(self, path: str, limit: int) -> Neighbourhood:
        """Return the documents at most two links away from one, in either direction; see `Neighbourhood`."""
        links = dict.fromkeys(self._links_at(path, MAX_LINKS))
        beside = list(dict.fromkeys(end for end in _ends(links) if end != path))
        near = {path, *beside}
        counts: Counter[str] = Counter()
        places: dict[str, int] = {}
        for other in beside[:MAX_EXPANDED]:
            around = self._links_at(other, MAX_LINKS_EXPANDED)
            links |= dict.fromkeys(around)
            for place, end in enumerate(dict.fromkeys(end for end in _ends(around) if end not in near)):
                counts[end] += 1
                places[end] = min(place, places.get(end, place))
        # Documents with several links to them come first, then one of each in turn, so that a document with many links
        # does not fill the list.
        beyond = sorted(counts, key=lambda end: (-counts[end], places[end]))
        found = {path: 0} | dict.fromkeys(beside, 1) | dict.fromkeys(beyond, 2)
        shown = list(found)[:limit]
        documents = [self._linked_document(other, found[other]) for other in shown]
        return Neighbourhood(documents, [pair for pair in links if set(pair).issubset(shown)], len(found) - len(shown))

    def _links_at(self, path: str, limit: int) -> list[tuple[str, str]]:
        """Return the links from and to a document, as pairs of the linking and the linked one."""
        links = [(path, other) for other in self.find_links(path, limit)]
        return links + [(other, path) for other in self.find_backlinks(path, limit)]

    def _files_of(self, names: Iterable[str], path: str) -> LinkIndex:
        """Return an index of the files of these names, and of the file at `path`, without any links."""
        files = files_of_names(self._tx, self._dialect, names, self._paths)
        files.update(path, [])
        return files

    def _linked_document(self, path: str, distance: int) -> LinkedDocument:
        row = self._tx.row(_TITLE_AND_TAGS, path=path)
        title, tags = (str(row[0]), jsontext.load(row[1])) if row else ("", [])
        return LinkedDocument(path, title, distance, [str(tag) for tag in tags])


def _ends(links: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (end for pair in links for end in pair)
