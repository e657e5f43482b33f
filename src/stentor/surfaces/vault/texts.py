"""All texts of a vault in memory, for searches that look at every note."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import watchfiles

from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import NoSuchNote, Note, VaultUnavailable
from stentor.domains.notes.paths import InvalidPath, hidden
from stentor.surfaces.vault import notes

MAX_CHARACTERS = 1_000_000
"""Of one note; what lies behind is not searched."""
AGAIN_SECONDS = 1.0


class Text(msgspec.Struct, frozen=True):
    """`folded` is the content in lower case, sign for sign."""

    content: str
    folded: str
    tags: list[str]


class Texts:
    """Kept up to date by the server's own writes and by the system's events for those of others."""

    def __init__(self, vault: FolderVault) -> None:
        self._vault = vault
        self._texts: dict[str, Text] = {}

    async def load(self) -> None:
        """Read the whole vault."""
        found = await self._vault.walk()
        self._texts = await asyncio.to_thread(self._read_all, [stat.path for stat in found])

    async def refresh(self, path: str) -> None:
        """Read one file again."""
        text = await asyncio.to_thread(self._read, path)
        if text is None:
            self._texts.pop(path, None)
        else:
            self._texts[path] = text

    async def run(self) -> None:
        """For ever: all that is there, then what changes."""
        await self.load()
        await self.follow()

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
        words = query.lower().split()
        found = [hit for path, text in self._texts.items() if (hit := _hit(path, text, words, around)) is not None]
        return sorted(found, key=lambda hit: (-hit["score"], hit["filename"]))

    def tags(self) -> list[dict[str, Any]]:
        """Each tag and those above it, with the number of notes that have it."""
        counts: Counter[str] = Counter()
        for text in self._texts.values():
            parts = [tag.split("/") for tag in text.tags]
            counts.update({"/".join(tag[:end]) for tag in parts for end in range(1, len(tag) + 1)})
        return [{"name": name, "count": count} for name, count in sorted(counts.items())]

    async def _take_up(self, root: Path, files: set[Path]) -> None:
        for file in files:
            parts = file.relative_to(root).parts
            if parts and not any(hidden(part) for part in parts):
                await (self.load() if file.is_dir() or not file.suffix else self.refresh("/".join(parts)))

    def _read_all(self, paths: list[str]) -> dict[str, Text]:
        return {path: text for path in paths if (text := self._read(path)) is not None}

    def _read(self, path: str) -> Text | None:
        try:
            return _text(self._vault.read_now(path))
        except (NoSuchNote, InvalidPath, FileNotFoundError):
            return None


def _text(note: Note) -> Text | None:
    document = notes.document_of(note)
    if document is None:
        return None
    content = note.content.decode()[:MAX_CHARACTERS]
    folded = content.lower()
    # A few signs grow in lower case, and places must stay places.
    return Text(content, folded if len(folded) == len(content) else content, notes.tags_of(document))


def _hit(path: str, text: Text, words: list[str], around: int) -> dict[str, Any] | None:
    name = path.lower()
    if not all(word in text.folded or word in name for word in words):
        return None
    matches = [match for word in words for match in _matches(path, name, text, word, around)]
    named = sum(match["match"]["source"] == "filename" for match in matches)
    return {"filename": path, "score": named * 10 + len(matches), "matches": matches}


def _matches(path: str, name: str, text: Text, word: str, around: int) -> list[dict[str, Any]]:
    """The first places of a word in the name and the text, each with what stands around it."""
    found = []
    if (at := name.find(word)) >= 0:
        found.append({"match": {"start": at, "end": at + len(word), "source": "filename"}, "context": path})
    at = text.folded.find(word)
    while at >= 0 and len(found) < 20:
        end = at + len(word)
        context = text.content[max(0, at - around) : end + around]
        found.append({"match": {"start": at, "end": end, "source": "content"}, "context": context})
        at = text.folded.find(word, end)
    return found
