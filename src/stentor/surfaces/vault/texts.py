"""All texts of a vault in memory, for searches that look at every note, and the links between them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.following import changes
from stentor.domains.notes.model import NoSuchNote, Note, Stat, VaultUnavailable
from stentor.domains.notes.paths import InvalidPath, hidden
from stentor.surfaces.vault import notes, simple
from stentor.surfaces.vault.links import Links, targets
from stentor.surfaces.vault.logic.evaluation import Facts

FACTS = ("path", "content", "frontmatter", "tags", "stat", "links", "backlinks", "unresolvedLinks")
MAX_CHARACTERS = 1_000_000
"""Of one note; what lies behind is not searched."""
AGAIN_SECONDS = 1.0
log = logging.getLogger(__name__)


class Text(msgspec.Struct, frozen=True):
    """A note; `folded` is its content in lower case, sign for sign."""

    stat: Stat
    content: str
    folded: str
    name: str
    frontmatter: dict[str, Any]
    tags: list[str]


class File(msgspec.Struct, frozen=True):
    """`text` of a note, and what its links name."""

    text: Text | None
    targets: list[str]


class Texts:
    """Kept up to date by the server's own writes and by the system's events for those of others.

    Paths that `skips` says yes to are not searched; the vault's `walk` is to leave them out.
    """

    def __init__(self, vault: FolderVault, skips: Callable[[str], bool] = lambda path: False) -> None:
        self._vault = vault
        self._skips = skips
        self._wanted = asyncio.Event()
        self._loaded = asyncio.Event()
        self._texts: dict[str, Text] = {}
        self.links = Links()
        self._turns = count(1)
        self._taken_up: dict[str, int] = {}
        self._loading = asyncio.Lock()
        self._touched: set[str] = set()

    async def run(self) -> None:
        """For ever, from the first time that somebody wants it: all that is there, and what other programs change."""
        await self._wanted.wait()
        await asyncio.gather(self.follow(), self._load_at_start())

    def want(self) -> None:
        """Begin to read; a vault that nobody searches is neither read nor kept in memory."""
        self._wanted.set()

    async def ready(self) -> None:
        """Wait until all that was there at the start is known."""
        self.want()
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
                await asyncio.sleep(AGAIN_SECONDS)

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

    async def follow(self) -> None:
        """For ever: take up what other programs change."""
        root = self._vault.root.absolute()
        while True:
            try:
                async for found in changes(root):
                    await self._take_up(root, set(map(Path, found)))
            except (OSError, RuntimeError, VaultUnavailable):
                await asyncio.sleep(AGAIN_SECONDS)

    def search(self, query: str, around: int) -> list[simple.Hit]:
        """Notes with every word of the query in text or name, best first; may run in a thread."""
        words = simple.words_of(query)
        found = []
        for text in list(self._texts.values()):
            hit = simple.hit(text.stat.path, text.name, text.content, text.folded, words, around)
            if hit is not None:
                found.append(hit)
        return sorted(found, key=lambda hit: (-hit.score, hit.filename))

    def facts(self) -> list[Facts]:
        """Of each note, by path."""
        return [_NoteFacts(text, self.links) for _, text in sorted(self._texts.items())]

    def tags(self) -> list[dict[str, Any]]:
        """Each tag and those above it, with the number of notes that have it."""
        counts: Counter[str] = Counter()
        for text in self._texts.values():
            parts = [tag.split("/") for tag in text.tags]
            counts.update({"/".join(tag[:end]) for tag in parts for end in range(1, len(tag) + 1)})
        return [{"name": name, "count": count} for name, count in sorted(counts.items())]

    def _keep(self, path: str, found: File | None) -> None:
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
            if parts and not any(hidden(part) for part in parts) and not self._skips(path):
                await (self.load() if file.is_dir() or not file.suffix else self.refresh(path))

    async def _files(self, paths: Iterable[str]) -> dict[str, File | None]:
        return await asyncio.to_thread(lambda: {path: self._read(path) for path in paths})

    def _read(self, path: str) -> File | None:
        """None for what is no file."""
        try:
            return _file(self._vault.read_now(path))
        except (NoSuchNote, InvalidPath, FileNotFoundError):
            return None


class _NoteFacts(Facts):
    """Links are looked for when a rule asks for them."""

    def __init__(self, text: Text, links: Links) -> None:
        self._text = text
        self._links = links

    def member(self, name: str) -> Any:
        if name in ("content", "frontmatter", "tags"):
            return getattr(self._text, name)
        if name == "path":
            return self._text.stat.path
        return notes.times(self._text.stat) if name == "stat" else self._linked().get(name)

    def whole(self) -> dict[str, Any]:
        return {name: self.member(name) for name in FACTS}

    def _linked(self) -> dict[str, list[str]]:
        return notes.linked(self._links.of(self._text.stat.path))


def _file(note: Note) -> File:
    """Only notes are searched."""
    document = notes.document_of(note) if note.path.lower().endswith(".md") else None
    if document is None:
        return File(None, [])
    content = note.content.decode()[:MAX_CHARACTERS]
    folded = content.lower()
    if len(folded) != len(content):
        folded = content  # a few signs grow in lower case, and places must stay places
    name = note.path.rpartition("/")[2].removesuffix(".md")
    text = Text(note.stat, content, folded, name, document.frontmatter, notes.tags_of(document))
    return File(text, targets(content))
