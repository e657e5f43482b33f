"""The memory bus: writes that lose no edit, exact reads. Source: core contract, "Memory bus".

A write is decided and recorded first, then the file is changed, then the index.

The versions of documents that are kept: what a merge begins from, and what a person can go back to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.memory import documents, model, store
from stentor.domains.memory.caches import CallerIdentity, DocumentCache, LastSeen
from stentor.domains.memory.documents import NoteDocument
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.memory.model import WriteDecision, WriteDraft
from stentor.domains.memory.store import WriteIntent
from stentor.domains.memory.write_journal import WriteJournal
from stentor.domains.notes import paths
from stentor.domains.notes.frontmatter import BOM
from stentor.domains.notes.model import NO_FILE, FileChange, NoSuchNote, Note, NoteChanged, Vault, content_hash

MAX_ATTEMPTS = 8
INLINE_MAX_CHARS = 8_000
log = logging.getLogger(__name__)

TaskEventLookup = Callable[[Tx, str, str], str]
"""Tenant and task id to the event that a new one of this task hangs under. Raises NotFound."""


class MemoryCaller(msgspec.Struct, frozen=True):
    """Who asks, and the task that it is for, or else the event that led to it. `governed`: a receipt admitted it."""

    principal: Principal
    agent_id: str | None = None
    task_id: str | None = None
    parent_event_id: str | None = None
    is_governed: bool = False

    @property
    def identity(self) -> CallerIdentity:
        return self.principal.tenant, self.principal.name, self.agent_id


class WriteResult(msgspec.Struct, frozen=True):
    """`etag` is the hash of the file's bytes, empty when it is gone; `before` of those that were there, empty for a new
    file. `content_hash` is of the content alone, the removed one after a deletion; empty where there was none.

    `ready_at` is when the search by meaning will probably know it, in microseconds; None when it does already.
    """

    status: Literal["success", "conflict"]
    write_id: str
    written_at: int
    content_hash: str
    etag: str
    before_hash: str
    merged: bool = False
    conflict_copy: str | None = None
    vectors_ready_at: int | None = None


class MemoryService:
    """`name` is that of a named vault, empty for the default one. `scope` keeps its rows apart from other vaults'."""

    def __init__(
        self,
        vault: Vault,
        db: Database,
        indexer: Indexer,
        runlog: RunLog,
        clock: Clock,
        link: TaskEventLookup,
        name: str = "",
    ) -> None:
        self.key_prefix = f"{name}:" if name else ""
        self._name = name
        self._vault = vault
        self._db = db
        self._indexer = indexer
        self._runlog = runlog
        self._clock = clock
        self._link = link
        self._seen = LastSeen()
        self._locks = [asyncio.Lock() for _ in range(256)]
        self.journal = WriteJournal(vault, db, self.key_prefix)
        self.cache = DocumentCache()
        self.estimate_vectors_ready_at: Callable[[], int | None] = lambda: None

    async def read(self, caller: MemoryCaller, path: str) -> tuple[NoteDocument, str]:
        """The document and the hash of its file's bytes. Raises NoSuchNote, InvalidPath."""
        path = paths.normalize_path(path)
        try:
            note = await self._vault.read(path)
        except NoSuchNote:
            self._seen.record(caller.identity, path, NO_FILE)
            raise
        document = self.cache.get(path, note.hash) or await self._parsed(note, path)
        if document is None:
            raise NoSuchNote(f"{path!r} is no text.")
        meta = {"path": path, "content_hash": document.content_hash, "by": caller.principal.name}
        event = EventDraft("memory_read", "memory", f"{path} was read.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._remember(tx, caller, note, event))
        self._seen.record(caller.identity, path, note.hash)
        return document, note.hash

    async def _parsed(self, note: Note, path: str) -> NoteDocument | None:
        """A long note in a thread, since frontmatter may take a fifth of a second to read."""
        if len(note.content) < INLINE_MAX_CHARS:
            document = documents.parse_document(path, note.content)
        else:
            document = await asyncio.to_thread(documents.parse_document, path, note.content)
        self.cache.put(path, note.hash, document)
        return document

    async def write(self, caller: MemoryCaller, draft: WriteDraft) -> WriteResult:
        """Carry out a write, update or deletion, or answer the conflict.

        Raises Forbidden for a folder where agents do not write, NotFound, PreconditionFailed, Conflict when the note
        changes faster than it can be read.
        """
        draft = msgspec.structs.replace(draft, path=paths.normalize_path(draft.path))
        model.require_writable_path(caller.principal, draft.path, is_governed=caller.is_governed)
        async with self._locks[hash(draft.path) % len(self._locks)]:
            for _ in range(MAX_ATTEMPTS):
                try:
                    return await self._try(caller, draft)
                except NoteChanged:
                    continue
        raise Conflict(f"{draft.path!r} changes faster than it can be read; try again.")

    async def _try(self, caller: MemoryCaller, draft: WriteDraft) -> WriteResult:
        present = await self._present(draft.path)
        seen = self._seen.get(caller.identity, draft.path)
        base = await self._base(draft, seen) if draft.resolution == "merge" else None
        decision = await _decided(draft, present, frozenset(seen), base)
        copy = None
        if decision.losing_content is not None:
            copy = await self._beside(draft.path)
            await self._carry_out(caller, copy, None, decision.losing_content, draft, "success")
        status: Literal["success", "conflict"] = "conflict" if decision.conflict else "success"
        done, at = await self._carry_out(caller, draft.path, present, decision.after, draft, status)
        if status == "success":
            self._seen.record(caller.identity, draft.path, done.after_hash)
        shown = await _shown_hash(draft, decision, present)
        return WriteResult(
            status,
            done.write_id,
            at,
            shown,
            done.after_hash,
            done.before_hash,
            decision.merged,
            copy,
            self.estimate_vectors_ready_at(),
        )

    async def _carry_out(
        self, caller: MemoryCaller, path: str, before: bytes | None, after: bytes | None, draft: WriteDraft, status: str
    ) -> tuple[WriteIntent, int]:
        """Record it, change the file, bring it into the index; answers what was done and its time."""
        intent = WriteIntent(ids.new_id(), path, _hash(before), _hash(after), 0)
        event = _event(caller, draft, intent, status)
        changes = before != after
        at = await self._db.write(lambda tx: self._intend(tx, caller, intent, before, after, event, changes=changes))
        if changes:
            await self._change(caller, intent, after, event)
        return intent, at

    def _intend(
        self,
        tx: Tx,
        caller: MemoryCaller,
        intent: WriteIntent,
        before: bytes | None,
        after: bytes | None,
        event: EventDraft,
        *,
        changes: bool,
    ) -> int:
        self.record_event(tx, caller, event)
        if changes:
            if before is not None:
                store.save_version(tx, self.key_prefix + intent.path, intent.before_hash, before, "vault")
            if after is not None:
                store.save_version(tx, self.key_prefix + intent.path, intent.after_hash, after, "bus")
            store.insert_intent(tx, intent, self.key_prefix)
        return tx.now

    async def _change(self, caller: MemoryCaller, intent: WriteIntent, after: bytes | None, event: EventDraft) -> None:
        try:
            change = await self.journal.apply(intent, after)
        except Exception:
            failed = {**event.metadata, "status": "failed"}
            undone = EventDraft("memory_written", "memory", f"{intent.path} could not be written.", failed)
            await self._db.write(lambda tx: self._give_up(tx, caller, intent, undone))
            raise
        await self._index(intent.path, change, after)
        self.journal.mark_done(intent)

    async def _index(self, path: str, change: FileChange, after: bytes | None) -> None:
        """Fails open: what the index misses now, its next comparison with the vault finds."""
        try:
            if change.stat is None or after is None:
                await self._indexer.remove([path])
            else:
                await self._indexer.index_notes([Note(change.stat, after)])
        except Exception:
            log.exception("%r is written, but not indexed yet", path)

    def _give_up(self, tx: Tx, caller: MemoryCaller, intent: WriteIntent, event: EventDraft) -> None:
        store.delete_intents(tx, [intent.write_id])
        self.record_event(tx, caller, event)

    async def _present(self, path: str) -> bytes | None:
        try:
            return (await self._vault.read(path)).content
        except NoSuchNote:
            return None

    async def _beside(self, path: str) -> str:
        """A name for another version of the note, which no file has."""
        for name in model.conflict_copy_names(path, self._clock.now()):
            if await self._present(name) is None:
                return name
        raise Conflict(f"{path!r} has too many conflicted copies of this second; try again.")

    async def _base(self, draft: WriteDraft, seen: list[str]) -> bytes | None:
        """The bytes of the state that the caller knew."""
        hashes = [draft.base_hash] if draft.base_hash is not None else seen

        def find(tx: Tx) -> bytes | None:
            found = (store.read_version(tx, self.key_prefix + draft.path, one) for one in hashes if one)
            return next((content for content in found if content is not None), None)

        return await self._db.read(find)

    def _remember(self, tx: Tx, caller: MemoryCaller, note: Note, event: EventDraft) -> None:
        """What was read is the base of a merge to come."""
        self.record_event(tx, caller, event)
        if not store.has_version(tx, self.key_prefix + note.path, note.hash):
            store.save_version(tx, self.key_prefix + note.path, note.hash, note.content, "vault")

    def record_event(self, tx: Tx, caller: MemoryCaller, event: EventDraft) -> None:
        """An event of a use of the memory, under the task that it was for; one of a named vault says which it was."""
        if self._name:
            event = msgspec.structs.replace(event, metadata={**event.metadata, "vault": self._name})
        tenant = caller.principal.tenant
        parent = caller.parent_event_id if caller.task_id is None else self._link(tx, tenant, caller.task_id)
        self._runlog.append(tx, tenant, [event], task_id=caller.task_id, parent=parent)


def _event(caller: MemoryCaller, draft: WriteDraft, intent: WriteIntent, status: str) -> EventDraft:
    meta: dict[str, Any] = {
        "write_id": intent.write_id,
        "path": intent.path,
        "operation": draft.operation,
        "status": status,
        "before_hash": intent.before_hash,
        "after_hash": intent.after_hash,
        "priority": draft.priority,
        "by": caller.principal.name,
    }
    word = {"write": "written", "update": "updated", "delete": "deleted"}[draft.operation]
    message = f"{intent.path} was {word}." if status == "success" else f"{intent.path} was left: a write conflict."
    return EventDraft("memory_written", "memory", message, meta, agent_id=caller.agent_id)


async def _decided(draft: WriteDraft, present: bytes | None, seen: frozenset[str], base: bytes | None) -> WriteDecision:
    """Long texts are compared in a thread; short ones take less time than the hop."""
    if max(len(draft.content or ""), len(present or b""), len(base or b"")) < INLINE_MAX_CHARS:
        return model.decide_write(draft, present, seen, base)
    return await asyncio.to_thread(model.decide_write, draft, present, seen, base)


async def _shown_hash(draft: WriteDraft, decision: WriteDecision, present: bytes | None) -> str:
    if len(decision.after or present or b"") < INLINE_MAX_CHARS:
        return _content_hash(draft, decision, present)
    return await asyncio.to_thread(_content_hash, draft, decision, present)


def _content_hash(draft: WriteDraft, decision: WriteDecision, present: bytes | None) -> str:
    """Of the content as the caller sent it, where that is stored; a block at its head is read as frontmatter."""
    content = present if decision.after is None else decision.after
    if content is None:
        return ""
    stored = not (decision.after is None or decision.conflict or decision.merged)
    if draft.content is not None and stored:
        return content_hash(draft.content.removeprefix(BOM).encode())  # a byte order mark is the file's
    document = documents.parse_document(draft.path, content)
    return document.content_hash if document else content_hash(content)


def _hash(content: bytes | None) -> str:
    return NO_FILE if content is None else content_hash(content)


class VersionHistory:
    def __init__(self, vault: Vault, db: Database, bus: MemoryService) -> None:
        self._vault = vault
        self._db = db
        self._bus = bus

    async def list_versions(self, path: str) -> tuple[list[store.NoteVersion], str | None]:
        """The states of a note that are kept, newest first, and the hash of the present one, None when it is gone.

        Raises NoSuchNote for a path that never had one.
        """
        path = paths.normalize_path(path)
        found = await self._db.read(lambda tx: store.list_versions(tx, self._bus.key_prefix + path))
        if not found:
            raise NoSuchNote(f"No version of {path!r} is kept.")
        return found, await self._present(path)

    async def read_version(self, caller: MemoryCaller, path: str, version: str) -> NoteDocument:
        """One of them, recorded as a read; `version` is the hash of its bytes. Raises NoSuchNote."""
        path = paths.normalize_path(path)
        content = await self._db.read(lambda tx: store.read_version(tx, self._bus.key_prefix + path, version))
        document = None if content is None else documents.parse_document(path, content)
        if document is None:
            raise NoSuchNote(f"{path!r} has no version {version[:80]!r} that is kept as text.")
        meta = {"path": path, "content_hash": document.content_hash, "by": caller.principal.name, "version": version}
        event = EventDraft("memory_read", "memory", f"A version of {path} was read.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._bus.record_event(tx, caller, event))
        return document

    async def _present(self, path: str) -> str | None:
        try:
            return (await self._vault.read(path)).hash
        except NoSuchNote:
            return None
