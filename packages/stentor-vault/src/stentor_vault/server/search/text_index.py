"""The text index of a vault: all notes and their links in memory, for full-text search and JsonLogic rules.

It is loaded on the first request that needs it and follows file events. The JSON form of notes is here too; the
vector index of Stentor's memory is in its domain `memory`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from stentor_vault.jsontext import JsonObject
from stentor_vault.notes.files.file_events import watch_changes
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import MAX_NOTE_BYTES, NoSuchNote, Note, Stat, UnreadablePath, VaultUnavailable
from stentor_vault.notes.paths import InvalidPath, compose_path, is_hidden
from stentor_vault.server.search.jsonlogic import RuleData
from stentor_vault.server.search.links import LinkIndex, NoteLinks, extract_link_targets
from stentor_vault.text.documents import NoteDocument, parse_document, with_parents

RULE_FIELDS = ("path", "content", "frontmatter", "tags", "stat", "links", "backlinks", "unresolvedLinks")
MAX_INDEXED_CHARS = 1_000_000
"""Limit for one note; the rest of a longer note is not searched."""
RETRY_SECONDS = 1.0
MAX_RELOAD_PAUSE_SECONDS = 60.0
"""The longest pause between attempts to load an index again that can be searched in the meantime."""
MAX_MATCHES_PER_WORD = 20
"""Limit for one word in one note."""
NAME_MATCH_SCORE = 10
"""Score of a word in the note's name; each occurrence in the text scores 1."""
log = logging.getLogger(__name__)


class IndexedText(msgspec.Struct, frozen=True):
    """A note; `lowercase` has the same length as `content`, so that offsets are valid in both."""

    stat: Stat
    content: str
    lowercase: str
    name: str
    frontmatter: JsonObject
    tags: list[str]


class IndexedFile(msgspec.Struct, frozen=True):
    """A file: its text, None if it is not a note, and the targets of its links."""

    text: IndexedText | None
    targets: list[str]


