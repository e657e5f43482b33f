"""All texts of a vault in memory, for searches that look at every note, and the links between them.

The simple search: notes with every word of a query, scored by where and how often. Pure.

What the routes answer of a note: its JSON form and its tags. Pure.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from stentor.domains.memory.documents import NoteDocument, parse_document
from stentor.domains.notes.folder_vault import FolderVault, watch_changes
from stentor.domains.notes.model import NoSuchNote, Note, Stat, VaultUnavailable
from stentor.domains.notes.paths import InvalidPath, is_hidden
from stentor.surfaces.vault.jsonlogic import RuleData
from stentor.surfaces.vault.links import LinkIndex, NoteLinks, extract_link_targets

RULE_FIELDS = ("path", "content", "frontmatter", "tags", "stat", "links", "backlinks", "unresolvedLinks")
MAX_INDEXED_CHARS = 1_000_000
"""Of one note; what lies behind is not searched."""
RETRY_SECONDS = 1.0
log = logging.getLogger(__name__)


class IndexedText(msgspec.Struct, frozen=True):
    """A note; `folded` is its content in lower case, sign for sign."""

    stat: Stat
    content: str
    lowercase: str
    name: str
    frontmatter: dict[str, Any]
    tags: list[str]


class IndexedFile(msgspec.Struct, frozen=True):
    """`text` of a note, and what its links name."""

    text: IndexedText | None
    targets: list[str]


class VaultTextIndex:
    """Kept up to date by the server's own writes and by the system's events for those of others.

    Paths that `skips` says yes to are not searched; the vault's `walk` is to leave them out.
    """

    def __init__(self, vault: FolderVault, is_excluded: Callable[[str], bool] = lambda path: False) -> None:
        self._vault = vault
        self._skips = is_excluded
        self._wanted = asyncio.Event()
        self._loaded = asyncio.Event()
        self._texts: dict[str, IndexedText] = {}
        self.links = LinkIndex()
        self._turns = count(1)
        self._taken_up: dict[str, int] = {}
        self._loading = asyncio.Lock()
        self._touched: set[str] = set()

    async def run(self) -> None:
        """For ever, from the first time that somebody wants it: all that is there, and what other programs change."""
        await self._wanted.wait()
        await asyncio.gather(self.watch(), self._load_at_start())

    def request_load(self) -> None:
        """Begin to read; a vault that nobody searches is neither read nor kept in memory."""
        self._wanted.set()

    async def wait_until_loaded(self) -> None:
        """Wait until all that was there at the start is known."""
        self.request_load()
        await self._loaded.wait()

    async def load(self) -> None:
        """Read the whole vault; what is written meanwhile is read again, so that old never takes the place of new."""
        async with self._loading:
            self._touched.clear()
            read = await self._files([stat.path for stat in await self._vault.walk()])
            while self._touched:
                again, self._touched = self._touched, set()
                read |= await self._files(again)
            self._texts = {}
            self.links.clear()
            for path, found in read.items():
                self._keep(path, found)
        self._loaded.set()

    async def _load_at_start(self) -> None:
        while not self._loaded.is_set():
            try:
                await self.load()
            except (OSError, VaultUnavailable) as error:
                log.error("the vault cannot be read yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def refresh(self, path: str) -> None:
        """Read one file again."""
        if self._skips(path) or not self._wanted.is_set():
            return
        turn = next(self._turns)
        if self._loading.locked():
            self._touched.add(path)
        found = await asyncio.to_thread(self._read, path)
        if turn > self._taken_up.get(path, 0):  # else somebody who read it later was faster
            self._taken_up[path] = turn
            self._keep(path, found)

    async def watch(self) -> None:
        """For ever: take up what other programs change."""
        root = self._vault.root.absolute()
        while True:
            try:
                async for found in watch_changes(root):
                    await self._take_up(root, set(map(Path, found)))
            except (OSError, RuntimeError, VaultUnavailable):
                await asyncio.sleep(RETRY_SECONDS)

    def search(self, query: str, around: int) -> list[SimpleSearchHit]:
        """Notes with every word of the query in text or name, best first; may run in a thread."""
        words = split_words(query)
        found = []
        for text in list(self._texts.values()):
            hit = match_note(text.stat.path, text.name, text.content, text.lowercase, words, around)
            if hit is not None:
                found.append(hit)
        return sorted(found, key=lambda hit: (-hit.score, hit.filename))

    def list_rule_data(self) -> list[RuleData]:
        """Of each note, by path."""
        return [_NoteRuleData(text, self.links) for _, text in sorted(self._texts.items())]

    def count_tags(self) -> list[dict[str, Any]]:
        """Each tag and those above it, with the number of notes that have it."""
        counts: Counter[str] = Counter()
        for text in self._texts.values():
            parts = [tag.split("/") for tag in text.tags]
            counts.update({"/".join(tag[:end]) for tag in parts for end in range(1, len(tag) + 1)})
        return [{"name": name, "count": count} for name, count in sorted(counts.items())]

    def _keep(self, path: str, found: IndexedFile | None) -> None:
        """Files that are no notes can be linked to all the same."""
        if found is None:
            self.links.remove(path)
        else:
            self.links.update(path, found.targets)
        if found is None or found.text is None:
            self._texts.pop(path, None)
        else:
            self._texts[path] = found.text

    async def _take_up(self, root: Path, files: set[Path]) -> None:
        for file in files:
            parts = file.relative_to(root).parts
            path = "/".join(parts)
            if parts and not any(is_hidden(part) for part in parts) and not self._skips(path):
                await (self.load() if file.is_dir() or not file.suffix else self.refresh(path))

    async def _files(self, paths: Iterable[str]) -> dict[str, IndexedFile | None]:
        return await asyncio.to_thread(lambda: {path: self._read(path) for path in paths})

    def _read(self, path: str) -> IndexedFile | None:
        """None for what is no file."""
        try:
            return _index_note(self._vault.read_sync(path))
        except (NoSuchNote, InvalidPath, FileNotFoundError):
            return None


class _NoteRuleData(RuleData):
    """Links are looked for when a rule asks for them."""

    def __init__(self, text: IndexedText, links: LinkIndex) -> None:
        self._text = text
        self._links = links

    def get_field(self, name: str) -> Any:
        if name in ("content", "frontmatter", "tags"):
            return getattr(self._text, name)
        if name == "path":
            return self._text.stat.path
        return stat_to_json(self._text.stat) if name == "stat" else self._linked().get(name)

    def to_dict(self) -> dict[str, Any]:
        return {name: self.get_field(name) for name in RULE_FIELDS}

    def _linked(self) -> dict[str, list[str]]:
        return links_to_json(self._links.get_links(self._text.stat.path))


def _index_note(note: Note) -> IndexedFile:
    """Only notes are searched."""
    document = to_document(note) if note.path.lower().endswith(".md") else None
    if document is None:
        return IndexedFile(None, [])
    content = note.content.decode()[:MAX_INDEXED_CHARS]
    folded = content.lower()
    if len(folded) != len(content):
        folded = content  # a few signs grow in lower case, and places must stay places
    name = note.path.rpartition("/")[2].removesuffix(".md")
    text = IndexedText(note.stat, content, folded, name, document.frontmatter, collect_tags(document))
    return IndexedFile(text, extract_link_targets(content))


MAX_MATCHES_PER_WORD = 20
"""Of one word in one note."""
NAME_MATCH_SCORE = 10
"""What a word in the name counts; one in the text counts 1."""


class MatchPosition(msgspec.Struct, frozen=True, gc=False):
    """Places in the note's text, or in its name."""

    start: int
    end: int
    source: str


