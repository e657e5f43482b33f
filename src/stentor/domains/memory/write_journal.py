"""The write journal: applies decided writes to the vault, and completes after a crash what was not applied.

An entry is a `WriteIntent` in the database. `service` inserts it before the file changes, and it is deleted here later.
Source: core contract, "Memory bus".
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from stentor.core.db import Database, Tx
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft
from stentor.domains.memory import store
from stentor.domains.memory.model import MemoryCaller, WriteDraft
from stentor.domains.memory.store import WriteIntent
from stentor_vault.notes.model import NO_FILE, FileChange, NameTaken, NoSuchNote, NoteChanged, ReadOnlyNote, Vault

DELETE_DELAY_SECONDS = 0.05
MAX_RETRY_SECONDS = 30.0
log = logging.getLogger(__name__)


class WriteJournal:
    """The journal of one vault. `key_prefix` is the prefix of a named vault's paths in the database."""

    def __init__(self, vault: Vault, db: Database, key_prefix: str) -> None:
        self._vault = vault
        self._db = db
        self._key_prefix = key_prefix
        self._done: list[WriteIntent] = []
        self._deletion: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def apply(self, intent: WriteIntent, after: bytes | None) -> FileChange:
        """Change the file. Raises NoteChanged or NoSuchNote if it is not in the state before the write."""
        if after is None:
            return await self._vault.delete(intent.path, intent.before_hash)
        return await self._vault.write(intent.path, after, intent.before_hash)

    def mark_done(self, intent: WriteIntent) -> None:
        """Delete the entry of an applied write, shortly and in a batch."""
        self._done.append(intent)
        if self._deletion is None:
            self._deletion = asyncio.create_task(self._delete_soon())

    async def recover(self, min_age_us: int | None = None) -> int:
        """Apply the writes that an earlier process decided but did not finish; return how many there were.

        `min_age_us` (microseconds) leaves recent entries alone, which another process may still be applying.
        """
        intents = await self._db.read(lambda tx: store.list_open_intents(tx, min_age_us, self._key_prefix))
        for intent in intents:
            try:
                await self._recover_write(intent)
            except (StentorError, OSError) as error:
                # The entry stays: one write that fails must not prevent the start, nor hold up the others.
                log.warning("memory: write journal: apply failed path=%r error=%s", intent.path, error)
            else:
                if not await self._delete_entries([intent]):
                    self.mark_done(intent)
        return len(intents)

    async def is_open(self, path: str, after_hash: str) -> bool:
        """Return whether a write of these bytes was decided and is not known to have been applied."""
        intents = await self._db.read(lambda tx: store.list_open_intents(tx, None, self._key_prefix))
        return any((intent.path, intent.after_hash) == (path, after_hash) for intent in intents)

    async def close(self) -> None:
        self._closing.set()
        if self._deletion is not None:
            await self._deletion

    async def _recover_write(self, intent: WriteIntent) -> None:
        path = store.stored_path(self._key_prefix, intent.path)
        after = await self._db.read(lambda tx: store.read_version(tx, path, intent.after_hash))
        # Its version was pruned. Writing nothing is right: to delete the note instead would lose its text.
        if after is None and intent.after_hash != NO_FILE:
            log.error("memory: write journal: version missing path=%r", intent.path)
            return
        try:
            await self.apply(intent, after)
        except (NoteChanged, NoSuchNote, NameTaken):
            # The file no longer has the state before the write: the crash came after the change, or someone else wrote.
            # The version is in the history.
            log.info("memory: write journal: already applied or superseded path=%r", intent.path)
        except ReadOnlyNote as error:
            # Fails as it would while its caller waits. If left open, it would be applied as soon as the file can be
            # written again.
            await self._db.write(lambda tx: store.delete_new_version(tx, path, intent.after_hash, intent.created_at))
            log.warning("memory: write journal: dropped path=%r error=%s", intent.path, error)

    async def _delete_soon(self) -> None:
        """Delete entries in batches: an entry that stays a moment longer costs nothing, but each commit does."""
        pause = DELETE_DELAY_SECONDS
        await asyncio.sleep(pause)
        while self._done:  # more writes may finish during the commit
            done, self._done = self._done, []
            if await self._delete_entries(done):
                continue
            # Repeated until it works: if somebody restores the state before the write, the next start would apply it
            # again.
            self._done += done
            if self._closing.is_set():
                break
            pause = min(2 * pause, MAX_RETRY_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
        self._deletion = None

    async def _delete_entries(self, intents: list[WriteIntent]) -> bool:
        try:
            await self._db.write(lambda tx: _delete_and_prune(tx, intents, self._key_prefix))
        except Exception as error:  # noqa: BLE001 - a journaled write that is done must not fail any more
            log.warning("memory: write journal: entries left pending count=%d error=%s", len(intents), error)
            return False
        return True


def write_event(caller: MemoryCaller, draft: WriteDraft, intent: WriteIntent, status: str) -> EventDraft:
    """Return the run log's event of a write."""
    meta: JsonObject = {
        "write_id": intent.write_id,
        "path": intent.path,
        "operation": draft.operation,
        "status": status,
        "before_hash": intent.before_hash,
        "after_hash": intent.after_hash,
        "priority": draft.priority,
        "by": caller.principal.name,
    }
    verb = {"write": "written", "update": "updated", "delete": "deleted"}[draft.operation]
    message = (
        f"{intent.path} was {verb}." if status == "success" else f"{intent.path} was not written because of a conflict."
    )
    return EventDraft("memory_written", "memory", message, meta, agent_id=caller.agent_id)


def _delete_and_prune(tx: Tx, intents: list[WriteIntent], key_prefix: str) -> None:
    store.delete_intents(tx, [intent.write_id for intent in intents])
    store.prune_versions(tx, {store.stored_path(key_prefix, intent.path) for intent in intents})
