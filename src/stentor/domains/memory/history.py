"""The version history of notes: which versions are stored, what they say, and their names."""

from __future__ import annotations

from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft
from stentor.domains.memory import store
from stentor.domains.memory.model import MemoryCaller
from stentor.domains.memory.service import MemoryService
from stentor_vault.notes import paths
from stentor_vault.notes.model import NoSuchNote, Vault
from stentor_vault.text import documents
from stentor_vault.text.documents import NoteDocument


class VersionHistory:
    """The stored versions of the notes of one vault."""

    def __init__(self, vault: Vault, db: Database, memory: MemoryService) -> None:
        self._vault = vault
        self._db = db
        self._memory = memory

    async def list_versions(self, path: str) -> tuple[list[store.NoteVersion], str | None]:
        """Return the stored versions of a note, newest first, and the current file's hash (None for no file).

        Raises NoSuchNote for a path without versions.
        """
        path = paths.normalize_path(path)
        versions = await self._db.read(lambda tx: store.list_versions(tx, self._memory.stored_path(path)))
        if not versions:
            raise NoSuchNote(f"No version of {path!r} is stored.")
        return versions, await self._current_hash(path)

    async def read_version(self, caller: MemoryCaller, path: str, version: str) -> NoteDocument:
        """Return a version, named by the hash of its bytes, and record the read. Raises NoSuchNote."""
        path = paths.normalize_path(path)
        content = await self._db.read(lambda tx: store.read_version(tx, self._memory.stored_path(path), version))
        document = None if content is None else documents.parse_document(path, content)
        if document is None:
            raise NoSuchNote(f"No version {version[:80]!r} of {path!r} is stored as text.")
        meta = {"path": path, "content_hash": document.content_hash, "by": caller.principal.name, "version": version}
        event = EventDraft("memory_read", "memory", f"A version of {path} was read.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._memory.record_event(tx, caller, event))
        return document

    async def name_version(self, caller: MemoryCaller, path: str, version: str, name: str | None) -> None:
        """Give a version a name, which keeps it from being pruned, or remove its name (None).

        Raises NoSuchNote, and Conflict if too many versions of the note have a name.
        """
        path = paths.normalize_path(path)
        key = self._memory.stored_path(path)
        meta = {"path": path, "version": version, "name": name, "by": caller.principal.name}
        message = f"A version of {path} lost its name." if name is None else f"A version of {path} was named."
        event = EventDraft("version_named", "memory", message, meta, agent_id=caller.agent_id)

        def work(tx: Tx) -> None:
            if name is not None and not store.has_room_for_name(tx, key, version):
                raise Conflict(f"{store.MAX_NAMED_VERSIONS} versions of {path!r} have a name; remove one first.")
            if not store.name_version(tx, key, version, name):
                raise NoSuchNote(f"No version {version[:80]!r} of {path!r} is stored.")
            self._memory.record_event(tx, caller, event)

        await self._db.write(work)

    async def _current_hash(self, path: str) -> str | None:
        try:
            return (await self._vault.read(path)).hash
        except NoSuchNote:
            return None
