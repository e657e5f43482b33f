"""How far an index is behind, in seconds: measured, from a change to its being found.

Brings notes into the index: one after a write, some after an edit in the folder, all by comparing now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from stentor.core.clock import SECOND, Clock, micros_from_datetime
from stentor.core.metrics import LONG_BUCKETS_S, Histogram
from stentor.domains.memory import documents
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.model import IndexedFileState, IndexEntry, build_entry
from stentor.domains.notes.model import NO_FILE, NoSuchNote, Note, Stat, Vault
from stentor.domains.notes.paths import InvalidPath

LAG_SAMPLES = 256
CLOCK_MARGIN_US = SECOND
"""How late the system may tell of a change, in microseconds."""


class ChangeWindow(msgspec.Struct, frozen=True):
    """When files were looked at, and when they were before that; in microseconds."""

    start: int
    end: int

    def changed_at(self, stat: Stat) -> int:
        """When a change that is seen now was made: at the file's time, unless that is older than the look before.

        A file that was moved or copied here may be as old as any.
        """
        time = max(stat.modified_at, stat.created_at)
        return time if self.start - CLOCK_MARGIN_US <= time <= self.end else self.end


class SyncLag:
    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LAG_SAMPLES)
        self.histogram = Histogram(LONG_BUCKETS_S)
        """Of all changes since the start."""

    def add(self, lag_s: float) -> None:
        self._last.append(lag_s)
        self.histogram.observe(lag_s)

    @property
    def last(self) -> float:
        return self._last[-1] if self._last else 0.0

    @property
    def p95(self) -> float:
        """Of the latest changes; 0 before the first."""
        ordered = sorted(self._last)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] if ordered else 0.0


BATCH = 64
INLINE_BYTES = 8_000
MAX_RECENT = 10_000
"""Files of which it is known that they were just indexed."""
ReconcileProgress = Callable[[int, int], None]
log = logging.getLogger(__name__)


DifferenceProblem = Literal["missing", "stale", "gone", "unwritten", "altered"]


class IndexDifference(msgspec.Struct, frozen=True):
    """A note that is not in the index, is another there, or is only there; or of a task, not written or altered."""

    path: str
    problem: DifferenceProblem


class MaintenanceStep(msgspec.Struct, frozen=True):
    """A part of a long work over all notes: how many were done of how many, and after which path it goes on."""

    done: int
    total: int
    next: str | None
    differences: list[IndexDifference] = []


class IndexMaintenance(Protocol):
    """A long work over the whole vault; `after` is the `next` of the step before, empty at the begin."""

    async def reindex(self, after: str, most: int) -> MaintenanceStep: ...

    async def verify(self, after: str, most: int) -> MaintenanceStep: ...


class Indexer:
    """`on_put` is called with the documents that are new or different: their ids, and since when they are.

    Paths that `skips` says yes to are not indexed; the vault's `walk` is to leave them out.
    """

    def __init__(
        self, vault: Vault, index: SearchIndex, clock: Clock, is_excluded: Callable[[str], bool] = lambda path: False
    ) -> None:
        self.is_excluded = is_excluded
        self._vault = vault
        self._index = index
        self._clock = clock
        self._reconciling = asyncio.Lock()
        self._just_indexed: dict[str, tuple[int, int]] = {}
        self._no_text: dict[str, tuple[int, int]] = {}
        self._looked_at = clock.now()
        self.lag = SyncLag()
        self.on_indexed: Callable[[dict[int, int]], None] = lambda since: None

    def start_window(self) -> ChangeWindow:
        """To be called when changes come to light: what is looked at because of them changed since the call before."""
        look = ChangeWindow(self._looked_at, self._clock.now())
        self._looked_at = look.end
        return look

    def _now(self) -> ChangeWindow:
        now = self._clock.now()
        return ChangeWindow(now, now)

    async def index_notes(
        self, notes: Sequence[Note], *, force: bool = False, window: ChangeWindow | None = None
    ) -> None:
        """Index these notes, in one transaction, even those that seem to be (`anew`). One that is no text is forgotten.

        Where others write to the index too, a note may have changed since it was read here: then it is looked at again.
        """
        window = window or self._now()
        pairs = [(note, None if self.is_excluded(note.path) else await _parse_entry_async(note)) for note in notes]
        self._no_text |= {note.path: (note.stat.size, note.stat.modified_at) for note, made in pairs if made is None}
        entries, gone = [made for _, made in pairs if made is not None], [n.path for n, made in pairs if made is None]
        changed = await self._index.upsert(entries, gone, self._clock.now(), force=force)
        self._remember([note.stat for note in notes])
        if changed:
            stats = {note.path: note.stat for note in notes}
            self.on_indexed({doc_id: window.changed_at(stats[path]) for path, doc_id in changed.items()})
        if self._index.is_shared:
            await self._check({note.path: note.hash for note in notes})

    async def _check(self, put: Mapping[str, str]) -> None:
        """Paths to the hashes that the index has now because of this process, empty for none."""
        if moved := [path for path, state in put.items() if await self._hash(path) != state]:
            await self.check_files(moved)

    async def _hash(self, path: str) -> str:
        if self.is_excluded(path):
            return NO_FILE
        try:
            return (await self._vault.read(path)).hash
        except (NoSuchNote, InvalidPath):
            return NO_FILE

    def was_just_indexed(self, path: str, size: int, modified_at: int) -> bool:
        """Whether a file with this size and time (in microseconds) was indexed a moment ago."""
        return self._just_indexed.get(path) == (size, modified_at)

    def _remember(self, stats: list[Stat]) -> None:
        if len(self._just_indexed) > MAX_RECENT:
            self._just_indexed.clear()
        self._just_indexed.update((stat.path, (stat.size, stat.modified_at)) for stat in stats)

    async def remove(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        for path in wanted:
            self._just_indexed.pop(path, None)
        await self._index.delete(wanted)
        if self._index.is_shared:
            await self._check(dict.fromkeys(wanted, NO_FILE))

    async def check_files(self, paths: Iterable[str], window: ChangeWindow | None = None) -> None:
        """Compare these files with the index: somebody may have changed, made or removed them."""
        window = window or self._now()
        wanted = sorted(set(paths))
        for at in range(0, len(wanted), BATCH):
            changed = await self._compare(wanted[at : at + BATCH], window)
            now = self._clock.now()
            for note in changed:
                self.lag.add(max(0, now - window.changed_at(note.stat)) / SECOND)

    async def check_folder(self, folder: str, window: ChangeWindow | None = None) -> None:
        """The same for all that is in a folder, or was."""
        known = await self._index.paths_under(folder)
        await self.check_files([*known, *(stat.path for stat in await self._vault.walk(folder))], window)

    async def reconcile(self, progress: ReconcileProgress = lambda done, total: None) -> int:
        """Compare the whole vault with the index; answers how many notes were not as indexed."""
        async with self._reconciling:
            self.start_window()
            known = await self._index.file_states()
            found = {stat.path: stat for stat in await self._vault.walk()}
            gone = [path for path in known if path not in found]
            stale = [path for path, stat in found.items() if not self._current(known.get(path), stat)]
            todo = [*gone, *stale]
            for at in range(0, len(todo), BATCH):
                progress(at, len(todo))
                await self._compare(todo[at : at + BATCH], self._now())
            progress(len(todo), len(todo))
            await self._index.mark_reconciled(self._clock.now())
            return len(todo)

    async def was_reconciled(self) -> bool:
        """Whether the index is one that was ever compared with the whole vault."""
        return not self._index.is_shared or await self._index.was_reconciled()

    async def reindex(self, after: str, most: int) -> MaintenanceStep:
        """Index the next notes in the order of the paths anew, whatever the index knows of them."""
        known = await self._index.file_states()
        found = {stat.path for stat in await self._vault.walk()}
        if gone := [path for path in known if path not in found and path > after]:
            await self.remove(gone)
        todo = sorted(path for path in found if path > after)
        for path in todo[:most]:
            try:
                await self.index_notes([await self._vault.read(path)], force=True)
            except NoSuchNote:
                continue  # gone since; the watcher sees it too
        return MaintenanceStep(len(todo[:most]), len(found), todo[most - 1] if len(todo) > most else None)

    async def verify(self, after: str, most: int) -> MaintenanceStep:
        """Compare the next notes with the index, by their bytes; changes nothing."""
        known = await self._index.file_states()
        found = {stat.path for stat in await self._vault.walk()}
        todo = sorted(path for path in found | set(known) if path > after)
        differences = [
            IndexDifference(path, problem)
            for path in todo[:most]
            if (problem := await self._problem(path, known.get(path))) is not None
        ]
        total = len(found | set(known))
        return MaintenanceStep(len(todo[:most]), total, todo[most - 1] if len(todo) > most else None, differences)

    async def _problem(self, path: str, known: IndexedFileState | None) -> DifferenceProblem | None:
        try:
            note = await self._vault.read(path)
        except (NoSuchNote, InvalidPath):
            return "gone" if known is not None else None
        if known is None:
            return None if documents.parse_document(path, note.content) is None else "missing"
        return None if known.raw_hash == note.hash else "stale"

    async def _compare(self, paths: list[str], look: ChangeWindow) -> list[Note]:
        """Answers the notes that were new or different."""
        notes, gone = [], []
        for path in paths:
            try:
                if self.is_excluded(path):
                    raise NoSuchNote(path)
                notes.append(await self._vault.read(path))
            except (NoSuchNote, InvalidPath):
                gone.append(path)
        known = await self._index.file_states_of([note.path for note in notes])
        different = [n for n in notes if (state := known.get(n.path)) is None or state.raw_hash != n.hash]
        if different:
            await self.index_notes(different, window=look)
        touched = [n.stat for n in notes if n not in different and not self._current(known.get(n.path), n.stat)]
        if touched:
            await self._index.touch(touched)
        if gone:
            await self.remove(gone)
        return different

    def _current(self, known: IndexedFileState | None, stat: Stat) -> bool:
        """Whether the file looks as it did when it was indexed, or was found to be no text."""
        seen = self._no_text.get(stat.path) if known is None else (known.size, known.modified_at)
        return seen == (stat.size, stat.modified_at)


async def _parse_entry_async(note: Note) -> IndexEntry | None:
    """Long notes in a thread; a short one takes less time than the hop."""
    return parse_entry(note) if len(note.content) < INLINE_BYTES else await asyncio.to_thread(parse_entry, note)


def parse_entry(note: Note) -> IndexEntry | None:
    """What the index keeps of a note; None for a file that is no text."""
    document = documents.parse_document(note.path, note.content)
    return None if document is None else build_entry(note, document, _created_at(document.frontmatter))


def _created_at(frontmatter: dict[str, Any]) -> int | None:
    given = frontmatter.get("created_at")
    if not isinstance(given, str):
        return None
    try:
        moment = datetime.fromisoformat(given)
        return micros_from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None
