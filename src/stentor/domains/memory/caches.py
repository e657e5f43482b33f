"""Parsed documents, by path and hash of their bytes.

Which state of a document each caller saw last, so that a change of another state is known as a conflict.
"""

from __future__ import annotations

from collections import OrderedDict

from stentor.domains.memory.documents import NoteDocument
from stentor.domains.notes.model import NO_FILE


class DocumentCache:
    """Bounded; never stale, because another content has another hash."""

    def __init__(self, max_entries: int = 1024) -> None:
        self._documents: dict[str, tuple[str, NoteDocument | None]] = {}
        self._most = max_entries
        self._asked = self._hits = 0

    def get(self, path: str, content_hash: str) -> NoteDocument | None:
        """None when it is not known, or is no text."""
        self._asked += 1
        found = self._documents.pop(path, None)
        if found is None or found[0] != content_hash:
            return None
        self._hits += 1
        self._documents[path] = found
        return found[1]

    def put(self, path: str, content_hash: str, document: NoteDocument | None) -> None:
        self._documents[path] = content_hash, document
        if len(self._documents) > self._most:
            del self._documents[next(iter(self._documents))]

    @property
    def hit_ratio(self) -> float:
        """Hits among all reads so far; 0 before the first."""
        return self._hits / self._asked if self._asked else 0.0


MAX_ENTRIES = 20_000
CallerIdentity = tuple[str, str, str | None]
"""Tenant, key, and the agent that the key says it acts for."""


class LastSeen:
    """Bounded; what is forgotten counts as never seen, which at worst makes a conflict out of none."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._last: OrderedDict[tuple[CallerIdentity, str], str] = OrderedDict()
        self._most = max_entries

    def record(self, who: CallerIdentity, path: str, content_hash: str) -> None:
        """`content_hash` is NOTHING where there was no note, or is none any more."""
        tenant, key, _ = who
        if self._last.get(((tenant, key, None), path)) == NO_FILE:
            del self._last[(tenant, key, None), path]  # its agents have seen a newer state
        self._last[who, path] = content_hash
        self._last.move_to_end((who, path))
        if len(self._last) > self._most:
            self._last.popitem(last=False)

    def get(self, who: CallerIdentity, path: str) -> list[str]:
        """The states that the agent, and its key without an agent, saw last; the agent's own first."""
        tenant, key, _ = who
        found = (self._last.get((one, path)) for one in (who, (tenant, key, None)))
        return [content_hash for content_hash in found if content_hash is not None]
