"""All texts of a vault in memory, for searches that look at every note, and the links between them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import watchfiles

from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import NoSuchNote, Note, Stat, VaultUnavailable
from stentor.domains.notes.paths import InvalidPath, hidden
from stentor.surfaces.vault import notes, simple
from stentor.surfaces.vault.links import Links, targets

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


class Texts:
    """Kept up to date by the server's own writes and by the system's events for those of others.

    Paths that `skips` says yes to are not searched; the vault's `walk` is to leave them out.
    """

    def __init__(self, vault: FolderVault, skips: Callable[[str], bool] = lambda path: False) -> None:
        self._vault = vault
        self._skips = skips
        self._texts: dict[str, Text] = {}
        self._loaded = asyncio.Event()
        self._meanwhile: set[str] | None = None
        self.links = Links()

    async def run(self) -> None:
        """For ever: all that is there, and what other programs change."""
        await asyncio.gather(self.follow(), self._load_at_start())

    async def ready(self) -> None:
        """Wait until all that was there at the start is known."""
        await self._loaded.wait()

    async def load(self) -> None:
        """Read the whole vault; what changes meanwhile is read again."""
        meanwhile = self._meanwhile = set[str]()
        found = await self._vault.walk()
        read = await asyncio.to_thread(self._read_all, [stat.path for stat in found])
        self._texts = {}
        self.links.clear()
        for path, (text, names) in read.items():
            self._keep(path, text, names)
        self._meanwhile = None
        for path in meanwhile:
            await self.refresh(path)
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
        if self._skips(path):
            return
        if self._meanwhile is not None:
            self._meanwhile.add(path)
        found = await asyncio.to_thread(self._read, path)
        if found is None:
            self._texts.pop(path, None)
            self.links.remove(path)
        else:
            self._keep(path, *found)

    async def follow(self) -> None:
        """For ever: take up what other programs change."""
        root = self._vault.root.absolute()
        while True:
            try:
                async for changes in watchfiles.awatch(root, watch_filter=None, step=10, debounce=100):
                    await self._take_up(root, {Path(path) for _, path in changes})
            except (OSError, RuntimeError, VaultUnavailable):
                await asyncio.sleep(AGAIN_SECONDS)

    def search(self, query: str, around: int) -> list[dict[str, Any]]:
        """Notes with every word of the query in text or name, best first, as the plugin answers them."""
        words = simple.words_of(query)
        found = []
        for path, text in self._texts.items():
            hit = simple.hit(path, text.name, text.content, text.folded, words, around)
            if hit is not None:
                found.append(hit)
        return sorted(found, key=lambda hit: (-hit["score"], hit["filename"]))

    def facts(self) -> Iterator[dict[str, Any]]:
        """Of each note, by path; what changes meanwhile may be missing."""
        for path in sorted(self._texts):
            text = self._texts.get(path)
            if text is not None:
                yield notes.facts(text.content, text.frontmatter, text.tags, text.stat, self.links.of(path))

    def tags(self) -> list[dict[str, Any]]:
        """Each tag and those above it, with the number of notes that have it."""
        counts: Counter[str] = Counter()
        for text in self._texts.values():
            parts = [tag.split("/") for tag in text.tags]
            counts.update({"/".join(tag[:end]) for tag in parts for end in range(1, len(tag) + 1)})
        return [{"name": name, "count": count} for name, count in sorted(counts.items())]

    def _keep(self, path: str, text: Text | None, names: list[str]) -> None:
        """Files that are no text can be linked to all the same."""
        self.links.update(path, names)
        if text is None:
            self._texts.pop(path, None)
        else:
            self._texts[path] = text

    async def _take_up(self, root: Path, files: set[Path]) -> None:
        for file in files:
            parts = file.relative_to(root).parts
            path = "/".join(parts)
            if parts and not any(hidden(part) for part in parts) and not self._skips(path):
                await (self.load() if file.is_dir() or not file.suffix else self.refresh(path))

    def _read_all(self, paths: list[str]) -> dict[str, tuple[Text | None, list[str]]]:
        return {path: found for path in paths if (found := self._read(path)) is not None}

    def _read(self, path: str) -> tuple[Text | None, list[str]] | None:
        """None for what is no file; no text for one that is none."""
        try:
            return _text(self._vault.read_now(path))
        except (NoSuchNote, InvalidPath, FileNotFoundError):
            return None


def _text(note: Note) -> tuple[Text | None, list[str]]:
    document = notes.document_of(note)
    if document is None:
        return None, []
    content = note.content.decode()[:MAX_CHARACTERS]
    folded = content.lower()
    if len(folded) != len(content):
        folded = content  # a few signs grow in lower case, and places must stay places
    name = note.path.rpartition("/")[2].removesuffix(".md")
    text = Text(note.stat, content, folded, name, document.frontmatter, notes.tags_of(document))
    return text, targets(content)
