"""The version history of notes: which versions are stored, what they say, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from stentor.core import runlog_queries
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict
from stentor.core.ids import min_id_at
from stentor.core.runlog import EventDraft
from stentor.domains.memory import store
from stentor.domains.memory.model import MemoryCaller
from stentor.domains.memory.service import MemoryService
from stentor_vault.notes import paths
from stentor_vault.notes.model import NoSuchNote, Vault
from stentor_vault.text import documents
from stentor_vault.text.documents import NoteDocument

MAX_WRITERS = 20
"""Newest versions for which the writer is looked up."""
MAX_WRITE_US = 30 * SECOND
"""How long before its transaction an event may have got its id: as long as a write waits on a busy machine."""
EVENT_ID_SKEW_US = SECOND
"""How long after it: the clocks of the database and of this process differ."""
MAX_SCANNED_EVENTS = 2_000
"""Events scanned before the time of each version."""


class Writer(msgspec.Struct, frozen=True):
    """Who wrote a version: the name of a key, and its agent if it acts for one."""

    by: str | None = None
    agent_id: str | None = None


NOBODY = Writer()


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

    async def find_writers(self, tenant: str, path: str, versions: Iterable[store.NoteVersion]) -> Mapping[str, Writer]:
        """Return who wrote the newest versions, by content hash, as far as the tenant's run log has it."""
        path = paths.normalize_path(path)
        written = [version for version in versions if version.cause in ("written", "restored")][:MAX_WRITERS]

        return await self._db.read(
            lambda tx: {one.content_hash: self._find_writer(tx, tenant, path, one) for one in written}
        )

    def _find_writer(self, tx: Tx, tenant: str, path: str, version: store.NoteVersion) -> Writer:
        low, high = min_id_at(version.created_at - MAX_WRITE_US), min_id_at(version.created_at + EVENT_ID_SKEW_US)
        wanted = (path, self._memory.vault_name, version.content_hash)
        # The events have no index by note, but their ids begin with their time.
        for event in runlog_queries.list_events_between(tx, tenant, "memory_written", low, high, MAX_SCANNED_EVENTS):
            meta = event.metadata
            if (meta.get("path"), meta.get("vault", ""), meta.get("after_hash")) == wanted:
                return Writer(meta.get("by"), event.agent_id)
        return NOBODY

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