class SimpleSearchMatch(msgspec.Struct, frozen=True, gc=False):
    match: MatchPosition
    context: str


class SimpleSearchHit(msgspec.Struct, frozen=True):
    """A row of the answer."""

    filename: str
    score: int
    matches: list[SimpleSearchMatch]


def split_words(query: str) -> list[str]:
    return list(dict.fromkeys(query.lower().split()))


def match_note(
    path: str, name: str, content: str, folded: str, words: list[str], around: int
) -> SimpleSearchHit | None:
    """None when a word is neither in the name nor in the text; `folded` is the text in lower case."""
    lower = name.lower()
    for word in words:
        if word not in folded and word not in lower:
            return None
    matches = [_name_match(name, lower.index(word), word) for word in words if word in lower]
    score = (NAME_MATCH_SCORE - 1) * len(matches)
    inside: list[SimpleSearchMatch] = []
    for word in words:
        _find_matches(content, folded, word, around, inside)
    if len(words) > 1:
        inside.sort(key=lambda found: found.match.start)
    return SimpleSearchHit(path, score + len(matches) + len(inside), matches + inside)


def _name_match(name: str, at: int, word: str) -> SimpleSearchMatch:
    return SimpleSearchMatch(MatchPosition(at, at + len(word), "filename"), name)


def _find_matches(content: str, folded: str, word: str, around: int, found: list[SimpleSearchMatch]) -> None:
    """The first places of a word in the text, with what stands around them."""
    at = folded.find(word)
    for _ in range(MAX_MATCHES_PER_WORD):
        if at < 0:
            break
        end = at + len(word)
        found.append(SimpleSearchMatch(MatchPosition(at, end, "content"), content[max(0, at - around) : end + around]))
        at = folded.find(word, end)


_CODE = re.compile(r"(?ms)^(```|~~~).*?^\1[^\n]*$|`[^`\n]*`")
_TAG = re.compile(r"(?<![\w/#&])#([^\W\d_][\w/-]*|\d+[^\W\d_][\w/-]*)")


def to_document(note: Note) -> NoteDocument | None:
    """The note as text; None for other files."""
    return parse_document(note.path, note.content)


def collect_tags(document: NoteDocument) -> list[str]:
    """Of the frontmatter and of the text, each once; what stands in code is none."""
    inline = _TAG.findall(_CODE.sub("", document.content)) if "#" in document.content else []
    return list(dict.fromkeys([*document.tags, *inline]))


def stat_to_json(stat: Stat) -> dict[str, int]:
    """In milliseconds, as the plugin."""
    return {"ctime": stat.created_at // 1000, "mtime": stat.modified_at // 1000, "size": stat.size}


def links_to_json(found: NoteLinks) -> dict[str, list[str]]:
    return {"links": found.links, "backlinks": found.backlinks, "unresolvedLinks": found.unresolved}


def note_to_json(note: Note, document: NoteDocument, links: NoteLinks) -> dict[str, Any]:
    return {
        "path": note.path,
        "content": note.content.decode(),
        "frontmatter": document.frontmatter,
        "tags": collect_tags(document),
        "stat": stat_to_json(note.stat),
        **links_to_json(links),
        "version": note.hash,
    }
