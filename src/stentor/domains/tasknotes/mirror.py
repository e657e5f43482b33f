"""Writes each task's note after the task moved: later, at leisure, and never in a task's way.

The hub says which tasks changed, after their commit. Tasks that move quickly are written once, because a
note is written a moment after the first change, from the row as it is then. The more tasks move, the longer
the mirror rests between its batches. A cursor in the database says up to which event all is
written; the next process begins there.

`stentor reindex` and `stentor verify` over the whole vault: the notes' index first, then the tasks' notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx
from stentor.core.errors import ServiceUnavailable, StentorError
from stentor.core.live import Hub
from stentor.domains.memory.index.indexer import IndexDifference, IndexMaintenance, MaintenanceStep
from stentor.domains.notes import batch_io
from stentor.domains.notes.model import NameTaken, NoSuchNote, VaultUnavailable
from stentor.domains.tasknotes import model, render, store
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor.domains.tasknotes.pending_changes import PendingChanges
from stentor.domains.tasks import queries
from stentor.domains.tasks.model import TaskFilter

TASKS_PER_BATCH = 64
EVENTS_PER_PAGE = 512
"""Events of the run log read at a time."""
DEBOUNCE_SECONDS = 0.2
"""Between a change and its note, so that a task that is quickly done is written once."""
MIN_PAUSE_SECONDS = 0.002
CHANGES_PER_PAUSE_STEP, MAX_PAUSE_FACTOR = 100, 19
"""For so many changes a second the mirror rests as long as it worked, for twice as many twice as long, up to this."""
RETRY_SECONDS = 1.0
CURSOR_SAVE_SECONDS = 1.0
"""Between two writes of the cursor."""
HEARTBEATS_PER_LEASE = 6
"""Signs of life that a writer who shares its database gives before others may take it for gone."""
END_OF_TIME_US = 2**62
"""After any time: nobody else writes to a database that is not shared, even if the clock was set back."""
UNSYNCED_MS = 60_000
"""The cursor trails by this at a start: what a power cut takes of notes is younger."""
STOP_TIMEOUT_SECONDS = 2.0
log = logging.getLogger(__name__)


class TaskNoteMirror:
    """`shared`: other processes may write to the same database, and take over from one that gave no sign of life for
    `lease` microseconds.
    """

    def __init__(self, db: Database, hub: Hub, root: Path, tenant: str, lease: int, *, shared: bool) -> None:
        self._db = db
        self._root = root
        self._tenant = tenant
        self._lease, self._beat_seconds = lease, lease / SECOND / HEARTBEATS_PER_LEASE
        self._shared = shared
        self._writer_id = ids.new_id() if shared else "local"
        self._kept, self._kept_at, self._beat_at = "", 0.0, 0.0
        self._told = False
        self._wake = asyncio.Event()
        self._lock = threading.Lock()
        self.changes = PendingChanges(tenant)
        hub.listeners.append(self._saw)

    def _saw(self, tenant: str, task_id: str, events: list[object]) -> None:
        self.changes.record_events(tenant, task_id, events)
        self._wake.set()

    async def start(self) -> None:
        """Take over from the process before. Raises StoreUnavailable."""
        await self._adopt()

    async def _adopt(self) -> None:
        own = self.changes.low_water_mark() or ids.new_id()

        def work(tx: Tx) -> str:
            return store.adopt_cursors(
                tx, self._writer_id, own, tx.now - self._lease if self._shared else END_OF_TIME_US
            )

        start = await self._db.write(work)
        self._kept, self._beat_at = start, time.monotonic()
        if start < own:
            self.changes.require_replay(model.rewind_cursor(start, UNSYNCED_MS))
            self._wake.set()

    async def run(self) -> None:
        """For ever; outages of the database and of the vault are waited out."""
        while True:
            await self._wait()
            try:
                await self._work()
                self._told = False
            except StentorError as error:
                self._tell(error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                # Fails open: a note that breaks the mirror must not end all later ones.
                log.exception("task notes could not be written")
                await asyncio.sleep(RETRY_SECONDS)

    async def _wait(self) -> None:
        if self.changes.is_idle:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat_seconds if self._shared else None):
                    await self._wake.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)

    async def _work(self) -> None:
        """Everything that waits now, with rests between."""
        seen, at = self.changes.event_batches, time.monotonic()
        while not self.changes.is_idle:
            began = time.monotonic()
            await self._round()
            now = time.monotonic()
            rest = min(
                MAX_PAUSE_FACTOR, (self.changes.event_batches - seen) / max(now - at, 1e-3) / CHANGES_PER_PAUSE_STEP
            )
            await self._keep(now)
            seen, at = self.changes.event_batches, now
            await asyncio.sleep(max(MIN_PAUSE_SECONDS, (now - began) * rest))
        await self._keep(time.monotonic(), at_once=True)

    async def _round(self) -> None:
        """One batch of what changed, else one page of the run log."""
        if task_ids := self.changes.take_batch(TASKS_PER_BATCH):
            try:
                await self._write(task_ids)
            except BaseException:
                self.changes.restore_batch()
                raise
            self.changes.commit_batch()
        else:
            await self._catch_up()

    async def _catch_up(self) -> None:
        if self.changes.can_resume:
            self.changes.resume()
            newest = await self._db.read(store.get_latest_event_id)
            self.changes.replay_until = max(newest, ids.new_id())
        after, until = self.changes.replay_after, self.changes.replay_until
        if after is None or until is None:
            return
        task_ids, end = await self._db.read(lambda tx: store.list_changed_tasks(tx, after, until, EVENTS_PER_PAGE))
        for at in range(0, len(task_ids), TASKS_PER_BATCH):
            await self._write(task_ids[at : at + TASKS_PER_BATCH], compare=True)
        self.changes.finish_page(until, end)

    async def _write(self, task_ids: list[str], *, compare: bool = False) -> None:
        try:
            await self._write_together(task_ids, compare=compare)
        except (ServiceUnavailable, NameTaken, NoSuchNote):
            raise
        except OSError as error:
            raise VaultUnavailable(f"The vault's folder {self._root} cannot be written: {error.strerror}.") from error
        except Exception:
            if len(task_ids) == 1:
                # Fails open: one record that cannot be shown must not keep back all others.
                log.exception("task %r gets no note", task_ids[0])
                return
            for task_id in task_ids:
                await self._write([task_id], compare=compare)

    async def _write_together(self, task_ids: list[str], *, compare: bool) -> None:
        found = await self._db.read(lambda tx: store.get_records(tx, self._tenant, task_ids))
        await asyncio.to_thread(self._write_now, found, compare)
        if self._shared:
            await self._look_again(found)

    async def _look_again(self, written: list[TaskNoteRecord]) -> None:
        """Another process may have written a newer state before ours was put over it."""
        task_ids = [record.task_id for record in written]
        now = await self._db.read(lambda tx: store.get_records(tx, self._tenant, task_ids))
        heads = {record.task_id: record.head_id for record in now}
        self.changes.requeue(record.task_id for record in written if heads.get(record.task_id) != record.head_id)

    def _write_now(self, records: Iterable[TaskNoteRecord], compare: bool) -> int:
        folders: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        for record in records:
            made = render.render_note(self._tenant, record)
            folders[made.folder].append((made.name, made.content))
        aside = f".stentor-task-{self._writer_id}"
        with self._lock:
            return sum(
                batch_io.write_projection(self._root, folder, notes, temp_name=aside, skip_unchanged=compare)
                for folder, notes in folders.items()
            )

    async def _keep(self, now: float, *, at_once: bool = False) -> None:
        """The cursor into the database, and now and then a look for writers that are gone."""
        low = self.changes.low_water_mark()
        due = at_once or now - self._kept_at >= CURSOR_SAVE_SECONDS
        beat = self._shared and now - self._beat_at >= self._beat_seconds
        if beat:
            await self._adopt_others()
        elif due and low not in ("", self._kept):
            await self._db.write(lambda tx: store.set_cursor(tx, self._writer_id, low))
            self._kept, self._kept_at = low, now

    async def _adopt_others(self) -> None:
        await self._db.write(
            lambda tx: store.set_cursor(tx, self._writer_id, self.changes.low_water_mark() or self._kept)
        )
        await self._adopt()

    async def rewrite_notes(self, records: list[TaskNoteRecord]) -> int:
        """Write these notes where they are missing or different; answers how many were."""
        return await asyncio.to_thread(self._write_now, records, True)

    async def find_differing(self, records: list[TaskNoteRecord]) -> list[tuple[str, bool]]:
        """Paths of notes that are missing or different, with whether there is a file; not those about to be written."""

        def look() -> list[tuple[str, bool]]:
            found: list[tuple[str, bool]] = []
            for record in records:
                if record.task_id not in self.changes:
                    made = render.render_note(self._tenant, record)
                    differing = batch_io.find_differing(self._root, made.folder, [(made.name, made.content)])
                    found += [(made.path, there) for _, there in differing]
            return found

        return await asyncio.to_thread(look)

    async def stop(self) -> None:
        """Write what waits, for a moment; the rest is the next start's."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                while len(self.changes):
                    await self._round()
            await self._keep(time.monotonic(), at_once=True)
        except (TimeoutError, StentorError):
            log.info("%d task notes are left to the next start", len(self.changes))

    def _tell(self, error: StentorError) -> None:
        if not self._told:
            log.error("task notes wait: %s", error.message)
            self._told = True