class VaultTextIndex:
    """The texts and links of a vault, updated by the server's own writes and by file events for all others.

    Files for which `is_excluded` is true are not indexed; the vault's `walk` must leave them out as well.
    """

    def __init__(self, vault: FolderVault, is_excluded: Callable[[str], bool] = lambda path: False) -> None:
        self._vault = vault
        self._is_excluded = is_excluded
        self._load_requested = asyncio.Event()
        self._loaded = asyncio.Event()
        self._texts: dict[str, IndexedText] = {}
        self.links = LinkIndex()
        self._read_numbers = count(1)
        # Both only for files with reads in progress, so that deleted files do not stay in memory.
        self._reads_in_progress: Counter[str] = Counter()
        self._latest_reads: dict[str, int] = {}
        self._load_lock = asyncio.Lock()
        self._changed_during_load: set[str] = set()

    async def run(self) -> None:
        """Wait for the first request, then load the vault and follow its changes, forever."""
        await self._load_requested.wait()
        # Watch while loading: a change in between must not be missed.
        await asyncio.gather(self.watch(), self._load_with_retry())

    def request_load(self) -> None:
        """Start to load the vault; until then it is not read and takes no memory."""
        self._load_requested.set()

    async def wait_until_loaded(self) -> None:
        """Request the load and wait until it is complete."""
        self.request_load()
        await self._loaded.wait()

    async def load(self) -> None:
        """Read the whole vault and replace the index."""
        async with self._load_lock:
            self._changed_during_load.clear()
            files = await self._read_files({stat.path: stat for stat in await self._vault.walk()})
            # A file written during the load is read again, so that the index never goes back to older content.
            while self._changed_during_load:
                changed, self._changed_during_load = self._changed_during_load, set()
                files |= await self._read_files(dict.fromkeys(changed))
            # No await from here to the end, so that no request sees a partial index.
            self._texts = {}
            self.links.clear()
            for path, file in files.items():
                self._store(path, file)
        self._loaded.set()

    async def _load_with_retry(self, longest_pause: float = RETRY_SECONDS) -> None:
        pause = RETRY_SECONDS
        while True:
            try:
                await self.load()
                return
            except (OSError, VaultUnavailable) as error:
                log.error("vault index: load failed, retrying error=%s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest_pause)

    async def refresh(self, path: str) -> None:
        """Read a file again and update its entries; does nothing before the load was requested."""
        # As `walk` names it: requests and file events may have the name decomposed.
        path = compose_path(path)
        if self._is_excluded(path) or not self._load_requested.is_set():
            return
        read_number = next(self._read_numbers)
        if self._load_lock.locked():
            self._changed_during_load.add(path)
        self._reads_in_progress[path] += 1
        try:
            file = await asyncio.to_thread(self._read_file, path)
            # Reads run in threads and may finish in any order; the one that began last has the newest content.
            if read_number > self._latest_reads.get(path, 0):
                self._latest_reads[path] = read_number
                self._store(path, file)
        finally:
            self._reads_in_progress[path] -= 1
            if not self._reads_in_progress[path]:
                del self._reads_in_progress[path]
                self._latest_reads.pop(path, None)

    async def watch(self) -> None:
        """Follow the changes by other programs, forever."""
        root = self._vault.root.absolute()
        reload: asyncio.Task[None] | None = None
        while True:
            try:
                with suppress(OSError, RuntimeError, VaultUnavailable):
                    async for changes in watch_changes(root):
                        if changes:
                            await self._update_changed(root, set(map(Path, changes)))
            finally:
                if reload is not None:
                    reload.cancel()
            await asyncio.sleep(RETRY_SECONDS)
            # Changes since the failure have no event. The load begins when the loop waits, which is after the watch has
            # begun.
            reload = asyncio.create_task(self._load_with_retry(MAX_RELOAD_PAUSE_SECONDS))

    def search(self, query: str, context_chars: int, max_matches: int | None = None) -> list[SimpleSearchHit]:
        """Return the notes with every word of the query in the text or name, best first. Thread-safe.

        Each has its first `max_matches` matches in the text; None means all. Its score counts all of them.
        """
        words = split_words(query)
        hits = []
        for text in list(self._texts.values()):  # a copy, because the event loop changes it in the meantime
            hit = match_note(text.stat.path, text.name, text.content, text.lowercase, words, context_chars, max_matches)
            if hit is not None:
                hits.append(hit)
        return sorted(hits, key=lambda hit: (-hit.score, hit.filename))

    def list_rule_data(self) -> list[RuleData]:
        """Return the rule data of all notes, sorted by path."""
        return [_NoteRuleData(text, self.links) for _, text in sorted(self._texts.items())]

    def count_tags(self) -> list[JsonObject]:
        """Return all tags with their number of notes; a note with `a/b` counts for `a` as well."""
        counts: Counter[str] = Counter()
        for text in self._texts.values():
            counts.update(with_parents(text.tags))
        return [{"name": name, "count": count} for name, count in sorted(counts.items())]

    def _store(self, path: str, file: IndexedFile | None) -> None:
        # Files that are not notes are in the link index too: notes link to images and attachments.
        if file is None:
            self.links.remove(path)
        else:
            self.links.update(path, file.targets)
        if file is None or file.text is None:
            self._texts.pop(path, None)
        else:
            self._texts[path] = file.text

    async def _update_changed(self, root: Path, files: set[Path]) -> None:
        changed: dict[str, Path] = {}
        for file in files:
            parts = file.relative_to(root).parts
            path = "/".join(parts)
            if parts and not any(is_hidden(part) for part in parts) and not self._is_excluded(path):
                changed[path] = file
        # A folder that was moved away has one event, and looks like a deleted file; most folders have no suffix.
        gone = [path for path, file in changed.items() if file.suffix.lower() != ".md" and not file.exists()]
        if any(file.is_dir() or not file.suffix for file in changed.values()) or self._has_folder(gone):
            return await self.load()
        for path in changed:
            await self.refresh(path)
        return None

    def _has_folder(self, paths: Iterable[str]) -> bool:
        """Return whether any of these is the path of a folder with notes."""
        wanted = {compose_path(path) for path in paths}
        return bool(wanted) and not wanted.isdisjoint(with_parents(path.rpartition("/")[0] for path in self._texts))

    async def _read_files(self, files: Mapping[str, Stat | None]) -> dict[str, IndexedFile | None]:
        return await asyncio.to_thread(lambda: {path: self._read_file(path, stat) for path, stat in files.items()})

    def _read_file(self, path: str, stat: Stat | None = None) -> IndexedFile | None:
        """Return the index entries of a file, None if it does not exist or may not be read."""
        try:
            stat = stat or self._vault.stat_sync(path)
            # Videos and the like may be larger than the memory, and only their names are indexed.
            if not path.lower().endswith(".md") or stat.size > MAX_NOTE_BYTES:
                return IndexedFile(None, [])
            return _index_note(self._vault.read_sync(path))
        except (NoSuchNote, InvalidPath):
            return None
        except UnreadablePath as error:
            log.warning("vault index: file left out reason=%s", error)
            return None


class _NoteRuleData(RuleData):
    """The fields of a note; links are resolved only when the rule reads them."""

    def __init__(self, text: IndexedText, links: LinkIndex) -> None:
        self._text = text
        self._links = links

    def get_field(self, name: str) -> Any:
        if name in ("content", "frontmatter", "tags"):
            return getattr(self._text, name)
        if name == "path":
            return self._text.stat.path
        return stat_to_json(self._text.stat) if name == "stat" else self._get_links().get(name)

    def to_dict(self) -> JsonObject:
        return {name: self.get_field(name) for name in RULE_FIELDS}

    def _get_links(self) -> dict[str, list[str]]:
        return links_to_json(self._links.get_links(self._text.stat.path))


def _index_note(note: Note) -> IndexedFile:
    document = to_document(note)
    if document is None:
        return IndexedFile(None, [])
    content = note.content.decode()[:MAX_INDEXED_CHARS]
    lowercase = content.lower()
    if len(lowercase) != len(content):
        lowercase = content  # a few characters become two in lower case, which would shift all offsets
    name = note.path.rpartition("/")[2].removesuffix(".md")
    text = IndexedText(note.stat, content, lowercase, name, document.frontmatter, document.tags)
    return IndexedFile(text, extract_link_targets(content))


class MatchPosition(msgspec.Struct, frozen=True, gc=False):
    """Offsets of a match in the note's text or in its name; `source` is "content" or "filename"."""

    start: int
    end: int
    source: str


class SimpleSearchMatch(msgspec.Struct, frozen=True, gc=False):
    """A match, and the text around it or the name."""

    match: MatchPosition
    context: str


class SimpleSearchHit(msgspec.Struct, frozen=True):
    """A note that matches, as in the response."""

    filename: str
    score: int
    matches: list[SimpleSearchMatch]


def split_words(query: str) -> list[str]:
    """Return the words of a query in lower case, without duplicates."""
    return list(dict.fromkeys(query.lower().split()))


def match_note(
    path: str, name: str, content: str, lowercase: str, words: list[str], context_chars: int, max_matches: int | None
) -> SimpleSearchHit | None:
    """Return the matches and the score of a note, None if a word is neither in its name nor in its text.

    `lowercase` is `content` in lower case; matches in the text come with `context_chars` characters on each side.
    """
    lowercase_name = name.lower()
    for word in words:
        if word not in lowercase and word not in lowercase_name:
            return None
    name_matches = [_name_match(name, lowercase_name.index(word), word) for word in words if word in lowercase_name]
    score = (NAME_MATCH_SCORE - 1) * len(name_matches)
    text_matches: list[SimpleSearchMatch] = []
    for word in words:
        _append_matches(text_matches, content, lowercase, word, context_chars)
    if len(words) > 1:
        text_matches.sort(key=lambda item: item.match.start)
    score += len(name_matches) + len(text_matches)
    return SimpleSearchHit(path, score, name_matches + text_matches[:max_matches])


def _name_match(name: str, start: int, word: str) -> SimpleSearchMatch:
    return SimpleSearchMatch(MatchPosition(start, start + len(word), "filename"), name)


def _append_matches(
    matches: list[SimpleSearchMatch], content: str, lowercase: str, word: str, context_chars: int
) -> None:
    start = lowercase.find(word)
    for _ in range(MAX_MATCHES_PER_WORD):
        if start < 0:
            break
        end = start + len(word)
        context = content[max(0, start - context_chars) : end + context_chars]
        matches.append(SimpleSearchMatch(MatchPosition(start, end, "content"), context))
        start = lowercase.find(word, end)


def to_document(note: Note) -> NoteDocument | None:
    """Parse a note, None if the file is not one."""
    return parse_document(note.path, note.content)


def stat_to_json(stat: Stat) -> dict[str, int]:
    """Return the file's status with times in milliseconds, as the plugin does."""
    return {"ctime": stat.created_at // 1000, "mtime": stat.modified_at // 1000, "size": stat.size}


def links_to_json(links: NoteLinks) -> dict[str, list[str]]:
    """Return the links of a note under the field names of the API."""
    return {"links": links.links, "backlinks": links.backlinks, "unresolvedLinks": links.unresolved}


def note_to_json(note: Note, document: NoteDocument, links: NoteLinks) -> JsonObject:
    """Return the JSON form of a note, with its content hash as the version."""
    return {
        "path": note.path,
        "content": note.content.decode(),
        "frontmatter": document.frontmatter,
        "tags": document.tags,
        "stat": stat_to_json(note.stat),
        **links_to_json(links),
        "version": note.hash,
    }
