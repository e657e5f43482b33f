"""Which notes link to which. Pure but for the index's own state.

A link names a file by its path, or by as much of the end of its path as tells it apart; letters' case and `.md` do
not count. Of several files the one beside the linking note wins, then the one with the shortest path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE = re.compile(r"(?<!`)`++[^`\n]+`++")
_WIKI = re.compile(r"\[\[([^\[\]|\n]{1,1000})(?:\|[^\[\]\n]{0,1000})?\]\]")
_MARKDOWN = re.compile(r"\]\((?:<([^<>\n]{1,1000})>|([^\s()<>]{1,1000}))(?:[ \t]+[\"'][^\n]{0,500}[\"'])?\)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#")


class NoteLinks(msgspec.Struct, frozen=True):
    """Paths, and the texts of links that lead to no file; each once."""

    links: list[str]
    backlinks: list[str]
    unresolved: list[str]


def extract_link_targets(text: str) -> list[str]:
    """What the links of a note name, without headings and aliases, each once; links in code and to the web are none."""
    if "](" not in text and "[[" not in text:
        return []
    plain = _without_code(text) if "`" in text or "~~~" in text else text
    found = [*_named(plain)]
    return list(dict.fromkeys(name for name in found if name))


def _without_code(text: str) -> str:
    """Line by line: an expression over the whole text takes its time on fences that are never closed."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            closes = found is not None and found[1].startswith(fence) and not line.strip().strip(fence[0])
            fence = "" if closes else fence
        elif found is not None:
            fence = found[1]
        else:
            kept.append(line)
    return _CODE.sub("", "".join(kept))


def _named(text: str) -> Iterator[str]:
    for match in _WIKI.finditer(text):
        yield match[1].partition("#")[0].strip().rstrip("\\").strip()
    for match in _MARKDOWN.finditer(text):
        address = match[1] or match[2]
        if not _SCHEME.match(address):
            yield unquote(address.partition("#")[0]).strip()


class LinkIndex:
    """Kept file by file: `update` costs what the one file's links cost."""

    def __init__(self) -> None:
        self._targets: dict[str, list[str]] = {}
        self._files: dict[str, set[str]] = {}
        self._sources: dict[str, set[str]] = {}

    def update(self, path: str, names: list[str]) -> None:
        self.remove(path)
        self._targets[path] = names
        self._files.setdefault(_key(path), set()).add(path)
        for name in names:
            self._sources.setdefault(_key(name), set()).add(path)

    def remove(self, path: str) -> None:
        names = self._targets.pop(path, None)
        if names is None:
            return
        self._files[_key(path)].discard(path)
        for name in names:
            self._sources[_key(name)].discard(path)

    def clear(self) -> None:
        for kept in (self._targets, self._files, self._sources):
            kept.clear()

    def get_links(self, path: str) -> NoteLinks:
        resolved: dict[str, None] = {}
        unresolved = []
        for name in self._targets.get(path, ()):
            target = self.resolve(name, path)
            if target is None:
                unresolved.append(name)
            else:
                resolved[target] = None
        return NoteLinks(list(resolved), self.find_backlinks(path), unresolved)

    def find_backlinks(self, path: str) -> list[str]:
        """Of each note whose links could mean this file, those that do."""
        key = _key(path)
        return sorted(
            source
            for source in self._sources.get(key, ())
            if any(_key(name) == key and self.resolve(name, source) == path for name in self._targets[source])
        )

    def resolve(self, name: str, source: str) -> str | None:
        """The file that a link in the source means."""
        here = source.rpartition("/")[0]
        wanted = _beneath(name, here)
        if wanted is None:
            return None
        found = [path for path in self._files.get(_key(name), ()) if _ends(_plain(path), wanted)]
        beside = _plain(f"{here}/{wanted}".lstrip("/"))
        exact = name.startswith(("/", "./", "../"))
        ranked = sorted(found, key=lambda path: _rank(path, wanted, beside))
        return next((path for path in ranked if not exact or _plain(path) == wanted), None)


def _rank(path: str, wanted: str, beside: str) -> tuple[bool, bool, int, int, str]:
    plain = _plain(path)
    return plain != wanted, plain != beside, path.count("/"), len(path), path


def _beneath(name: str, folder: str) -> str | None:
    """The path that a link names, with `./` and `../` gone; None when it climbs out of the vault."""
    parts = folder.split("/") if folder and name.startswith(("./", "../")) else []
    for part in name.lstrip("/").split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part != ".":
            parts.append(part)
    return _plain("/".join(parts))


def _ends(path: str, wanted: str) -> bool:
    return path == wanted or path.endswith("/" + wanted)


def _plain(path: str) -> str:
    return path.lower().removesuffix(".md")


def _key(path: str) -> str:
    return _plain(path.rpartition("/")[2])
