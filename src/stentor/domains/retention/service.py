"""The archiver: moves tasks that ended long ago into archives, in small transactions.

The order of the steps makes a kill safe at any moment: first the name of an archive is committed, then its files are
written and synced, then one transaction deletes the rows if they are unchanged. If that transaction is missing, the
next run first deletes the archive's row and then its files, so that no process can still delete rows for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stentor.core import jsontext
from stentor.core.clock import DAY, SECOND, Clock
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks.leader import ARCHIVE_LOCK_ID, LeaderElection
from stentor.core.db.sql import Row
from stentor.core.errors import Conflict, CorruptRecord, StoreUnavailable
from stentor.core.formats.deflate import inflate
from stentor.core.runlog import EventDraft, RunLog, leaf_hash
from stentor.core.timers import sleep_until_tick
from stentor.domains.contents import store as contents
from stentor.domains.llm.usage.totals import UsageTotals
from stentor.domains.provenance.model import ArchiveRecord, LeavesDigest, record_metadata
from stentor.domains.provenance.store import newest_checkpoint
from stentor.domains.retention import parquet_files, store
from stentor.domains.retention.model import (
    CALLS,
    EVENTS,
    GRADES,
    SIGNALS,
    STEPS,
    TABLES,
    TASKS,
    ArchiveChanged,
    ArchivedBatch,
    ArchiveResult,
    TaskArchive,
)
from stentor.domains.retention.parquet_files import WrittenFiles
from stentor.domains.steps.model import decode_value
from stentor.domains.tasks import queries as task_queries

INTERVAL_SECONDS = 3_600.0
PAUSE_FACTOR = 3.0
"""The pause after each archive as a multiple of the time that it took, so that archiving does not slow tasks down."""
Progress = Callable[[ArchiveResult], None]
WriteFiles = Callable[[Path, str, Mapping[str, Sequence[Row]]], WrittenFiles]
"""Writes an archive durably: its folder, its name, and the rows by table. Raises OSError. Called in a thread."""
log = logging.getLogger(__name__)
_TASK_COLUMNS = list(TASKS.columns)
_ID, _STATUS, _AGENT, _CREATED, _SUBMITTER = map(
    _TASK_COLUMNS.index, ("task_id", "status", "assigned_agent", "created_at", "submitted_by")
)
MAX_TASKS = 200
MAX_EVENTS = 4_000
MAX_BYTES = 32 << 20
"""Limits of an archive, whose rows one transaction deletes: it occupies the database's writer for about 0.1 s. A single
task may exceed them.
"""
_STEP_COLUMNS = list(STEPS.columns)
_KEY, _TASK, _ENCODING, _VALUE, _HASH = map(_STEP_COLUMNS.index, ("key", "task_id", "encoding", "value", "value_hash"))


class TaskArchiver:
    """Archives tasks `days` after their end, into `folder`; with 0 days only on request.

    `max_tasks` is the largest number of tasks in one archive.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        clock: Clock,
        folder: Path,
        days: int,
        max_tasks: int = MAX_TASKS,
        write_files: WriteFiles = parquet_files.write_archive,
        pause_factor: float = PAUSE_FACTOR,
    ) -> None:
        self.problem: str | None = None
        """Why the last run failed; None if it did not."""
        self.folder, self.days = folder, days
        self._db, self._runlog, self._clock = db, runlog, clock
        self._max_tasks, self._write_files, self._pause_factor = max_tasks, write_files, pause_factor

    async def run(self, leader: LeaderElection) -> None:
        """Archive what is due, now and every hour, while this process is the leader."""
        while self.days:
            try:
                if await leader.is_leader():
                    await self.archive(self._clock.now() - self.days * DAY)
            except (StoreUnavailable, Conflict):
                pass  # the database logs its outage; another process archives
            except Exception as error:
                # Fails open: the tasks stay in the database, and the next run tries again.
                if self.problem is None:
                    log.exception("archive: failed folder=%s", self.folder)
                self.problem = f"Tasks are not archived: {error}."
            await sleep_until_tick(INTERVAL_SECONDS)

    async def archive(self, before: int, progress: Progress | None = None) -> ArchiveResult:
        """Archive the tasks that ended before a time (microseconds).

        Raises Conflict while another process archives, and OSError if the files cannot be written.
        """
        result = ArchiveResult()
        async with self._exclusive():
            await self.forget_unfinished()
            # A task stays until its model calls are summed, and after an upgrade none are.
            await UsageTotals(self._db).add_all()
            for tenant in await self._list_tenants():
                skipped = set[str]()
                # A task is archived after its subtasks, so a tree takes as many passes as it has levels.
                while await self._archive_pass(tenant, before, result, skipped, progress):
                    pass
        self.problem = None
        if result.tasks:
            log.info("archive: tasks archived tasks=%d archives=%d", result.tasks, result.archives)
        return result

    async def count_archivable(self, before: int, progress: Callable[[int], None]) -> dict[str, int]:
        """Count the tasks of each tenant that the first pass would archive. Parents follow in later passes.

        `progress` gets the number so far.
        """
        counts: dict[str, int] = {}
        for tenant in await self._list_tenants():
            position: store.Position | None = store.START
            while position is not None:
                chosen, position = await self._db.read(
                    partial(choose_tasks, tenant=tenant, before=before, after=position, limit=self._max_tasks)
                )
                counts[tenant] = counts.get(tenant, 0) + len(chosen)
                progress(sum(counts.values()))
        return {tenant: count for tenant, count in counts.items() if count}

    async def _list_tenants(self) -> list[str]:
        return await self._db.read(lambda tx: list(task_queries.iter_tenants(tx)))

    async def forget_unfinished(self) -> list[str]:
        """Forget archives whose process was killed before the rows were deleted, and remove their files."""
        forgotten = []
        for archive in await self._db.read(store.list_unfinished):
            if await self._forget(archive.name):
                log.warning("archive: removed an unfinished archive name=%s", archive.name)
                forgotten.append(archive.name)
        return forgotten

    async def _forget(self, name: str) -> bool:
        """Forget an archive and remove its files; False if it is finished or forgotten already."""
        # The row first: after that commit no transaction deletes rows for these files.
        is_forgotten = await self._db.write(partial(store.forget_archive, name=name), NO_LOCKS)
        if is_forgotten:
            await asyncio.to_thread(parquet_files.remove_archive, self.folder, name)
        return is_forgotten

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Let one process archive at a time; two would only undo each other's work. Raises Conflict."""
        election = LeaderElection(self._db.driver, ARCHIVE_LOCK_ID, "archive")
        try:
            if not await election.is_leader():
                raise Conflict("Another process is archiving tasks. Try again when it has ended.")
            yield
        finally:
            await election.close()

    async def _archive_pass(
        self, tenant: str, before: int, result: ArchiveResult, skipped: set[str], progress: Progress | None
    ) -> int:
        """Archive the tasks of a tenant that can be archived now, oldest first; return how many. Adds to `skipped`."""
        position: store.Position | None = store.START
        archived = 0
        while position is not None:
            started = time.monotonic()
            task_ids, position = await self._db.read(
                partial(
                    choose_tasks,
                    tenant=tenant,
                    before=before,
                    after=position,
                    limit=self._max_tasks,
                    without=skipped,
                )
            )
            if task_ids:
                archived += await self._archive_tasks(tenant, task_ids, before, result, skipped)
                if progress is not None:
                    progress(result)
                await asyncio.sleep(self._pause_factor * (time.monotonic() - started))
        return archived

    async def _archive_tasks(
        self, tenant: str, task_ids: list[str], before: int, result: ArchiveResult, skipped: set[str]
    ) -> int:
        batch = await self._db.read(partial(read_batch, tenant=tenant, task_ids=task_ids))
        skipped.update(set(task_ids) - set(batch.task_ids))
        result.skipped += len(task_ids) - len(batch.task_ids)
        if not batch.task_ids:
            return 0
        archive = await self._db.write(partial(_insert_archive, batch=batch))
        try:
            files = await asyncio.to_thread(self._write_files, self.folder, archive.name, batch.rows)
            # Excludes all other transactions: nothing begins to wait for a task, or adds to it, while it is removed.
            await self._db.write(partial(self._delete_rows, archive=archive, batch=batch, files=files, before=before))
        except ArchiveChanged as error:
            log.info("archive: not finished, its tasks stay name=%s reason=%s", archive.name, error)
            await self._forget(archive.name)
            return 0
        except (OSError, ValueError, TypeError):  # pyarrow's errors are ValueError and TypeError
            # Another process that considers this one dead may have removed the files: then this is not an error.
            if await self._forget(archive.name):
                raise
            return 0
        result.archives, result.tasks = result.archives + 1, result.tasks + len(batch.task_ids)
        result.events, result.size_bytes = result.events + batch.count(EVENTS), result.size_bytes + files.size_bytes
        return len(batch.task_ids)

    def _delete_rows(
        self, tx: Tx, archive: TaskArchive, batch: ArchivedBatch, files: WrittenFiles, before: int
    ) -> None:
        """Delete the rows of an archive and record it. Raises ArchiveChanged if they are not those of its files."""
        if not store.is_unfinished(tx, archive.name):
            raise ArchiveChanged("another process has forgotten the archive")
        if len(store.list_archivable(tx, batch.tenant, batch.task_ids, before)) != len(batch.task_ids):
            raise ArchiveChanged("a task may not be archived any more")
        store.delete_contents(tx, batch.tenant, batch.task_ids)
        store.delete_spent(tx, batch.tenant, batch.task_ids)
        for table in TABLES:
            if store.delete_rows(tx, table, batch.tenant, batch.task_ids) != batch.count(table):
                raise ArchiveChanged(f"the rows of {table.name} changed")
        contents.remove_unused(tx, batch.tenant, batch.value_hashes)
        if self._db.driver.name == "postgresql":
            store.delete_words(tx, batch.tenant, batch.task_ids)
        tasks = batch.rows[TASKS.name]
        for row in tasks:
            task_queries.update_counts(tx, batch.tenant, row[_CREATED], (row[_STATUS], row[_AGENT], -1))
        store.mark_archived(tx, archive, ((row[_ID], row[_SUBMITTER]) for row in tasks), batch.leaves)
        store.finish_archive(tx, archive.name, self._record(tx, archive, batch, files), files.size_bytes)

    def _record(self, tx: Tx, archive: TaskArchive, batch: ArchivedBatch, files: WrittenFiles) -> str:
        """Append the event that vouches for an archive, and return its id."""
        digest = LeavesDigest()
        for number, leaf in batch.leaves.items():
            digest.add(number, leaf)
        counts = len(batch.task_ids), batch.count(EVENTS)
        record = ArchiveRecord(archive.name, archive.number, *counts, digest.text, files.hashes)
        message = f"{counts[0]} tasks with {counts[1]} events were archived."
        draft = EventDraft("tasks_archived", "archive", message, record_metadata(record))
        return self._runlog.append(tx, archive.tenant, [draft])


