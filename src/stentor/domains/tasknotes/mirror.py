"""Writes each task's note after the task moved: later, at leisure, and never in a task's way.

The hub says which tasks changed, after their commit. Tasks that move quickly are written once, because a
note is written a moment after the first change, from the row as it is then. The more tasks move, the longer
the mirror rests between its batches. A cursor in the database says up to which event all is
written; the next process begins there.
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
from stentor.domains.notes import projection
from stentor.domains.notes.model import NameTaken, NoSuchNote, VaultUnavailable
from stentor.domains.tasknotes import model, render, store
from stentor.domains.tasknotes.changes import Changes
from stentor.domains.tasknotes.model import Record

BATCH = 64
PAGE = 512
"""Events of the run log read at a time."""
SETTLE_SECONDS = 0.2
"""Between a change and its note, so that a task that is quickly done is written once."""
BREATH_SECONDS = 0.002
REST_PER_SECOND, MOST_REST = 100, 19
"""For so many changes a second the mirror rests as long as it worked, for twice as many twice as long, up to this."""
AGAIN_SECONDS = 1.0
KEEP_SECONDS = 1.0
"""Between two writes of the cursor."""
BEATS = 6
"""Signs of life that a writer who shares its database gives before others may take it for gone."""
EVER = 2**62
"""After any time: nobody else writes to a database that is not shared, even if the clock was set back."""
UNFLUSHED_MS = 60_000
"""The cursor trails by this at a start: what a power cut takes of notes is younger."""
LEAVE_SECONDS = 2.0
log = logging.getLogger(__name__)


class Mirror:
    """`shared`: other processes may write to the same database, and take over from one that gave no sign of life for
    `lease` microseconds.
    """

    def __init__(self, db: Database, hub: Hub, root: Path, tenant: str, lease: int, *, shared: bool) -> None:
        self._db = db
        self._root = root
        self._tenant = tenant
        self._lease, self._beat_seconds = lease, lease / SECOND / BEATS
        self._shared = shared
        self._writer_id = ids.new_id() if shared else "local"
        self._kept, self._kept_at, self._beat_at = "", 0.0, 0.0
        self._told = False
        self._wake = asyncio.Event()
        self._lock = threading.Lock()
        self.changes = Changes(tenant)
        hub.listeners.append(self._saw)

    def _saw(self, tenant: str, task_id: str, events: list[object]) -> None:
        self.changes.saw(tenant, task_id, events)
        self._wake.set()

    async def start(self) -> None:
        """Take over from the process before. Raises StoreUnavailable."""
        await self._adopt()

    async def _adopt(self) -> None:
        own = self.changes.low() or ids.new_id()

        def work(tx: Tx) -> str:
            return store.adopt(tx, self._writer_id, own, tx.now - self._lease if self._shared else EVER)

        start = await self._db.write(work)
        self._kept, self._beat_at = start, time.monotonic()
        if start < own:
            self.changes.behind(model.cursor_before(start, UNFLUSHED_MS))
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
                await asyncio.sleep(AGAIN_SECONDS)
            except Exception:
                # Fails open: a note that breaks the mirror must not end all later ones.
                log.exception("task notes could not be written")
                await asyncio.sleep(AGAIN_SECONDS)

    async def _wait(self) -> None:
        if self.changes.idle:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat_seconds if self._shared else None):
                    await self._wake.wait()
            await asyncio.sleep(SETTLE_SECONDS)

    async def _work(self) -> None:
        """Everything that waits now, with rests between."""
        seen, at = self.changes.seen, time.monotonic()
        while not self.changes.idle:
            began = time.monotonic()
            await self._round()
            now = time.monotonic()
            rest = min(MOST_REST, (self.changes.seen - seen) / max(now - at, 1e-3) / REST_PER_SECOND)
            await self._keep(now)
            seen, at = self.changes.seen, now
            await asyncio.sleep(max(BREATH_SECONDS, (now - began) * rest))
        await self._keep(time.monotonic(), at_once=True)

    async def _round(self) -> None:
        """One batch of what changed, else one page of the run log."""
        if task_ids := self.changes.take(BATCH):
            try:
                await self._write(task_ids)
            except BaseException:
                self.changes.undo()
                raise
            self.changes.done()
        else:
            await self._catch_up()

    async def _catch_up(self) -> None:
        if self.changes.resumable:
            self.changes.collect()
            newest = await self._db.read(store.newest_event)
            self.changes.until = max(newest, ids.new_id())
        after, until = self.changes.position, self.changes.until
        if after is None or until is None:
            return
        task_ids, end = await self._db.read(lambda tx: store.changed(tx, after, until, PAGE))
        for at in range(0, len(task_ids), BATCH):
            await self._write(task_ids[at : at + BATCH], compare=True)
        self.changes.scanned(until, end)

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
        found = await self._db.read(lambda tx: store.records(tx, self._tenant, task_ids))
        await asyncio.to_thread(self._write_now, found, compare)
        if self._shared:
            await self._look_again(found)

    async def _look_again(self, written: list[Record]) -> None:
        """Another process may have written a newer state before ours was put over it."""
        task_ids = [record.task_id for record in written]
        now = await self._db.read(lambda tx: store.records(tx, self._tenant, task_ids))
        heads = {record.task_id: record.head_id for record in now}
        self.changes.again(record.task_id for record in written if heads.get(record.task_id) != record.head_id)

    def _write_now(self, records: Iterable[Record], compare: bool) -> int:
        folders: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        for record in records:
            made = render.note(self._tenant, record)
            folders[made.folder].append((made.name, made.content))
        aside = f".stentor-task-{self._writer_id}"
        with self._lock:
            return sum(
                projection.write(self._root, folder, notes, aside=aside, compare=compare)
                for folder, notes in folders.items()
            )

    async def _keep(self, now: float, *, at_once: bool = False) -> None:
        """The cursor into the database, and now and then a look for writers that are gone."""
        low = self.changes.low()
        due = at_once or now - self._kept_at >= KEEP_SECONDS
        beat = self._shared and now - self._beat_at >= self._beat_seconds
        if beat:
            await self._adopt_others()
        elif due and low not in ("", self._kept):
            await self._db.write(lambda tx: store.set_cursor(tx, self._writer_id, low))
            self._kept, self._kept_at = low, now

    async def _adopt_others(self) -> None:
        await self._db.write(lambda tx: store.set_cursor(tx, self._writer_id, self.changes.low() or self._kept))
        await self._adopt()

    async def rewrite(self, records: list[Record]) -> int:
        """Write these notes where they are missing or different; answers how many were."""
        return await asyncio.to_thread(self._write_now, records, True)

    async def differing(self, records: list[Record]) -> list[tuple[str, bool]]:
        """Paths of notes that are missing or different, with whether there is a file; not those about to be written."""

        def look() -> list[tuple[str, bool]]:
            found: list[tuple[str, bool]] = []
            for record in records:
                if record.task_id not in self.changes:
                    made = render.note(self._tenant, record)
                    differing = projection.differing(self._root, made.folder, [(made.name, made.content)])
                    found += [(made.path, there) for _, there in differing]
            return found

        return await asyncio.to_thread(look)

    async def stop(self) -> None:
        """Write what waits, for a moment; the rest is the next start's."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                while len(self.changes):
                    await self._round()
            await self._keep(time.monotonic(), at_once=True)
        except (TimeoutError, StentorError):
            log.info("%d task notes are left to the next start", len(self.changes))

    def _tell(self, error: StentorError) -> None:
        if not self._told:
            log.error("task notes wait: %s", error.message)
            self._told = True
