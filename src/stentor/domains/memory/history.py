"""The versions of documents that are kept: what a merge begins from, and what a person can go back to."""

from __future__ import annotations

from stentor.core.db import Database
from stentor.core.runlog import EventDraft
from stentor.domains.memory import documents, store
from stentor.domains.memory.documents import Document
from stentor.domains.memory.service import Bus, Caller
from stentor.domains.notes import paths
from stentor.domains.notes.model import NoSuchNote, Vault


class History:
    def __init__(self, vault: Vault, db: Database, bus: Bus) -> None:
        self._vault = vault
        self._db = db
        self._bus = bus

    async def versions(self, path: str) -> tuple[list[store.Version], str | None]:
        """The states of a note that are kept, newest first, and the hash of the present one, None when it is gone.

        Raises NoSuchNote for a path that never had one.
        """
        path = paths.clean(path)
        found = await self._db.read(lambda tx: store.versions(tx, self._bus.scope + path))
        if not found:
            raise NoSuchNote(f"No version of {path!r} is kept.")
        return found, await self._present(path)

    async def version(self, caller: Caller, path: str, version: str) -> Document:
        """One of them, recorded as a read; `version` is the hash of its bytes. Raises NoSuchNote."""
        path = paths.clean(path)
        content = await self._db.read(lambda tx: store.version(tx, self._bus.scope + path, version))
        document = None if content is None else documents.parse(path, content)
        if document is None:
            raise NoSuchNote(f"{path!r} has no version {version[:80]!r} that is kept as text.")
        meta = {"path": path, "content_hash": document.content_hash, "by": caller.principal.name, "version": version}
        event = EventDraft("memory_read", "memory", f"A version of {path} was read.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._bus.record(tx, caller, event))
        return document

    async def _present(self, path: str) -> str | None:
        try:
            return (await self._vault.read(path)).hash
        except NoSuchNote:
            return None
