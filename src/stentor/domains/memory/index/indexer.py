"""Indexing of notes: after a write, after file events, and by reconciliation of the whole vault.

Reads the vault and decides what has changed; `index` stores it, `watcher` receives the file events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from stentor.core.clock import SECOND, Clock
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.lag import ChangeWindow, SyncLag
from stentor.domains.memory.index.model import IndexedFileState, IndexEntry, parse_entry
from stentor.domains.memory.index.protocols import DifferenceProblem, IndexDifference, MaintenanceStep
from stentor.domains.memory.threads import in_thread_if_long
from stentor.domains.memory.versions.disk_edits import DiskChange
from stentor_vault.notes.model import (
    MAX_NOTE_BYTES,
    NO_FILE,
    NoSuchNote,
    Note,
    NoteTooLarge,
    Stat,
    UnreadablePath,
    Vault,
)
from stentor_vault.notes.paths import InvalidPath, split_path
from stentor_vault.text import documents

BATCH = 64
BATCH_BYTES = 32 * 1024 * 1024
"""A batch ends with the file that makes it larger."""
INLINE_BYTES = 8_000
"""Notes up to this size are parsed on the event loop, longer ones in a thread."""
MAX_RECENT = 10_000
"""Files that are remembered as just indexed."""
NO_NOTE = NoSuchNote, InvalidPath, NoteTooLarge
"""Raised for a file that the index cannot have."""
log = logging.getLogger(__name__)


class _Updates:
    """The updates of the index that run in this process, to find out which of them overlap."""

    def __init__(self) -> None:
        self._running: list[tuple[frozenset[str], set[str]]] = []

    @contextmanager
    def track(self, paths: Iterable[str]) -> Iterator[set[str]]:
        """Yield a set to which each of these paths is added that another update has at the same time.

        Enter it before the files are read, leave it after the index is changed.
        """
        own = frozenset(paths), set[str]()
        for other_paths, other_shared in self._running:
            shared = own[0] & other_paths
            other_shared |= shared
            own[1].update(shared)
        self._running.append(own)
        try:
            yield own[1]
        finally:
            # By identity: two updates of the same paths are equal.
            self._running = [update for update in self._running if update is not own]


class Indexer:
    """Keeps one index consistent with one vault.

    `on_indexed` is called with the ids of new and changed documents and the times of their changes. Paths for which
    `is_excluded` returns true are not indexed; the vault's `walk` must leave them out too.
    """

    def __init__(
        self, vault: Vault, index: SearchIndex, clock: Clock, is_excluded: Callable[[str], bool] = lambda path: False
    ) -> None:
        self.is_excluded = is_excluded
        self._vault = vault
        self._index = index
        self._clock = clock
        self._reconcile_lock = asyncio.Lock()
        self._just_indexed: dict[str, tuple[int, int]] = {}
        self._unindexed: dict[str, tuple[int, int]] = {}
        """Files that the index has no row for, not text or excluded, with the size and time of their last check."""
        self._unreadable: set[str] = set()
        """Files and folders that cannot be read: each check leaves them as the index has them."""
        self._updates = _Updates()
        self._checked_at = clock.now()
        self.lag = SyncLag("stentor_memory_sync_lag_seconds", "keyword")
        self.on_disk_change: Callable[[list[DiskChange]], Awaitable[None]] | None = None
        """Awaited with the indexed notes that were edited or deleted on disk, before the index is updated."""
        self.before_reconcile: Callable[[], Awaitable[None]] | None = None
        """Awaited before the files are compared: a rebuilt index must know the invalid sources before any note."""
        self.on_indexed: Callable[[dict[int, int]], None] = lambda since: None

    def start_window(self) -> ChangeWindow:
        """Return the window since the previous call. Call it when changes are detected, before checking the files."""
        window = ChangeWindow(self._checked_at, self._clock.now())
        self._checked_at = window.end
        return window

    def _window_now(self) -> ChangeWindow:
        now = self._clock.now()
        return ChangeWindow(now, now)

    async def index_notes(self, notes: Sequence[Note]) -> None:
        """Index these notes in one transaction. Removes those that are not text.

        Notes that another update indexed at the same time are checked again: see `_recheck`.
        """
        with self._updates.track(note.path for note in notes) as shared:
            await self._upsert(notes, self._window_now())
        await self._recheck(notes, shared)

    async def _upsert(self, notes: Sequence[Note], window: ChangeWindow, *, force: bool = False) -> list[IndexEntry]:
        """Index these notes; return the entries of those that are text and not excluded."""
        pairs = [(note, None if self.is_excluded(note.path) else await _parse_entry_async(note)) for note in notes]
        # Remembered, because the index has no row for them: each reconciliation would read these files again.
        self._unindexed |= {
            note.path: (note.stat.size, note.stat.modified_at) for note, entry in pairs if entry is None
        }
        for note, entry in pairs:
            if entry is None and _is_note(note.path) and not self.is_excluded(note.path):
                self._leave_out(note.path, "The file is not UTF-8 text.")
        entries = [entry for _, entry in pairs if entry is not None]
        removed = [note.path for note, entry in pairs if entry is None]
        changed = await self._index.upsert(entries, removed, self._clock.now(), force=force)
        self._remember([note.stat for note in notes])
        if changed:
            stats = {note.path: note.stat for note in notes}
            self.on_indexed({doc_id: window.changed_at(stats[path]) for path, doc_id in changed.items()})
        return entries

    async def _recheck(self, indexed: Sequence[Note | str], shared: set[str]) -> None:
        """Check those of these files that differ from what was just indexed: a note, or the path of a removed file.

        Without this, a slow update could overwrite a newer entry of another one with the state that it read earlier.
        `shared` are the files of other updates in this process; in a shared index another process may have any file.
        """
        states = {item if isinstance(item, str) else item.path: item for item in indexed}
        paths = states if self._index.is_shared else shared & states.keys()
        if changed := [path for path in paths if await self._is_changed(path, states[path])]:
            await self.check_files(changed)

    async def _is_changed(self, path: str, indexed: Note | str) -> bool:
        try:
            return await self._file_hash(path) != (NO_FILE if isinstance(indexed, str) else indexed.hash)
        except UnreadablePath as error:
            self._leave_out(path, error)
            return False

    async def _file_hash(self, path: str) -> str:
        if self.is_excluded(path):
            return NO_FILE
        try:
            return (await self._vault.read(path)).hash
        except NO_NOTE:
            return NO_FILE

    def was_just_indexed(self, path: str, size: int, modified_at: int) -> bool:
        """Return whether a file with this size and time (in microseconds) was indexed recently."""
        return self._just_indexed.get(path) == (size, modified_at)

    def _remember(self, stats: list[Stat]) -> None:
        # Lets the watcher recognize the file event of the service's own write. Clearing is safe: a forgotten file is
        # only compared once more.
        if len(self._just_indexed) > MAX_RECENT:
            self._just_indexed.clear()
        self._just_indexed.update((stat.path, (stat.size, stat.modified_at)) for stat in stats)

    async def remove(self, paths: Iterable[str]) -> None:
        """Remove these files from the index."""
        removed = list(paths)
        with self._updates.track(removed) as shared:
            await self._delete(removed)
        await self._recheck(removed, shared)

    async def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._just_indexed.pop(path, None)
        await self._index.delete(paths)

    async def check_files(self, paths: Iterable[str], window: ChangeWindow | None = None) -> None:
        """Compare these files with the index and update it: a user or another process may have changed them."""
        window = window or self._window_now()
        ordered = sorted(set(paths))
        for start in range(0, len(ordered), BATCH):
            changed = await self._compare(ordered[start : start + BATCH], window)
            now = self._clock.now()
            for stat in changed:
                self.lag.add(max(0, now - window.changed_at(stat)) / SECOND)

    async def check_folder(self, folder: str, window: ChangeWindow | None = None) -> None:
        """Check all files that are in a folder, and those that the index has there or in its place."""
        indexed = [*await self._index.paths_under(folder), *await self._index.file_states_of([folder])]
        try:
            found = [stat.path for stat in await self._walk(folder)]
        except UnreadablePath as error:
            self._leave_out(folder, error)
            return
        await self.check_files([*indexed, *found], window)

    async def _walk(self, folder: str = "") -> list[Stat]:
        """List the files that the index may have: videos and the like may be larger than the memory."""
        stats = await self._vault.walk(folder)
        for stat in stats:
            if stat.size > MAX_NOTE_BYTES and _is_note(stat.path):
                self._leave_out(stat.path, f"more than {MAX_NOTE_BYTES} bytes")
        return [stat for stat in stats if stat.size <= MAX_NOTE_BYTES]

    def _leave_out(self, path: str, reason: object) -> None:
        """Log the path, the first time only, because each reconciliation meets it again."""
        if path not in self._unreadable:
            self._unreadable.add(path)
            log.warning("indexer: left out path=%r reason=%s", path, reason)

    def _has_valid_path(self, path: str) -> bool:
        """Return whether the vault accepts a path; a note of which it does not is left out."""
        try:
            split_path(path)
        except InvalidPath as error:
            if _is_note(path):
                self._leave_out(path, error)
            return False
        return True

    async def reconcile(self) -> int:
        """Compare the whole vault with the index and update it; return how many notes differed."""
        async with self._reconcile_lock:
            # Later file events report changes since this check.
            self._checked_at = self._clock.now()
            if self.before_reconcile is not None:
                await self.before_reconcile()
            # Before the files: a note that is written in between is compared once more, but never forgotten.
            indexed = await self._index.file_states()
            files = {stat.path: stat for stat in await self._walk()}
            self._unindexed = {path: state for path, state in self._unindexed.items() if path in files}
            deleted = [path for path in indexed if path not in files]
            stale = [path for path, stat in files.items() if not self._is_current(indexed.get(path), stat)]
            # A file whose path no vault accepts cannot be read, so it would differ each time.
            stale = [path for path in stale if path in indexed or self._has_valid_path(path)]
            todo = [*deleted, *stale]
            for start in range(0, len(todo), BATCH):
                await self._compare(todo[start : start + BATCH], self._window_now())
            # A rebuilt index lacks this mark, which tells the watcher to reconcile again.
            await self._index.mark_reconciled(self._clock.now())
            return sum(path not in self._unreadable for path in todo)

    async def was_reconciled(self) -> bool:
        """Return whether the index still is one that was reconciled; another process may have rebuilt a shared one."""
        return not self._index.is_shared or await self._index.was_reconciled()

    async def reindex(self, after: str, limit: int) -> MaintenanceStep:
        """Reindex the next notes in the order of their paths, even unchanged ones."""
        indexed = await self._index.file_states()
        files = {stat.path for stat in await self._walk()}
        if deleted := [path for path in indexed if path not in files and path > after]:
            await self.check_files(deleted)
        todo = sorted(path for path in files if path > after)
        done = [path for path in todo[:limit] if await self._reindex_file(path, indexed)]
        return MaintenanceStep(len(done), len(files), todo[limit - 1] if len(todo) > limit else None)

    async def _reindex_file(self, path: str, indexed: Mapping[str, IndexedFileState]) -> bool:
        """Reindex a file; return whether the index has it now."""
        with self._updates.track([path]) as shared:
            try:
                note = await self._vault.read(path)
            except NO_NOTE:
                return False  # deleted since the walk (the watcher receives the event), or not a valid path in a vault
            except UnreadablePath as error:
                self._leave_out(path, error)
                return False
            await self._report_disk_changes([note], [], indexed)
            entries = await self._upsert([note], self._window_now(), force=True)
        await self._recheck([note], shared)
        return bool(entries)

    async def verify(self, after: str, limit: int) -> MaintenanceStep:
        """Compare the next notes with the index by their bytes, without changing anything."""
        indexed = await self._index.file_states()
        stats = await self._vault.walk()
        too_large = {stat.path for stat in stats if stat.size > MAX_NOTE_BYTES}
        files = {stat.path for stat in stats if stat.path not in too_large or _is_note(stat.path)}
        todo = sorted(path for path in files | set(indexed) if path > after)
        differences = list[IndexDifference]()
        for path in todo[:limit]:
            is_left_out = path in too_large and path not in indexed
            problem = "too_large" if is_left_out else await self._find_problem(path, indexed.get(path))
            if problem is not None:
                differences.append(IndexDifference(path, problem))
        total = len(files | set(indexed))
        # Without files that are not text, which the index does not have either.
        done = len({*indexed.keys() & set(todo[:limit]), *(difference.path for difference in differences)})
        return MaintenanceStep(done, total, todo[limit - 1] if len(todo) > limit else None, differences)

    async def _find_problem(self, path: str, indexed: IndexedFileState | None) -> DifferenceProblem | None:
        try:
            note = await self._vault.read(path)
        except NO_NOTE as error:
            if indexed is None:
                return "invalid_name" if isinstance(error, InvalidPath) and _is_note(path) else None
            return "gone"
        except UnreadablePath:
            return "missing" if indexed is None else "stale"
        if indexed is None:
            if documents.parse_document(path, note.content) is not None:
                return "missing"
            return "not_utf8" if _is_note(path) else None
        return None if indexed.raw_hash == note.hash else "stale"

    async def _compare(self, paths: list[str], window: ChangeWindow) -> list[Stat]:
        """Bring these files into the index; return those that were new or different."""
        found = list[Stat]()
        while paths:
            with self._updates.track(paths) as shared:
                notes, missing, paths = await self._read_first(paths)
                different = await self._update(notes, missing, window)
            await self._recheck([*different, *missing], shared)
            found += [note.stat for note in different]
        return found

    async def _update(self, notes: Sequence[Note], deleted: Sequence[str], window: ChangeWindow) -> list[Note]:
        """Bring these notes into the index, without the deleted ones; return those that were new or different."""
        paths = [*(note.path for note in notes), *deleted]
        indexed = await self._index.file_states_of(paths)
        await self._report_disk_changes(notes, deleted, indexed)
        different = [n for n in notes if (state := indexed.get(n.path)) is None or state.raw_hash != n.hash]
        if different:
            await self._upsert(different, window)
        # Same bytes, new time: unless the time is stored, each reconciliation would read the file again.
        changed = {note.path for note in different}
        same = [note.stat for note in notes if note.path not in changed]
        touched = [stat for stat in same if not self._is_current(indexed.get(stat.path), stat)]
        if touched:
            await self._index.touch(touched)
        if deleted:
            await self._delete(deleted)
        return different

    async def _read_first(self, paths: Sequence[str]) -> tuple[list[Note], list[str], list[str]]:
        """Read files until BATCH_BYTES; return their notes, the paths that have none, and the paths that are left.

        Leaves out files that may not be read.
        """
        notes, missing, left, size = list[Note](), list[str](), list(paths), 0
        while left and size < BATCH_BYTES:
            path = left.pop(0)
            try:
                if self.is_excluded(path):
                    raise NoSuchNote(path)  # as if deleted: the index may still have it
                notes.append(await self._vault.read(path))
                size += notes[-1].stat.size
                self._unreadable.discard(path)
            except NO_NOTE:
                missing.append(path)
                self._unreadable.discard(path)
            except UnreadablePath as error:
                self._leave_out(path, error)
        return notes, missing, left

    async def _report_disk_changes(
        self, notes: Sequence[Note], deleted: Sequence[str], indexed: Mapping[str, IndexedFileState]
    ) -> None:
        """Report those of these files that were indexed with other bytes: most are new or only touched."""
        if self.on_disk_change is None:
            return
        changes = [
            DiskChange(note.path, state.raw_hash, state.modified_at, note)
            for note in notes
            if (state := indexed.get(note.path)) is not None and state.raw_hash != note.hash
        ]
        changes += [
            DiskChange(path, state.raw_hash, state.modified_at, None)
            for path in deleted
            if (state := indexed.get(path)) is not None and not self.is_excluded(path)
        ]
        if changes:
            await self.on_disk_change(changes)

    def _is_current(self, indexed: IndexedFileState | None, stat: Stat) -> bool:
        """Return whether a file has the size and time of its last check, in the index or among non-text files."""
        state = self._unindexed.get(stat.path) if indexed is None else (indexed.size, indexed.modified_at)
        return state == (stat.size, stat.modified_at)


def _is_note(path: str) -> bool:
    """Return whether a person expects the file in the index: nobody misses an image there."""
    return path.lower().endswith(".md")


async def _parse_entry_async(note: Note) -> IndexEntry | None:
    return await in_thread_if_long(len(note.content), INLINE_BYTES, parse_entry, note)
