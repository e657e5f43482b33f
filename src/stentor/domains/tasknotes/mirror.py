"""Mirrors tasks as notes in the vault: asynchronously, in batches, and without delaying any task.

The hub reports changed tasks after their commit. A note is written a moment after the first change, from the row as it
is then, so a task that changes quickly is written once. Under load the pauses between batches grow. A cursor in the
database says up to which event all notes are written; the next process continues from it. `VaultMaintenance` at the end
runs `stentor reindex` and `stentor verify` over the index of the notes and then over the task notes.
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
from typing import get_args

import msgspec

from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx
from stentor.core.errors import ServiceUnavailable, StentorError
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventType, RunLogEvent
from stentor.domains.memory.index.protocols import IndexDifference, IndexMaintenance, MaintenanceStep
from stentor.domains.tasknotes import render, store
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor.domains.tasknotes.pending_changes import PendingChanges
from stentor.domains.tasks.reading import list_queries
from stentor.domains.tasks.reading.list_model import TaskFilter
from stentor_vault.notes.files import projection
from stentor_vault.notes.model import NameTaken, NoSuchNote, VaultUnavailable

TASKS_PER_BATCH = 64
EVENTS_PER_PAGE = 512
"""Events of the run log that are read at a time."""
NOT_IN_NOTES = frozenset(("step_started", "step_completed", "step_failed", "signal_received"))
"""Events that change nothing in a task's note; a task may have thousands of them."""
DEBOUNCE_SECONDS = 0.2
"""Time from a change to its note, so that a short task is written once."""
MIN_PAUSE_SECONDS = 0.002
CHANGES_PER_PAUSE_STEP, MAX_PAUSE_FACTOR = 100, 19
"""At this many changes per second the pause is as long as the work, at twice as many twice as long, and so on up to the
factor."""
RETRY_SECONDS = 1.0
CURSOR_SAVE_SECONDS = 1.0
"""Time between two writes of the cursor."""
HEARTBEATS_PER_LEASE = 6
"""Heartbeats of a writer on a shared database within the time after which others take over its cursor."""
END_OF_TIME_US = 2**62
"""Later than any time: on a database that is not shared every other cursor is stale, even if the clock was set back."""
UNSYNCED_MS = 60_000
"""A start replays this many milliseconds before the cursor: notes lost in a power cut are younger."""
STOP_TIMEOUT_SECONDS = 2.0
TASKS_CURSOR_PREFIX = "/tasks/"
"""Begins the cursor of a maintenance run that has reached the task notes; no path of a vault begins so."""
MAX_TASKS_PER_STEP = 200
"""Maximum number of tasks of one maintenance step: each may be long."""
log = logging.getLogger(__name__)


