"""`stentor reindex` and `stentor verify` over the whole vault: the notes' index first, then the tasks' notes."""

from __future__ import annotations

from stentor.core.db import Database, Tx
from stentor.domains.memory.index.indexer import IndexDifference, IndexMaintenance, MaintenanceStep
from stentor.domains.tasknotes import store
from stentor.domains.tasknotes.mirror import Mirror
from stentor.domains.tasknotes.model import Record
from stentor.domains.tasks import queries
from stentor.domains.tasks.model import TaskFilter

PREFIX = "/tasks/"
"""Of a step's `next` once the tasks' notes are in turn; no path of a vault begins like this."""
MOST = 200
"""Tasks of one step: each may be long."""


class Upkeep:
    """`first` goes over the notes of people and agents."""

    def __init__(self, first: IndexMaintenance, mirror: Mirror, db: Database, tenant: str) -> None:
        self._first = first
        self._mirror = mirror
        self._db = db
        self._tenant = tenant

    async def reindex(self, after: str, most: int) -> MaintenanceStep:
        """Index notes anew; then write the tasks' notes that are missing or altered."""
        if not after.startswith(PREFIX):
            return await self._with_tasks(await self._first.reindex(after, most))
        records, step = await self._tasks(after, most)
        await self._mirror.rewrite(records)
        return step

    async def verify(self, after: str, most: int) -> MaintenanceStep:
        """Compare notes with the index, then tasks with their notes; changes nothing."""
        if not after.startswith(PREFIX):
            return await self._with_tasks(await self._first.verify(after, most))
        records, step = await self._tasks(after, most)
        differing = await self._mirror.differing(records)
        found = [IndexDifference(path, "altered" if there else "unwritten") for path, there in differing]
        return MaintenanceStep(step.done, step.total, step.next, found)

    async def _with_tasks(self, step: MaintenanceStep) -> MaintenanceStep:
        tasks = await self._count()
        return MaintenanceStep(
            step.done, step.total + tasks, step.next or (PREFIX if tasks else None), step.differences
        )

    async def _tasks(self, after: str, most: int) -> tuple[list[Record], MaintenanceStep]:
        time, _, task_id = after.removeprefix(PREFIX).partition("/")
        since = int(time) if time.isascii() and time.isdigit() and len(time) < 19 else -1
        most = min(most, MOST)

        def read(tx: Tx) -> list[Record]:
            return store.records_after(tx, self._tenant, since, task_id, most)

        found = await self._db.read(read)
        end = f"{PREFIX}{found[-1].created_at}/{found[-1].task_id}" if len(found) == most else None
        return found, MaintenanceStep(len(found), await self._count(), end)

    async def _count(self) -> int:
        return await self._db.read(lambda tx: queries.count_tasks(tx, self._tenant, TaskFilter()))
