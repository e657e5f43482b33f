"""The memory service: recorded reads and conflict-checked writes of notes.

A write is first decided and journaled in the database, then applied to the vault, then indexed. The decision itself is
in `model`, recovery after a crash in `write_journal`, search in `search`, the stored versions of a note in `versions`.
Source: core contract, "Memory bus".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import msgspec

from stentor.core import ids
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, InvalidRequest, ServiceUnavailable, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.memory import model, store
from stentor.domains.memory.caches import DocumentCache, LastSeen
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.memory.model import MemoryCaller, WriteDecision, WriteDraft, WriteResult
from stentor.domains.memory.store import WriteIntent
from stentor.domains.memory.threads import in_thread_if_long
from stentor.domains.memory.validity.guard import MarkGuard, mark_events
from stentor.domains.memory.write_journal import WriteJournal, write_event
from stentor_vault.notes import paths
from stentor_vault.notes.frontmatter import BOM
from stentor_vault.notes.model import (
    NO_FILE,
    FileChange,
    NameTaken,
    NoSuchNote,
    Note,
    NoteChanged,
    ReadOnlyNote,
    Vault,
    content_hash,
    require_portable_names,
)
from stentor_vault.notes.paths import InvalidPath
from stentor_vault.text import documents
from stentor_vault.text.documents import NoteDocument

MAX_ATTEMPTS = 8
MAX_COMPARED_VERSIONS = 20
"""Stored versions whose contents are compared with a hash that no version has."""
INLINE_MAX_CHARS = 8_000
"""Texts up to this length are processed on the event loop, longer ones in a thread."""
LOCK_COUNT = 256
_MAY_FOLLOW = "The write failed, and the database could not record that: the write may still be made later."
log = logging.getLogger(__name__)

TaskEventLookup = Callable[[Tx, str, str], str]
"""Map a tenant and a task id to the id of the parent event for a new event of that task. Raises NotFound."""


class WriteHooks(msgspec.Struct, frozen=True):
    """What else is done in the transactions of a write.

    `on_journaled` is called in the one that decides it, with the hashes of the file before and after it; `on_failed` in
    the one that takes the decision back because the file could not be changed.
    """

    on_journaled: Callable[[Tx, str, str], None] = lambda _tx, _before, _after: None
    on_failed: Callable[[Tx], None] = lambda _tx: None


NO_HOOKS = WriteHooks()


class MemoryService:
    """Reads and writes the notes of one vault.

    `name` is the name of a named vault, empty for the default one; it prefixes the paths in the database.
    """

    def __init__(
        self,
        vault: Vault,
        db: Database,
        indexer: Indexer,
        runlog: RunLog,
        clock: Clock,
        find_task_event: TaskEventLookup,
        guard: MarkGuard,
        name: str,
    ) -> None:
        self.key_prefix = f"{name}:" if name else ""
        self.vault_name = name
        """Empty for the default vault."""
        self._vault = vault
        self._db = db
        self._indexer = indexer
        self._runlog = runlog
        self._clock = clock
        self._find_task_event = find_task_event
        self._guard = guard
        self._last_seen = LastSeen()
        self._locks = [asyncio.Lock() for _ in range(LOCK_COUNT)]
        self._writing: set[asyncio.Task[WriteResult]] = set()
        self.journal = WriteJournal(vault, db, self.key_prefix)
        self.cache = DocumentCache()
        self.estimate_vectors_ready_at: Callable[[], int | None] = lambda: None

    def stored_path(self, path: str) -> str:
        """Return the path by which the database knows a note of this vault."""
        return store.stored_path(self.key_prefix, path)

    async def read(self, caller: MemoryCaller, path: str) -> tuple[NoteDocument, str]:
        """Return the document and the hash of its file's bytes.

        Raises NoSuchNote, InvalidPath, and InvalidRequest for a file that is not UTF-8.
        """
        path = paths.normalize_path(path)
        try:
            note = await self._vault.read(path)
        except NoSuchNote:
            self._last_seen.record(caller.identity, path, NO_FILE)
            raise
        document = self.cache.get(path, note.hash) or await self._parse(note, path)
        if document is None:
            raise InvalidRequest(f"{path!r} is not UTF-8 text, so it cannot be read as a document.")
        meta = {"path": path, "content_hash": document.content_hash, "by": caller.principal.name}
        event = EventDraft("memory_read", "memory", f"{path} was read.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._record_read(tx, caller, note, event))
        # Only after the commit: a read that could not be recorded is not returned, so the caller has not seen it.
        self._last_seen.record(caller.identity, path, note.hash)
        return document, note.hash

    async def _parse(self, note: Note, path: str) -> NoteDocument | None:
        """Parse a long note in a thread: its frontmatter may take a fifth of a second."""
        parse = documents.parse_document
        document = await in_thread_if_long(len(note.content), INLINE_MAX_CHARS, parse, path, note.content)
        self.cache.put(path, note.hash, document)
        return document

    def _record_read(self, tx: Tx, caller: MemoryCaller, note: Note, event: EventDraft) -> None:
        self.record_event(tx, caller, event)
        # A later write of this caller may need these bytes as the base of a three-way merge.
        if not store.keep_if_stored(tx, self.stored_path(note.path), note.hash):
            store.save_version(tx, self.stored_path(note.path), note.hash, note.content, "vault")

    async def write(self, caller: MemoryCaller, draft: WriteDraft, hooks: WriteHooks = NO_HOOKS) -> WriteResult:
        """Apply a write, update or deletion, or return its conflict. If the caller is cancelled, it is still finished.

        Raises Forbidden for a folder where agents may not write, NotFound, PreconditionFailed, and Conflict when the
        note keeps changing between the read and the write.
        """
        draft = msgspec.structs.replace(draft, path=paths.normalize_path(draft.path))
        model.require_writable_path(caller.principal, draft.path, is_governed=caller.is_governed)
        # Serializes writers in this process. Other processes and programs are caught by the precondition of the vault
        # write (NoteChanged), so the whole decision is repeated on the new content.
        lock = self._locks[hash(draft.path) % len(self._locks)]
        await lock.acquire()
        writing = asyncio.create_task(self._write_locked(caller, draft, hooks))
        self._writing.add(writing)
        writing.add_done_callback(partial(self._end_write, lock))
        # An unfinished write would stay in the journal, and the next start would apply it to whatever the note is by
        # then.
        return await asyncio.shield(writing)

    def _end_write(self, lock: asyncio.Lock, writing: asyncio.Task[WriteResult]) -> None:
        self._writing.discard(writing)
        lock.release()
        if not writing.cancelled():
            # Retrieved here: else asyncio logs the error of a write whose caller is gone as never retrieved.
            writing.exception()

    async def _write_locked(self, caller: MemoryCaller, draft: WriteDraft, hooks: WriteHooks) -> WriteResult:
        for _ in range(MAX_ATTEMPTS):
            try:
                return await self._try_write(caller, draft, hooks)
            except NoteChanged:
                continue
            except NoSuchNote as error:
                if draft.operation != "write":
                    raise
                # For a path that is a folder, or below a note.
                raise NameTaken(f"{draft.path!r} cannot be written: {error.message}") from None
        raise Conflict(f"{draft.path!r} changed during each of {MAX_ATTEMPTS} attempts to write it; try again.")

    async def _try_write(self, caller: MemoryCaller, draft: WriteDraft, hooks: WriteHooks) -> WriteResult:
        current = await self._read_bytes(draft.path)
        seen_hashes = self._last_seen.get(caller.identity, draft.path)
        if not seen_hashes and draft.knows_last_written:
            written = await self._db.read(lambda tx: store.find_last_written(tx, self.stored_path(draft.path)))
            seen_hashes = [] if written is None else [written]
        base = await self._find_base(draft, seen_hashes) if draft.resolution == "merge" else None
        decision = await _decide(draft, current, frozenset(seen_hashes), base)
        if current is None and decision.after is not None:
            await self._check_new_name(draft.path)
        admitted = await self._guard.admit(caller, draft.path, current, decision.after)
        decision = msgspec.structs.replace(decision, after=admitted)
        conflict_copy = None
        if decision.losing_content is not None:
            # The losing text first: if the service is killed between the two writes, no text is lost.
            conflict_copy = await self._unused_copy_name(draft.path)
            losing = await self._guard.admit_copy(caller, draft.path, current, conflict_copy, decision.losing_content)
            await self._record_and_apply(caller, conflict_copy, None, losing, draft, "success")
        status: Literal["success", "conflict"] = "conflict" if decision.conflict else "success"
        intent, written_at = await self._record_and_apply(
            caller, draft.path, current, decision.after, draft, status, hooks
        )
        if status == "success":
            self._last_seen.record(caller.identity, draft.path, intent.after_hash)
        return WriteResult(
            status, intent.write_id, written_at, await _result_content_hash(caller, draft, decision, current),
            intent.after_hash, intent.before_hash, decision.merged, conflict_copy, self.estimate_vectors_ready_at(),
        )  # fmt: skip

    async def _record_and_apply(
        self,
        caller: MemoryCaller,
        path: str,
        before: bytes | None,
        after: bytes | None,
        draft: WriteDraft,
        status: str,
        hooks: WriteHooks = NO_HOOKS,
    ) -> tuple[WriteIntent, int]:
        """Journal a write, change the file and index it; return the journal entry and its time."""
        intent = WriteIntent(ids.new_id(), path, _hash(before), _hash(after), 0)
        events = [write_event(caller, draft, intent, status)]
        changes = before != after
        if changes:
            events += await mark_events(caller, path, before, after, draft.mark_reason)

        # Must commit before the file changes: a crash in between is then completed from the journal at the next start.
        def work(tx: Tx) -> int:
            hooks.on_journaled(tx, intent.before_hash, intent.after_hash)
            return self._record_write(tx, caller, intent, before, after, events, changes=changes)

        written_at = await self._db.write(work)
        if changes:
            stored = msgspec.structs.replace(intent, created_at=written_at)
            await self._apply(caller, stored, after, events[0], hooks)
        return intent, written_at

    def _record_write(
        self,
        tx: Tx,
        caller: MemoryCaller,
        intent: WriteIntent,
        before: bytes | None,
        after: bytes | None,
        events: Sequence[EventDraft],
        *,
        changes: bool,
    ) -> int:
        for event in events:
            self.record_event(tx, caller, event)
        if changes:
            if before is not None:
                # Before the file is changed: afterwards the replaced bytes would be nowhere.
                store.save_replaced_version(tx, self.stored_path(intent.path), intent.before_hash, before)
            if after is not None:
                store.save_version(tx, self.stored_path(intent.path), intent.after_hash, after, "bus")
            store.insert_intent(tx, intent, self.key_prefix)
        return tx.now

    async def _apply(
        self, caller: MemoryCaller, intent: WriteIntent, after: bytes | None, event: EventDraft, hooks: WriteHooks
    ) -> None:
        try:
            change = await self.journal.apply(intent, after)
        except Exception as error:
            # Without this, recovery at the next start would apply a write that was reported as failed.
            meta = {**event.metadata, "status": "failed"}
            failure = EventDraft("memory_written", "memory", f"{intent.path} could not be written.", meta)
            # After any other error the file may have the new bytes.
            refused = isinstance(error, ReadOnlyNote)
            try:
                await self._db.write(lambda tx: self._cancel_write(tx, caller, intent, failure, hooks, refused=refused))
            except ServiceUnavailable as outage:
                outage.message, outage.is_repeatable = _MAY_FOLLOW, False
                raise
            raise
        # Before the entry is marked as done: after a crash in between, the start applies it again and indexes the note.
        await self._update_index(intent.path, change, after)
        self.journal.mark_done(intent)

    def _cancel_write(
        self, tx: Tx, caller: MemoryCaller, intent: WriteIntent, event: EventDraft, hooks: WriteHooks, *, refused: bool
    ) -> None:
        store.delete_intents(tx, [intent.write_id])
        if refused:
            store.delete_new_version(tx, self.stored_path(intent.path), intent.after_hash, intent.created_at)
        hooks.on_failed(tx)
        self.record_event(tx, caller, event)

    async def _update_index(self, path: str, change: FileChange, after: bytes | None) -> None:
        """Index the change. Fails open: the next reconciliation finds what the index misses now."""
        try:
            if change.stat is None or after is None:
                await self._indexer.remove([path])
            else:
                await self._indexer.index_notes([Note(change.stat, after)])
        except StoreUnavailable:
            pass  # the index logs the outage, not each note of it
        except Exception:
            log.exception("memory: index update failed path=%r", path)

    async def _check_new_name(self, path: str) -> None:
        try:
            await require_portable_names(self._vault, path)
        except InvalidPath:
            # A deleted note may come back under its old name.
            if not await self._db.read(lambda tx: store.list_newest(tx, self.stored_path(path), None)):
                raise

    async def _read_bytes(self, path: str) -> bytes | None:
        try:
            return (await self._vault.read(path)).content
        except NoSuchNote:
            return None

    async def _unused_copy_name(self, path: str) -> str:
        """Return the first conflict copy name of the note that no file has."""
        for name in model.conflict_copy_names(path, self._clock.now()):
            if await self._read_bytes(name) is None:
                return name
        raise Conflict(f"{path!r} has no free name left for a conflict copy in this second; try again.")

    async def _find_base(self, draft: WriteDraft, seen_hashes: list[str]) -> bytes | None:
        """Return the stored bytes of the version that the caller read last."""
        key, wanted = self.stored_path(draft.path), draft.base_hash

        def find(tx: Tx) -> bytes | None:
            hashes = seen_hashes if wanted is None else [wanted]
            base = next(_read_versions(tx, key, hashes), None)
            if base is not None or wanted is None:
                return base
            # `base_hash` may be the hash of the content without the frontmatter.
            newest = [version.content_hash for version in store.list_versions(tx, key)[:MAX_COMPARED_VERSIONS]]
            contents = _read_versions(tx, key, [*seen_hashes, *newest])
            return next((content for content in contents if wanted in model.version_hashes(draft.path, content)), None)

        return await self._db.read(find)

    def record_event(self, tx: Tx, caller: MemoryCaller, event: EventDraft) -> None:
        """Append an event of a memory call to the run log, below the caller's task or event. Adds a named vault."""
        if self.vault_name:
            event = msgspec.structs.replace(event, metadata={**event.metadata, "vault": self.vault_name})
        tenant = caller.principal.tenant
        parent = caller.parent_event_id if caller.task_id is None else self._find_task_event(tx, tenant, caller.task_id)
        self._runlog.append(tx, tenant, [event], task_id=caller.task_id, parent=parent)


