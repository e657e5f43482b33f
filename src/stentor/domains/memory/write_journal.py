"""Writes from the decision to the end: what a crash leaves open is carried out at the next start.

Source: core contract, "Memory bus".
"""

from __future__ import annotations

import asyncio
import logging

from stentor.core.db import Database, Tx
from stentor.core.errors import ServiceUnavailable
from stentor.domains.memory import store
from stentor.domains.memory.store import WriteIntent
from stentor.domains.notes.model import NO_FILE, FileChange, NoSuchNote, NoteChanged, Vault

DELETE_DELAY_SECONDS = 0.05
log = logging.getLogger(__name__)


class WriteJournal:
    """`scope` is that of a named vault in the database."""

    def __init__(self, vault: Vault, db: Database, scope: str = "") -> None:
        self._vault = vault
        self._db = db
        self._scope = scope
        self._done: list[WriteIntent] = []
        self._settling: asyncio.Task[None] | None = None

    async def apply(self, intent: WriteIntent, after: bytes | None) -> FileChange:
        """Change the file. Raises NoteChanged, NoSuchNote when it is not what it was at the decision."""
        if after is None:
            return await self._vault.delete(intent.path, intent.before_hash)
        return await self._vault.write(intent.path, after, intent.before_hash)

    def mark_done(self, intent: WriteIntent) -> None:
        self._done.append(intent)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_soon())

    async def recover(self, min_age_us: int | None = None) -> int:
        """Carry out what an earlier process decided and did not finish; answers how many writes that were.

        `age` in microseconds: only what has been open for so long, where other processes may be at work.
        """
        found = await self._db.read(lambda tx: store.list_open_intents(tx, min_age_us, self._scope))
        for intent in found:
            try:
                await self._finish(intent)
            except ServiceUnavailable as error:
                log.warning("the write of %r stays open: %s", intent.path, error.message)
            else:
                await self._settle([intent])
        return len(found)

    async def close(self) -> None:
        if self._settling is not None:
            await self._settling

    async def _finish(self, intent: WriteIntent) -> None:
        after = await self._db.read(lambda tx: store.read_version(tx, self._scope + intent.path, intent.after_hash))
        if after is None and intent.after_hash != NO_FILE:
            log.error("the write of %r is lost: its version is not in the database", intent.path)
            return
        try:
            await self.apply(intent, after)
        except (NoteChanged, NoSuchNote):
            log.info("%r was already written, or changed since", intent.path)

    async def _settle_soon(self) -> None:
        """Many at once: an intent that stays open a moment longer costs nothing, a commit does."""
        await asyncio.sleep(DELETE_DELAY_SECONDS)
        while self._done:
            done, self._done = self._done, []
            await self._settle(done)
        self._settling = None

    async def _settle(self, intents: list[WriteIntent]) -> None:
        try:
            await self._db.write(lambda tx: _settled(tx, intents, self._scope))
        except Exception as error:  # noqa: BLE001 - an intent that stays open is settled at the next start
            log.warning("%d writes stay open until the next start: %s", len(intents), error)


def _settled(tx: Tx, intents: list[WriteIntent], scope: str) -> None:
    store.delete_intents(tx, [intent.write_id for intent in intents])
    store.prune_versions(tx, {scope + intent.path for intent in intents})
