"""All texts of a vault in memory, for searches that look at every note, and the links between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import watchfiles

from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import NoSuchNote, Note, Stat, VaultUnavailable
from stentor.domains.notes.paths import InvalidPath, hidden
from stentor.surfaces.vault import notes, simple
from stentor.surfaces.vault.links import Links, targets
from stentor.surfaces.vault.logic.evaluation import Facts

FACTS = ("path", "content", "frontmatter", "tags", "stat", "links", "backlinks", "unresolvedLinks")
MAX_CHARACTERS = 1_000_000
"""Of one note; what lies behind is not searched."""
AGAIN_SECONDS = 1.0


class Text(msgspec.Struct, frozen=True):
    """A note; `folded` is its content in lower case, sign for sign."""

    stat: Stat
    content: str
    folded: str
    name: str
    frontmatter: dict[str, Any]
    tags: list[str]


class Texts:
    """Kept up to date by the server's own writes and by the system's events for those of others."""

    def __init__(self, vault: FolderVault) -> None:
        self._vault = vault
        self._texts: dict[str, Text] = {}
        self.links = Links()

    async def load(self) -> None:
        """Read the whole vault."""
        found = await self._vault.walk()
        read = await asyncio.to_thread(self._read_all, [stat.path for stat in found])
        self._texts = {}
        self.links.clear()
        for path, (text, names) in read.items():
            self._keep(path, text, names)

    async def refresh(self, path: str) -> None:
        """Read one file again."""
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
            if parts and not any(hidden(part) for part in parts):
                await (self.load() if file.is_dir() or not file.suffix else self.refresh("/".join(parts)))

    def _read_all(self, paths: list[str]) -> dict[str, tuple[Text | None, list[str]]]:
        return {path: found for path in paths if (found := self._read(path)) is not None}

    def _read(self, path: str) -> tuple[Text | None, list[str]] | None:
        """None for what is no file; no text for one that is none."""
        try:
            return _text(self._vault.read_now(path))
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