def _read_versions(tx: Tx, key: str, hashes: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents of those versions that are stored."""
    contents = (store.read_version(tx, key, version) for version in hashes if version)
    return (content for content in contents if content is not None)


async def _decide(
    draft: WriteDraft, current: bytes | None, seen_hashes: frozenset[str], base: bytes | None
) -> WriteDecision:
    longest = max(len(draft.content or ""), len(current or b""), len(base or b""))
    return await in_thread_if_long(longest, INLINE_MAX_CHARS, model.decide_write, draft, current, seen_hashes, base)


async def _result_content_hash(
    caller: MemoryCaller, draft: WriteDraft, decision: WriteDecision, current: bytes | None
) -> str:
    content = current if decision.after is None else decision.after
    if content is None:
        return ""
    # The memory bus hashes what was sent, also if it begins with frontmatter; the governed memory hashes what is read.
    sent = None if caller.is_governed or draft.content is None else draft.content.removeprefix(BOM).encode()
    if content == sent:
        return content_hash(content)
    return await in_thread_if_long(len(content), INLINE_MAX_CHARS, _content_hash, draft.path, content)


def _content_hash(path: str, content: bytes) -> str:
    document = documents.parse_document(path, content)
    return document.content_hash if document else content_hash(content)


def _hash(content: bytes | None) -> str:
    return NO_FILE if content is None else content_hash(content)
