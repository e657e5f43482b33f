"""Parsed documents, by path and hash of their bytes."""

from __future__ import annotations

from stentor.domains.memory import documents
from stentor.domains.memory.documents import Document


class Cache:
    """Bounded; never stale, because another content has another hash."""

    def __init__(self, most: int = 1024) -> None:
        self._documents: dict[str, tuple[str, Document | None]] = {}
        self._most = most
        self._asked = self._hits = 0

    def document(self, path: str, content: bytes, content_hash: str) -> Document | None:
        self._asked += 1
        known = self._documents.pop(path, None)
        if known is not None and known[0] == content_hash:
            self._hits += 1
            self._documents[path] = known
            return known[1]
        document = documents.parse(path, content)
        self._documents[path] = content_hash, document
        if len(self._documents) > self._most:
            del self._documents[next(iter(self._documents))]
        return document

    @property
    def hit_ratio(self) -> float:
        """Hits among all reads so far; 0 before the first."""
        return self._hits / self._asked if self._asked else 0.0
