"""Links between notes, resolved as Obsidian does. No I/O.

A link names a file by its path, or by enough of the end of its path to be unique; case and `.md` are ignored. If
several files match, the exact path wins, then a file in the folder of the linking note, then the shortest path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

from stentor_vault.notes.paths import compose_path
from stentor_vault.text import markdown

_CODE = re.compile(r"(?<!`)`++[^`\n]+`++")
# All repetitions are bounded: a note of unclosed brackets would otherwise take quadratic time.
_WIKI_LINK = re.compile(r"\[\[([^\[\]|\n]{1,1000})(?:\|[^\[\]\n]{0,1000})?\]\]")
_MARKDOWN_LINK = re.compile(r"\]\((?:<([^<>\n]{1,1000})>|([^\s()<>]{1,1000}))(?:[ \t]+[\"'][^\n]{0,500}[\"'])?\)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#")


class NoteLinks(msgspec.Struct, frozen=True):
    """The linked files, the notes that link here, and the link texts that match no file; without duplicates."""

    links: list[str]
    backlinks: list[str]
    unresolved: list[str]


def extract_link_targets(text: str) -> list[str]:
    """Return the targets of the links in a note, without headings, aliases and duplicates.

    Links in code and links with a scheme such as `https:` are ignored.
    """
    if "](" not in text and "[[" not in text:
        return []
    prose = _strip_code(text) if "`" in text or "~~~" in text else text
    return list(dict.fromkeys(target for target in _iter_targets(prose) if target))


def link_key(path: str) -> str:
    """Return the part that every link to a file has: its name in lower case, without folder and `.md`."""
    return _normalize(path.rpartition("/")[2])


def _strip_code(text: str) -> str:
    prose = "".join(line for line, is_code in markdown.iter_lines(text, keepends=True) if not is_code)
    return _CODE.sub("", prose)


def _iter_targets(text: str) -> Iterator[str]:
    for match in _WIKI_LINK.finditer(text):
        # In a table the `|` before an alias is escaped, which leaves a backslash at the end of the target.
        yield match[1].partition("#")[0].strip().rstrip("\\").strip()
    for match in _MARKDOWN_LINK.finditer(text):
        address = match[1] or match[2]
        if not _SCHEME.match(address):
            yield unquote(address.partition("#")[0]).strip()


class LinkIndex:
    """The links between all files; an update costs time in proportion to the links of the one file.

    One thread updates it, others may read in the meantime: they iterate over copies of the sets.
    """

    def __init__(self) -> None:
        self._targets: dict[str, list[str]] = {}
        # Both by the lower-case file name without folder and `.md`: the part that every link to a file has.
        self._files: dict[str, set[str]] = {}
        self._sources: dict[str, set[str]] = {}

    def update(self, path: str, names: list[str]) -> None:
        self.remove(path)
        self._targets[path] = names
        self._files.setdefault(link_key(path), set()).add(path)
        for name in names:
            self._sources.setdefault(link_key(name), set()).add(path)

    def remove(self, path: str) -> None:
        names = self._targets.pop(path, None)
        if names is None:
            return
        _discard(self._files, link_key(path), path)
        for key in {link_key(name) for name in names}:
            _discard(self._sources, key, path)

    def clear(self) -> None:
        for table in (self._targets, self._files, self._sources):
            table.clear()

    def get_links(self, path: str) -> NoteLinks:
        """Return the links from and to a file, empty for an unknown file."""
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
        """Return the notes with a link that resolves to this file, sorted."""
        key = link_key(path)
        # A copy, because the thread that indexes may change the set in the meantime.
        sources = list(self._sources.get(key, ()))
        return sorted(source for source in sources if self._has_link_to(path, key, source))

    def _has_link_to(self, path: str, key: str, source: str) -> bool:
        names = (name for name in self._targets.get(source, ()) if link_key(name) == key)
        return any(self._leads_to(name, source, path) for name in names)

    def _leads_to(self, name: str, source: str, path: str) -> bool:
        # Compared first, because resolving compares all files of this name: a README links to hundreds.
        target = _resolve_dots(name, source.rpartition("/")[0])
        is_end = target is not None and _ends_with_path(_normalize(path), target)
        return is_end and self.resolve(name, source) == path

    def resolve(self, name: str, source: str) -> str | None:
        """Return the path of the file that a link in the note `source` names, or None."""
        folder = source.rpartition("/")[0]
        target = _resolve_dots(name, folder)
        if target is None:
            return None
        paths = list(self._files.get(link_key(name), ()))
        candidates = [path for path in paths if _ends_with_path(_normalize(path), target)]
        sibling = _normalize(f"{folder}/{target}".lstrip("/"))
        # A link that starts at the root or in the note's own folder is a complete path, not the end of one.
        must_be_exact = name.startswith(("/", "./", "../"))
        ranked = sorted(candidates, key=lambda path: _rank(path, target, sibling))
        return next((path for path in ranked if not must_be_exact or _normalize(path) == target), None)


def _discard(sets: dict[str, set[str]], key: str, path: str) -> None:
    """Remove the path from the set under this key, and the set if it is empty: renamed files would add up."""
    paths = sets[key]
    paths.discard(path)
    if not paths:
        del sets[key]


def _rank(path: str, target: str, sibling: str) -> tuple[bool, bool, int, int, str]:
    normalized = _normalize(path)
    return normalized != target, normalized != sibling, path.count("/"), len(path), path


def _resolve_dots(name: str, folder: str) -> str | None:
    """Return the normalized target without `./` and `../`; None if it is outside the vault."""
    parts = folder.split("/") if folder and name.startswith(("./", "../")) else []
    for part in name.lstrip("/").split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part != ".":
            parts.append(part)
    return _normalize("/".join(parts))


def _ends_with_path(path: str, target: str) -> bool:
    return path == target or path.endswith("/" + target)


def _normalize(path: str) -> str:
    # Composed (NFC) like the paths of files: programs on macOS write names decomposed.
    return compose_path(path).lower().removesuffix(".md")
