"""Submits the tasks of schedules at their times.

Every process with the role gateway looks once a second: it has the keys. A task, its run and the schedule's next time
are one transaction, and of two processes only one makes it, so each time has one task whatever crashes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from stentor.auth.principal import Principal, RoleRegistry
from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx, locks
from stentor.core.errors import StentorError, StoreUnavailable
from stentor.core.runlog import RunLog
from stentor.core.timers import sleep_until_tick
from stentor.domains.schedules import model, store
from stentor.domains.schedules.model import Occurrence, RunOutcome, Schedule, ScheduleRun
from stentor.domains.schedules.service import record_change, task_of
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import TERMINAL_STATUSES
from stentor.domains.tasks.submission import SubmissionService

BATCH_SIZE = 100
"""Schedules that one look acts on."""
KEY_PATIENCE_US = 30 * SECOND
"""How long after its time a schedule waits for its key to become known."""
Write = Callable[[Tx], None]
log = logging.getLogger(__name__)


class Scheduler:
    """Background job that runs schedules. Fails closed: without a valid key a schedule is paused and says why."""

    def __init__(self, db: Database, runlog: RunLog, roles: RoleRegistry, submission: SubmissionService) -> None:
        self._db, self._runlog, self._roles, self._submission = db, runlog, roles, submission

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        while True:
            await sleep_until_tick()
            try:
                await self.tick()
            except StoreUnavailable:
                continue  # the database logs the outage
            except Exception:
                # Fails open: one look that failed must not stop all later ones.
                log.exception("schedules: tick failed")

    async def tick(self) -> None:
        """Do what is due now, until nothing is that can be done."""
        now, due = await self._db.poll(lambda tx: (tx.now, store.list_due(tx, BATCH_SIZE)))
        while [schedule for schedule in due if await self._run(schedule, now)]:
            now, due = await self._db.read(lambda tx: (tx.now, store.list_due(tx, BATCH_SIZE)))

    async def _run(self, schedule: Schedule, now: int) -> bool:
        """Do one occurrence of a schedule; return False to look again later."""
        principal = self._roles.find_active(schedule.tenant, schedule.runs_as)
        if principal is None or not principal.may("write"):
            # A key that was made or changed at another process a moment ago is not known here yet.
            if schedule.next_at is None or now - schedule.next_at < KEY_PATIENCE_US:
                return False
            reason = f"The key {schedule.runs_as!r}, as which it runs, is not valid or may not write."
            await self._write(schedule, lambda tx: self._pause(tx, schedule, reason))
            return True
        occurrence = model.find_occurrence(schedule, now)
        try:
            await self._write(schedule, self._prepare(schedule, occurrence, principal))
        except StoreUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, StentorError):
                log.exception("schedules: run failed schedule=%s", schedule.name)
            # Its transaction is undone. Without the next time it would be tried again every second.
            text = error.message if isinstance(error, StentorError) else "The task could not be submitted; see the log."
            await self._write(schedule, lambda tx: _record_failure(tx, schedule, occurrence, text))
        return True

    async def _write(self, schedule: Schedule, work: Write) -> None:
        """Do it unless another process has, or somebody has changed the schedule in the meantime."""

        def write(tx: Tx) -> None:
            found = store.find(tx, schedule.tenant, schedule.name)
            if found is not None and found.version == schedule.version:
                work(tx)

        await self._db.write(write, (locks.schedule_lock(schedule.tenant, schedule.name),))

    def _prepare(self, schedule: Schedule, occurrence: Occurrence, principal: Principal) -> Write:
        """Route the task now, and return the write of all that is done for the occurrence."""
        task_id = ids.new_id()
        submit = None
        if occurrence.due_at is not None:
            draft = msgspec.structs.replace(task_of(schedule), id=task_id)
            submit = self._submission.prepare_submit(principal, draft)

        def write(tx: Tx) -> None:
            _advance(tx, schedule, occurrence)
            if occurrence.given_up is not None:
                _record(tx, schedule, occurrence.given_up, "skipped", None, "Missed: no service ran at this time.")
            if submit is None or occurrence.due_at is None:
                return
            if schedule.overlap == "skip" and (running := _find_running(tx, schedule)):
                text = f"The task of the run before, {running}, has not ended."
                _record(tx, schedule, occurrence.due_at, "skipped", None, text)
                return
            response = submit(tx)
            is_denied = response.status_code != 202
            reason = response.body["message"] if is_denied else None
            _record(tx, schedule, occurrence.due_at, "denied" if is_denied else "submitted", task_id, reason)

        return write

    def _pause(self, tx: Tx, schedule: Schedule, reason: str) -> None:
        fields = {"paused": True, "paused_reason": reason, "next_at": None, "updated_at": tx.now}
        paused = msgspec.structs.replace(schedule, **fields, version=schedule.version + 1)
        store.update(tx, paused)
        record_change(tx, self._runlog, paused, "paused", "scheduler")


def _record_failure(tx: Tx, schedule: Schedule, occurrence: Occurrence, text: str) -> None:
    _advance(tx, schedule, occurrence)
    _record(tx, schedule, occurrence.due_at or occurrence.next_at, "denied", None, text)


def _advance(tx: Tx, schedule: Schedule, occurrence: Occurrence) -> None:
    store.update(tx, msgspec.structs.replace(schedule, next_at=occurrence.next_at, version=schedule.version + 1))


def _find_running(tx: Tx, schedule: Schedule) -> str | None:
    """Return the last task of a schedule if it has not ended."""
    task_id = store.find_last_task(tx, schedule)
    task = tasks.find(tx, schedule.tenant, task_id) if task_id is not None else None
    return None if task is None or task.status in TERMINAL_STATUSES else task.task_id


def _record(
    tx: Tx, schedule: Schedule, due_at: int, outcome: RunOutcome, task_id: str | None, reason: str | None
) -> None:
    store.insert_run(tx, schedule, ScheduleRun(ids.new_id(), due_at, tx.now, outcome, task_id, reason))