def _insert_archive(tx: Tx, batch: ArchivedBatch) -> TaskArchive:
    """Record that an archive is being written, under a name that no other has."""
    number = store.last_number(tx) + 1
    day = datetime.fromtimestamp(tx.now / SECOND, UTC).strftime("%Y-%m-%d")
    created = [row[_CREATED] for row in batch.rows[TASKS.name]]
    archive = TaskArchive(
        number=number,
        # The random part: a database that was restored from a backup gives the same numbers again.
        name=f"{number:06d}-{day}-{secrets.token_hex(4)}",
        tenant=batch.tenant,
        tasks=len(batch.task_ids),
        events=batch.count(EVENTS),
        size_bytes=0,
        first_at=min(created),
        last_at=max(created),
        started_at=tx.now,
        ended_at=None,
        event_id=None,
    )
    store.insert_archive(tx, archive)
    return archive


def choose_tasks(
    tx: Tx, tenant: str, before: int, after: store.Position, limit: int, without: Set[str] = frozenset()
) -> tuple[list[str], store.Position | None]:
    """Return at most `limit` tasks that may be archived, oldest first, and the position after them; None at the end."""
    chosen: list[str] = []
    size = events = 0
    while True:
        window = store.list_window(tx, tenant, before, after, store.WINDOW)
        archivable = store.list_archivable(tx, tenant, [task_id for task_id, _ in window], before)
        for task_id, created_at in window:
            if task_id in archivable and task_id not in without:
                size, events = size + archivable[task_id][0], events + archivable[task_id][1]
                if chosen and (len(chosen) == limit or events > MAX_EVENTS or size > MAX_BYTES):
                    return chosen, after
                chosen.append(task_id)
            after = created_at, task_id
        if len(window) < store.WINDOW:
            return chosen, None


