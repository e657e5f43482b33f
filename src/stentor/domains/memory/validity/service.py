"""Invalidates notes, claims and sources, and restores them. What was derived from them follows by itself.

A mark of a note or a claim is written into the note's frontmatter, where people set it by hand as well. A source is not
a note: its mark is a row, of which each vault's index has a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import msgspec

from stentor.core.clock import Clock, format_iso
from stentor.core.db import Database, Tx
from stentor.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ServiceUnavailable,
)
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.model import MemoryCaller, WriteDraft
from stentor.domains.memory.service import MemoryService
from stentor.domains.memory.validity import frontmatter_keys, guard, marks, store
from stentor.domains.memory.validity.frontmatter_keys import Mark
from stentor.domains.memory.validity.model import Exclusion, TargetKind
from stentor_vault.notes.model import NoSuchNote
from stentor_vault.text.documents import NoteDocument
from stentor_vault.text.passages import normalize_anchor

MAX_ATTEMPTS = 8
MAX_LISTED = 500
"""Notes of one outcome that are listed; all are counted."""


_MARKED = "The mark was made, but the notes that left the searches could not be listed. Do not repeat the call."
_RESTORED = "The mark was removed, but the notes that searches find again could not be listed. Do not repeat the call."
_NOT_IN_INDEX = (
    "The change was made, but searches follow it only after the next comparison of the vault with the index, "
    "or when the call is repeated, which is then a conflict."
)


class InvalidationTarget(msgspec.Struct, frozen=True):
    """What is invalidated or restored: the path of a note, a claim (`path#heading`, `path^id`) or a source."""

    kind: TargetKind
    text: str


class VaultExclusion(msgspec.Struct, frozen=True):
    """A note of a vault, and why it is or was invalid."""

    vault: str
    exclusion: Exclusion


class Outcome(msgspec.Struct, frozen=True):
    """The notes that left the searches, or that are found again: the first MAX_LISTED of `total`, by vault and path."""

    target: InvalidationTarget
    notes: list[VaultExclusion]
    total: int


class InvalidationService:
    """The invalidations in all vaults."""

    def __init__(
        self, db: Database, memories: Mapping[str, MemoryService], indexes: Mapping[str, SearchIndex], clock: Clock
    ) -> None:
        self._db = db
        self._memories = memories
        self._indexes = indexes
        self._clock = clock

    async def invalidate(self, caller: MemoryCaller, vault: str, target: InvalidationTarget, reason: str) -> Outcome:
        """Mark the target; return the notes that left the searches.

        Raises NotFound for a missing note or passage, Conflict for a source that is invalid already or one too many,
        and Forbidden for an agent whose mark reaches further than its writes.
        """
        before = await self._list_exclusions()
        if target.kind == "source":
            name = _source_name(target.text)
            await self._write_source(caller, lambda tx: self._insert_source(tx, caller, name, reason))
        else:
            path, anchor = _split(target)
            mark = Mark(reason, caller.author, format_iso(self._clock.now()))
            await self._write_marks(caller, vault, path, reason, partial(marks.set_mark, anchor=anchor, mark=mark))
        with _after_change(_MARKED):
            after = await self._list_exclusions()
        return _outcome(target, {key: why for key, why in after.items() if key not in before})

    async def restore(
        self, caller: MemoryCaller, vault: str, target: InvalidationTarget, reason: str | None
    ) -> Outcome:
        """Remove the target's mark; return the notes that searches find again, each with the reason for its exclusion.

        Raises NotFound for a missing note, Conflict for a target that is not marked, and Forbidden for an agent unless
        the mark is its own.
        """
        before = await self._list_exclusions()
        if target.kind == "source":
            name = _source_name(target.text)
            await self._write_source(caller, lambda tx: self._restore_source(tx, caller, name, reason))
        else:
            path, anchor = _split(target)
            edit = partial(marks.remove_mark, anchor=anchor)
            await self._write_marks(caller, vault, path, reason, edit, replaces=True)
        with _after_change(_RESTORED):
            after = await self._list_exclusions()
        return _outcome(target, {key: why for key, why in before.items() if key not in after})

    async def list_sources(self) -> list[store.SourceInvalidation]:
        """Return the sources that are invalid now."""
        return await self._db.read(store.list_active)

    async def sync(self) -> None:
        """Bring the invalid sources into the index of each vault: after a change, and for an index that was rebuilt."""
        for index in self._indexes.values():
            await self._sync(index)

    async def sync_vault(self, vault: str) -> None:
        await self._sync(self._indexes[vault])

    async def _sync(self, index: SearchIndex) -> None:
        # The index's version first: if another process writes a later one in between, that one stays.
        seen = await index.sources_version()
        sources, version = await self._db.read(store.read_state)
        if seen != version:
            await index.replace_sources({source.source: source.mark for source in sources}, version, seen=seen)

    async def _write_source(self, caller: MemoryCaller, work: Callable[[Tx], None]) -> None:
        if not caller.principal.is_person:
            raise Forbidden("Only people can invalidate or restore a source: notes of others may be derived from it.")
        try:
            await self._db.write(work)
        except Conflict:  # an earlier call may have failed between its row and the index
            await self.sync()
            raise
        with _after_change(_NOT_IN_INDEX):
            await self.sync()

    def _insert_source(self, tx: Tx, caller: MemoryCaller, name: str, reason: str) -> None:
        if store.is_active(tx, name):
            raise Conflict(f"The source {name!r} is invalid already.")
        if not store.has_room(tx):
            raise Conflict(f"{store.MAX_ACTIVE} sources are invalid; restore one first.")
        store.insert(tx, name, reason, caller.author)
        self._record(tx, caller, name, reason, is_invalid=True)

    def _restore_source(self, tx: Tx, caller: MemoryCaller, name: str, reason: str | None) -> None:
        if not store.restore(tx, name, reason, caller.author):
            raise Conflict(f"The source {name!r} is not marked invalid.")
        self._record(tx, caller, name, reason, is_invalid=False)

    def _record(self, tx: Tx, caller: MemoryCaller, name: str, reason: str | None, *, is_invalid: bool) -> None:
        event = guard.target_event(caller, "source", name, reason, is_invalid=is_invalid)
        next(iter(self._memories.values())).record_event(tx, caller, event)

    async def _write_marks(
        self,
        caller: MemoryCaller,
        vault: str,
        path: str,
        reason: str | None,
        edit: Callable[[NoteDocument], JsonObject],
        *,
        replaces: bool = False,
    ) -> None:
        """Add values to the frontmatter of a note, or replace all of it; retry if the note changes in the meantime."""
        memory = self._memories[vault]
        for _ in range(MAX_ATTEMPTS):
            try:
                document, etag = await memory.read(caller, path)
            except NoSuchNote:
                raise NotFound(f"The document {path!r} does not exist.") from None
            draft = WriteDraft(
                "write" if replaces else "update",
                document.path,
                document.content if replaces else None,
                edit(document),
                if_match=frozenset((etag,)),
                mark_reason=reason,
            )
            try:
                await memory.write(caller, draft)
            except PreconditionFailed:
                continue
            return
        raise Conflict(f"{path!r} changed during each of {MAX_ATTEMPTS} attempts to mark it; try again.")

    async def _list_exclusions(self) -> dict[tuple[str, str], Exclusion]:
        return {
            (vault, exclusion.path): exclusion
            for vault, index in self._indexes.items()
            for exclusion in await index.list_exclusions()
        }


@contextmanager
def _after_change(text: str) -> Iterator[None]:
    """Give an outage the text, because without one it says that nothing was written."""
    try:
        yield
    except ServiceUnavailable as error:
        error.message, error.is_repeatable = text, False
        raise


def _split(target: InvalidationTarget) -> tuple[str, str]:
    if target.kind == "note":
        return target.text, ""
    path, anchor = frontmatter_keys.split_path(target.text)
    if not path or not normalize_anchor(anchor):
        raise InvalidRequest("claim: must be a passage of a note: path#Heading or path^block-id.")
    return path, anchor


def _source_name(text: str) -> str:
    name = frontmatter_keys.parse_source(text).name
    if not name:
        raise InvalidRequest("source: is empty.")
    return name


def _outcome(target: InvalidationTarget, found: Mapping[tuple[str, str], Exclusion]) -> Outcome:
    notes = [VaultExclusion(vault, found[vault, path]) for vault, path in sorted(found)]
    return Outcome(target, notes[:MAX_LISTED], len(notes))
