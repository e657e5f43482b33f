"""In-memory state of the memory service: parsed documents, and the version of each note that each caller read last."""

from __future__ import annotations

from collections import OrderedDict

from stentor.domains.memory.model import CallerIdentity
from stentor_vault.notes.model import NO_FILE
from stentor_vault.text.documents import NoteDocument

MAX_DOCUMENTS = 1024
MAX_ENTRIES = 20_000
"""Caller and note pairs in `LastSeen`."""


class DocumentCache:
    """Parsed documents by path and hash of their bytes. Bounded; never stale, because new content has a new hash."""

    def __init__(self) -> None:
        self._documents: dict[str, tuple[str, NoteDocument | None]] = {}
        self._lookups = self._hits = 0

    def get(self, path: str, content_hash: str) -> NoteDocument | None:
        """Return a document; None if it is not cached, or is not text."""
        self._lookups += 1
        entry = self._documents.pop(path, None)
        if entry is None or entry[0] != content_hash:
            return None
        self._hits += 1
        self._documents[path] = entry  # moves it to the end: the first entry is evicted next
        return entry[1]

    def put(self, path: str, content_hash: str, document: NoteDocument | None) -> None:
        self._documents[path] = content_hash, document
        if len(self._documents) > MAX_DOCUMENTS:
            del self._documents[next(iter(self._documents))]

    @property
    def hit_ratio(self) -> float:
        """Hits among all lookups so far; 0 before the first."""
        return self._hits / self._lookups if self._lookups else 0.0


class LastSeen:
    """Hashes of the versions that callers read or wrote last.

    A write to a note is a conflict if its caller has not seen the current version. Bounded: an evicted entry counts as
    never seen, which at worst reports a false conflict.
    """

    def __init__(self) -> None:
        self._hashes: OrderedDict[tuple[CallerIdentity, str], str] = OrderedDict()

    def record(self, identity: CallerIdentity, path: str, content_hash: str) -> None:
        """Record a version; `content_hash` is NO_FILE if the note does not exist."""
        tenant, key, _ = identity
        # The key without an agent saw that there was no note, and its agent now sees a newer state. With the old entry
        # a later deletion would count as seen by the agent, and would not conflict with its write.
        if self._hashes.get(((tenant, key, None), path)) == NO_FILE:
            del self._hashes[(tenant, key, None), path]
        self._hashes[identity, path] = content_hash
        self._hashes.move_to_end((identity, path))
        if len(self._hashes) > MAX_ENTRIES:
            self._hashes.popitem(last=False)

    def get(self, identity: CallerIdentity, path: str) -> list[str]:
        """Return the versions last seen by the agent, then by its key without an agent."""
        tenant, key, _ = identity
        hashes = (self._hashes.get((seer, path)) for seer in (identity, (tenant, key, None)))
        return [content_hash for content_hash in hashes if content_hash is not None]
