"""Parsed documents, by path and hash of their bytes."""

from __future__ import annotations

from stentor.domains.memory.documents import Document


class Cache:
    """Bounded; never stale, because another content has another hash."""

    def __init__(self, most: int = 1024) -> None:
        self._documents: dict[str, tuple[str, Document | None]] = {}
        self._most = most
        self._asked = self._hits = 0

    def known(self, path: str, content_hash: str) -> Document | None:
        """None when it is not known, or is no text."""
        self._asked += 1
        found = self._documents.pop(path, None)
        if found is None or found[0] != content_hash:
            return None
        self._hits += 1
        self._documents[path] = found
        return found[1]

    def put(self, path: str, content_hash: str, document: Document | None) -> None:
        self._documents[path] = content_hash, document
        if len(self._documents) > self._most:
            del self._documents[next(iter(self._documents))]

    @property
    def hit_ratio(self) -> float:
        """Hits among all reads so far; 0 before the first."""
        return self._hits / self._asked if self._asked else 0.0
