"""The files of the vault as the routes use them: read, changed for the state that was read, moved, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import ANYTHING, NOTHING, NoSuchNote, NoteChanged, content_hash
from stentor.surfaces.vault.conditions import Conditions
from stentor.surfaces.vault.errors import EXISTS, Refused
from stentor.surfaces.vault.texts import Texts

TRIES = 16
Edit = Callable[[bytes | None], bytes]


class Files:
    """Changes of one file wait for each other; a lost race with another program is tried again."""

    def __init__(self, vault: FolderVault, texts: Texts) -> None:
        self.vault = vault
        self._texts = texts
        self._locks = [asyncio.Lock() for _ in range(256)]

    async def change(self, path: str, edit: Edit, conditions: Conditions) -> bytes:
        """Read, edit, write, for the state that was read. Raises Refused, NoSuchNote and what the edit raises."""
        async with self._lock(path):
            for _ in range(TRIES):
                present = await self._present(path)
                conditions.check(path, present)
                content = await asyncio.to_thread(edit, present)
                try:
                    await self.vault.write(path, content, NOTHING if present is None else content_hash(present))
                except NoteChanged:
                    continue
                await self._texts.refresh(path)
                return content
        raise _too_fast(path)

    async def delete(self, path: str, conditions: Conditions, *, permanent: bool) -> None:
        async with self._lock(path):
            for _ in range(TRIES):
                present = (await self.vault.read(path)).content
                conditions.check(path, present)
                try:
                    await self.vault.run(self.vault.delete_now, path, content_hash(present), permanent=permanent)
                except NoteChanged:
                    continue
                await self._texts.refresh(path)
                return
        raise _too_fast(path)

    async def move(self, path: str, target: str, conditions: Conditions, *, overwrite: bool) -> None:
        """Links in other notes stay as they are."""
        async with self._lock(path):
            conditions.check(path, (await self.vault.read(path)).content)
            if path == target:
                return
            try:
                await self.vault.run(self.vault.move_now, path, target, overwrite=overwrite)
            except NoteChanged:
                raise _taken(target) from None
        await self._texts.refresh(path)
        await self._texts.refresh(target)

    async def copy(self, path: str, target: str, conditions: Conditions, *, overwrite: bool) -> None:
        note = await self.vault.read(path)
        conditions.check(path, note.content)
        if path == target:
            raise _taken(target)
        try:
            await self.vault.write(target, note.content, ANYTHING if overwrite else NOTHING)
        except NoteChanged:
            raise _taken(target) from None
        await self._texts.refresh(target)

    def _lock(self, path: str) -> asyncio.Lock:
        return self._locks[hash(path) % len(self._locks)]

    async def _present(self, path: str) -> bytes | None:
        try:
            return (await self.vault.read(path)).content
        except NoSuchNote:
            return None


def _taken(target: str) -> Refused:
    return Refused(EXISTS, f"{target!r} exists; Allow-Overwrite: true replaces it.")


def _too_fast(path: str) -> Refused:
    return Refused(EXISTS, f"{path!r} changes faster than it can be read; try again.")