def read_batch(tx: Tx, tenant: str, task_ids: Sequence[str]) -> ArchivedBatch:
    """Read all rows of tasks, but leave out tasks whose events are not those of the signed run log, or with damage.

    An archive must not make a changed event look as if it had been recorded like that.
    """
    checkpoint = newest_checkpoint(tx)
    rows = store.read_events(tx, tenant, task_ids)
    excluded = _find_unproven(rows, 0 if checkpoint is None else checkpoint.size)
    steps, damaged = _read_steps(tx, tenant, [task_id for task_id in task_ids if task_id not in excluded])
    excluded |= damaged
    tasks = [row for row in store.read_rows(tx, TASKS, tenant, task_ids) if row[_ID] not in excluded]
    kept = [row[_ID] for row in tasks]
    values: dict[str, list[Row]] = {TASKS.name: tasks}
    values |= {table.name: store.read_rows(tx, table, tenant, kept) for table in (SIGNALS, GRADES, CALLS)}
    values[STEPS.name] = [row for row in steps if row[_TASK] not in damaged]
    hashes = {str(row[_HASH]) for row in values[STEPS.name] if row[_HASH] is not None}
    events = sorted((row for row in rows if row[4] not in excluded), key=lambda row: row[1])
    values[EVENTS.name] = [row[1:] for row in events]
    return ArchivedBatch(tenant, kept, values, hashes, {row[1]: row[0] for row in events})