class TaskNoteMirror:
    """Background job that writes the task notes of one tenant.

    With `shared`, other processes write to the same database, and take over the cursor of a process that sent no
    heartbeat for `lease` microseconds.
    """

    def __init__(self, db: Database, hub: Hub, root: Path, tenant: str, lease: int, *, shared: bool) -> None:
        self._db = db
        self._root = root
        self._tenant = tenant
        self._lease, self._heartbeat_seconds = lease, lease / SECOND / HEARTBEATS_PER_LEASE
        self._shared = shared
        self._writer_id = ids.new_id() if shared else "local"
        self._saved_cursor, self._saved_at, self._heartbeat_at = "", 0.0, 0.0
        self._is_outage_logged = False
        self._wake = asyncio.Event()
        self._lock = threading.Lock()
        self.changes = PendingChanges(tenant)
        hub.listen(self._on_task_changed, frozenset(get_args(EventType)) - NOT_IN_NOTES)

    def _on_task_changed(self, tenant: str, task_id: str, events: list[RunLogEvent]) -> None:
        # Only remembers the change; `run` writes it.
        self.changes.record_events(tenant, task_id, events)
        self._wake.set()

    async def start(self) -> None:
        """Continue from the cursor of the previous process. Raises StoreUnavailable."""
        await self._adopt_cursors()

    async def _adopt_cursors(self) -> None:
        own_position = self.changes.low_water_mark() or ids.new_id()

        def work(tx: Tx) -> str:
            return store.adopt_cursors(
                tx, self._writer_id, own_position, tx.now - self._lease if self._shared else END_OF_TIME_US
            )

        start = await self._db.write(work)
        self._saved_cursor, self._heartbeat_at = start, time.monotonic()
        if start < own_position:
            self.changes.require_replay(ids.rewind(start, UNSYNCED_MS))
            self._wake.set()

    async def run(self) -> None:
        """Run forever; waits out outages of the database and of the vault."""
        while True:
            await self._wait()
            try:
                await self._write_pending()
                self._is_outage_logged = False
            except StentorError as error:
                self._log_outage(error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                # Fails open: an unexpected error must not end the job.
                log.exception("task notes: write failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _wait(self) -> None:
        if self.changes.is_idle:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_seconds()):
                    await self._wake.wait()
        await asyncio.sleep(DEBOUNCE_SECONDS)

    def _idle_seconds(self) -> float | None:
        """Return after which time without a change something is due all the same."""
        if self.changes.low_water_mark() not in ("", self._saved_cursor):
            return CURSOR_SAVE_SECONDS
        # An idle process must send heartbeats too, or others would take over its cursor.
        return self._heartbeat_seconds if self._shared else None

    async def _write_pending(self) -> None:
        """Write the pending changes, with pauses in proportion to the load.

        The cursor is saved once a second, and when nothing has changed for a second: not for each task, because it is
        a commit, for which the task's own ones would wait.
        """
        last_count, last_time = self.changes.event_batches, time.monotonic()
        if self.changes.is_idle:
            await self._save_cursor(last_time, at_once=True)
        while not self.changes.is_idle:
            started = time.monotonic()
            is_full = await self._write_batch()
            now = time.monotonic()
            changes_per_second = (self.changes.event_batches - last_count) / max(now - last_time, 1e-3)
            pause_factor = min(MAX_PAUSE_FACTOR, changes_per_second / CHANGES_PER_PAUSE_STEP)
            await self._save_cursor(now)
            last_count, last_time = self.changes.event_batches, now
            if not is_full:
                return  # a batch of one task takes nearly as long as one of many
            await asyncio.sleep(max(MIN_PAUSE_SECONDS, (now - started) * pause_factor))

    async def _write_batch(self) -> bool:
        """Write one batch of changed tasks; if there is none, one page of the run log. Return whether more may wait."""
        if task_ids := self.changes.take_batch(TASKS_PER_BATCH):
            try:
                await self._write(task_ids)
            # Also for a cancelled stop: its tasks must keep the cursor back.
            except BaseException:
                self.changes.restore_batch()
                raise
            self.changes.commit_batch()
        else:
            await self._replay_page()
        return len(task_ids) == TASKS_PER_BATCH or self.changes.replay_after is not None

    async def _replay_page(self) -> None:
        if self.changes.can_resume:
            # Collect changes before reading the end of the log: an event in between would be lost otherwise.
            self.changes.resume()
            newest = await self._db.read(store.get_latest_event_id)
            # The later of the two, because the ids of other machines follow their own clocks.
            self.changes.replay_until = max(newest, ids.new_id())
        after, until = self.changes.replay_after, self.changes.replay_until
        if after is None or until is None:
            return
        task_ids, end = await self._db.read(lambda tx: store.list_changed_tasks(tx, after, until, EVENTS_PER_PAGE))
        for start in range(0, len(task_ids), TASKS_PER_BATCH):
            # Compared, because most of the notes of a replay are already right.
            await self._write(task_ids[start : start + TASKS_PER_BATCH], compare=True)
        self.changes.finish_page(until, end)

    async def _write(self, task_ids: list[str], *, compare: bool = False) -> None:
        try:
            await self._write_together(task_ids, compare=compare)
        # These concern the folder and not one record, so trying task by task would not help.
        except (ServiceUnavailable, NameTaken, NoSuchNote):
            raise
        except OSError as error:
            raise VaultUnavailable(f"The vault's folder {self._root} cannot be written: {error.strerror}.") from error
        except Exception:
            if len(task_ids) == 1:
                # Fails open: one record that cannot be rendered must not stop the others.
                log.exception("task notes: note skipped task_id=%r", task_ids[0])
                return
            for task_id in task_ids:
                await self._write([task_id], compare=compare)

    async def _write_together(self, task_ids: list[str], *, compare: bool) -> None:
        records = await self._db.read(lambda tx: store.get_records(tx, self._tenant, task_ids))
        await asyncio.to_thread(self._write_files, records, compare)
        # Only there can another process have written a newer note between our read and our write.
        if self._shared:
            await self._requeue_changed(records)

    async def _requeue_changed(self, written: list[TaskNoteRecord]) -> None:
        """Write tasks again that changed in the meantime: this batch may have overwritten a newer note."""
        task_ids = [record.task_id for record in written]
        current = await self._db.read(lambda tx: store.get_records(tx, self._tenant, task_ids))
        heads = {record.task_id: record.head_id for record in current}
        self.changes.requeue(record.task_id for record in written if heads.get(record.task_id) != record.head_id)

    def _write_files(self, records: Iterable[TaskNoteRecord], compare: bool) -> int:
        """Render and write notes, in a thread. With `compare`, only those that differ. Return how many were written."""
        folders: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        for record in records:
            note = render.render_note(self._tenant, record)
            folders[note.folder].append((note.name, note.content))
        # A temporary name per process; the lock keeps two threads of this process from sharing it.
        temp_name = f".stentor-task-{self._writer_id}"
        with self._lock:
            return sum(
                projection.write_projection(self._root, folder, notes, temp_name=temp_name, skip_unchanged=compare)
                for folder, notes in folders.items()
            )

    async def _save_cursor(self, now: float, *, at_once: bool = False) -> None:
        """Save the cursor if it is due; on a shared database also send the heartbeat and take over stale cursors."""
        cursor = self.changes.low_water_mark()
        is_due = at_once or now - self._saved_at >= CURSOR_SAVE_SECONDS
        is_heartbeat_due = self._shared and now - self._heartbeat_at >= self._heartbeat_seconds
        if is_heartbeat_due:
            await self._send_heartbeat()
        elif is_due and cursor not in ("", self._saved_cursor):
            await self._db.write(lambda tx: store.set_cursor(tx, self._writer_id, cursor))
            self._saved_cursor, self._saved_at = cursor, now

    async def _send_heartbeat(self) -> None:
        # Our own cursor first: with a stale one we would take over from ourselves and replay for nothing.
        await self._db.write(
            lambda tx: store.set_cursor(tx, self._writer_id, self.changes.low_water_mark() or self._saved_cursor)
        )
        await self._adopt_cursors()

    async def rewrite_notes(self, records: list[TaskNoteRecord]) -> int:
        """Write the notes that are missing or different. Return how many were."""
        count = await asyncio.to_thread(self._write_files, records, True)
        # `run` may have written newer notes since these records were read.
        await self._requeue_changed(records)
        self._wake.set()
        return count

    async def find_differing(self, records: list[TaskNoteRecord]) -> list[tuple[str, bool]]:
        """Return the paths of notes that are missing or different, and whether there is a file.

        Skips tasks whose notes are about to be written.
        """

        def compare() -> list[tuple[str, bool]]:
            paths: list[tuple[str, bool]] = []
            for record in records:
                if record.task_id not in self.changes:
                    note = render.render_note(self._tenant, record)
                    differing = projection.find_differing(self._root, note.folder, [(note.name, note.content)])
                    paths += [(note.path, has_file) for _, has_file in differing]
            return paths

        return await asyncio.to_thread(compare)

    async def stop(self) -> None:
        """Write pending notes for at most `STOP_TIMEOUT_SECONDS`; the next start writes the rest."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                while len(self.changes):
                    await self._write_batch()
            await self._save_cursor(time.monotonic(), at_once=True)
        except (TimeoutError, StentorError):
            log.info("task notes: left to the next start pending=%d", len(self.changes))

    def _log_outage(self, error: StentorError) -> None:
        """Log the first error of an outage only."""
        if not self._is_outage_logged:
            log.error("task notes: waiting for the vault or the database reason=%s", error)
            self._is_outage_logged = True


class VaultMaintenance:
    """Reindexes and verifies the whole vault. `first` handles the notes of users and agents."""

    def __init__(self, first: IndexMaintenance, mirror: TaskNoteMirror, db: Database, tenant: str) -> None:
        self._first = first
        self._mirror = mirror
        self._db = db
        self._tenant = tenant

    async def reindex(self, after: str, limit: int) -> MaintenanceStep:
        """Rebuild the index of the notes, then write the task notes that are missing or altered."""
        if not after.startswith(TASKS_CURSOR_PREFIX):
            return await self._with_task_count(await self._first.reindex(after, limit))
        records, step = await self._read_page(after, limit)
        await self._mirror.rewrite_notes(records)
        return step

    async def verify(self, after: str, limit: int) -> MaintenanceStep:
        """Compare the notes with the index, then the tasks with their notes; change nothing."""
        if not after.startswith(TASKS_CURSOR_PREFIX):
            return await self._with_task_count(await self._first.verify(after, limit))
        records, step = await self._read_page(after, limit)
        differing = await self._mirror.find_differing(records)
        differences = [IndexDifference(path, "altered" if has_file else "unwritten") for path, has_file in differing]
        return msgspec.structs.replace(step, differences=differences)

    async def _with_task_count(self, step: MaintenanceStep) -> MaintenanceStep:
        task_count = await self._count()
        next_cursor = step.next or (TASKS_CURSOR_PREFIX if task_count else None)
        return MaintenanceStep(step.done, step.total + task_count, next_cursor, step.differences)

    async def _read_page(self, after: str, limit: int) -> tuple[list[TaskNoteRecord], MaintenanceStep]:
        created_at, _, task_id = after.removeprefix(TASKS_CURSOR_PREFIX).partition("/")
        # The cursor comes from a client: fewer than 19 digits fit the column, anything else starts from the beginning.
        since = int(created_at) if created_at.isascii() and created_at.isdigit() and len(created_at) < 19 else -1
        limit = min(limit, MAX_TASKS_PER_STEP)

        def read(tx: Tx) -> list[TaskNoteRecord]:
            return store.list_records_after(tx, self._tenant, since, task_id, limit)

        records = await self._db.read(read)
        has_more = len(records) == limit
        next_cursor = f"{TASKS_CURSOR_PREFIX}{records[-1].created_at}/{records[-1].task_id}" if has_more else None
        return records, MaintenanceStep(len(records), await self._count(), next_cursor, what="tasks")

    async def _count(self) -> int:
        return await self._db.read(lambda tx: list_queries.count_tasks(tx, self._tenant, TaskFilter()))