TASKS_CURSOR_PREFIX = "/tasks/"
"""Of a step's `next` once the tasks' notes are in turn; no path of a vault begins like this."""
MAX_TASKS_PER_STEP = 200
"""Tasks of one step: each may be long."""


class VaultMaintenance:
    """`first` goes over the notes of people and agents."""

    def __init__(self, first: IndexMaintenance, mirror: TaskNoteMirror, db: Database, tenant: str) -> None:
        self._first = first
        self._mirror = mirror
        self._db = db
        self._tenant = tenant

    async def reindex(self, after: str, most: int) -> MaintenanceStep:
        """Index notes anew; then write the tasks' notes that are missing or altered."""
        if not after.startswith(TASKS_CURSOR_PREFIX):
            return await self._with_tasks(await self._first.reindex(after, most))
        records, step = await self._tasks(after, most)
        await self._mirror.rewrite_notes(records)
        return step

    async def verify(self, after: str, most: int) -> MaintenanceStep:
        """Compare notes with the index, then tasks with their notes; changes nothing."""
        if not after.startswith(TASKS_CURSOR_PREFIX):
            return await self._with_tasks(await self._first.verify(after, most))
        records, step = await self._tasks(after, most)
        differing = await self._mirror.find_differing(records)
        found = [IndexDifference(path, "altered" if there else "unwritten") for path, there in differing]
        return MaintenanceStep(step.done, step.total, step.next, found)

    async def _with_tasks(self, step: MaintenanceStep) -> MaintenanceStep:
        tasks = await self._count()
        return MaintenanceStep(
            step.done, step.total + tasks, step.next or (TASKS_CURSOR_PREFIX if tasks else None), step.differences
        )

    async def _tasks(self, after: str, most: int) -> tuple[list[TaskNoteRecord], MaintenanceStep]:
        time, _, task_id = after.removeprefix(TASKS_CURSOR_PREFIX).partition("/")
        since = int(time) if time.isascii() and time.isdigit() and len(time) < 19 else -1
        most = min(most, MAX_TASKS_PER_STEP)

        def read(tx: Tx) -> list[TaskNoteRecord]:
            return store.list_records_after(tx, self._tenant, since, task_id, most)

        found = await self._db.read(read)
        end = f"{TASKS_CURSOR_PREFIX}{found[-1].created_at}/{found[-1].task_id}" if len(found) == most else None
        return found, MaintenanceStep(len(found), await self._count(), end)

    async def _count(self) -> int:
        return await self._db.read(lambda tx: queries.count_tasks(tx, self._tenant, TaskFilter()))