def _find_unproven(rows: Sequence[Row], signed: int) -> set[str]:
    """Return the tasks with an event that differs from its leaf, or is not among the first `signed` ones."""
    unproven: set[str] = set()
    for leaf, number, *event in rows:
        if number is None or number >= signed:
            unproven.add(str(event[2]))
        elif leaf_hash(tuple(event)).hex() != leaf:
            log.error("archive: event differs from the run log, task stays task_id=%s event_id=%s", event[2], event[0])
            unproven.add(str(event[2]))
    return unproven


def _read_steps(tx: Tx, tenant: str, task_ids: Sequence[str]) -> tuple[list[Row], set[str]]:
    """Return the steps with their values in the row, and the tasks with a value that cannot be read."""
    deflated = store.read_deflated_values(tx, tenant, task_ids)
    steps: list[Row] = []
    damaged = set[str]()
    for row in store.read_rows(tx, STEPS, tenant, task_ids):
        values = list(row)
        key, what = (str(row[_TASK]), str(row[_KEY])), f"The value of step {row[_KEY]!r}"
        try:
            if row[_HASH] is not None:
                values[_VALUE] = _read_content(tx, tenant, row, what)
            elif key in deflated:
                values[_VALUE] = inflate(deflated[key], what).decode()
        except (CorruptRecord, UnicodeDecodeError) as error:
            # Deleting the row would lose what can still be repaired.
            log.error("archive: damaged step, task stays task_id=%s error=%s", row[_TASK], error)
            damaged.add(str(row[_TASK]))
        steps.append(tuple(values))
    return steps, damaged


def _read_content(tx: Tx, tenant: str, row: Row, what: str) -> str:
    """Return a long value as the JSON that a short one is stored as."""
    content = contents.read(tx, tenant, str(row[_HASH]), what)
    return content.decode() if row[_ENCODING] == "json" else jsontext.dump(decode_value("base64", content))
