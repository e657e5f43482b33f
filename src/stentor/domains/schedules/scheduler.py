"""Submits the tasks of schedules at their times.

Every process with the role gateway looks once a second: it has the keys. A task, its run and the schedule's next time
are one transaction, and of two processes only one makes it, so each time has one task whatever crashes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from stentor.auth.principal import Principal, RoleRegistry
from stentor.core import ids
from stentor.core.clock import SECOND, ClockWatch
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import CorruptRow, InvalidRequest, StentorError, StoreUnavailable
from stentor.core.runlog import RunLog
from stentor.core.timers import sleep_until_tick, tick_forever
from stentor.domains.schedules import model, store
from stentor.domains.schedules.model import Occurrence, RunOutcome, Schedule, ScheduleRun
from stentor.domains.schedules.service import record_change, task_of
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import TERMINAL_STATUSES
from stentor.domains.tasks.submission.service import SubmissionService

BATCH_SIZE = 20
"""Schedules that one look acts on, at the same time: they share commits, and few enough that others wait little."""
STALE_KEY_US, UNKNOWN_KEY_US = 30 * SECOND, 600 * SECOND
"""How long after its time a schedule waits whose key is not valid here, and one whose key is not known here."""
Write = Callable[[Tx], None]
log = logging.getLogger(__name__)


class Scheduler:
    """Background job that runs schedules. Fails closed: without a valid key a schedule is paused and says why."""

    def __init__(self, db: Database, runlog: RunLog, roles: RoleRegistry, submission: SubmissionService) -> None:
        self._db, self._runlog, self._roles, self._submission = db, runlog, roles, submission
        self._clock_watch = ClockWatch()

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        await tick_forever("schedules", sleep_until_tick, self.tick)

    async def tick(self) -> None:
        """Run what is due now, until nothing that can run is left."""
        after = None
        now, due = await self._list_due(after)
        await self._clock_watch.look(now, self._bring_back)
        while due:
            runs = await asyncio.gather(*(self._run(schedule, now) for schedule in due), return_exceptions=True)
            # Only now: an error of one must not leave others running.
            for run in runs:
                if isinstance(run, BaseException):
                    raise run
            if not any(runs):
                # All of these wait for their keys, and do not delay those after them.
                after = due[-1]
            now, due = await self._list_due(after)

    async def _list_due(self, after: Schedule | None) -> tuple[int, list[Schedule]]:
        # The poll of each second shares its transaction with those of other jobs (decision 28).
        return await self._db.poll(lambda tx: (tx.now, store.list_due(tx, BATCH_SIZE, after)))

    async def set_aside(self, error: CorruptRow) -> None:
        """Pause a schedule whose row is malformed."""
        tenant, name = error.key

        def work(tx: Tx) -> None:
            schedule = store.pause_malformed(tx, tenant, name, f"{error.message} Set its task, or delete it.")
            if schedule is not None:
                record_change(tx, self._runlog, schedule, "paused", "scheduler")
                log.error("schedules: malformed record, schedule paused error=%s", error.message)

        await self._db.write(work, (locks.schedule_lock(tenant, name),))

    async def _bring_back(self) -> None:
        """Correct the times that were set while the clock was ahead: otherwise a schedule would pause for that long."""
        for schedule in await self._db.poll(store.list_waiting):
            try:
                await self._write(schedule, partial(_bring_back, schedule=schedule))
            except StoreUnavailable:
                raise
            except Exception:
                log.exception("schedules: next time not found tenant=%s schedule=%s", schedule.tenant, schedule.name)

    async def _run(self, schedule: Schedule, now: int) -> bool:
        """Do one occurrence of a schedule; return False to look again later."""
        principal = self._roles.find_active(schedule.tenant, schedule.runs_as)
        if principal is None or not principal.may("write"):
            return await self._pause_without_key(schedule, now)
        try:
            occurrence = model.find_occurrence(schedule, now)
        except InvalidRequest as error:
            # The system has lost its time zone. It must not stop the schedules after it.
            reason = f"Its next run cannot be computed: {error.message}. Change its cron expression or time zone."
            await self._write(schedule, lambda tx: self._pause(tx, schedule, reason))
            return True
        except Exception:
            log.exception("schedules: times cannot be computed tenant=%s schedule=%s", schedule.tenant, schedule.name)
            reason = "Its next run cannot be computed; see the service log. Change its cron expression or time zone."
            await self._write(schedule, lambda tx: self._pause(tx, schedule, reason))
            return True
        try:
            async with AsyncExitStack() as held:
                await self._write(schedule, await self._prepare(schedule, occurrence, principal, held))
        except StoreUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, StentorError):
                log.exception("schedules: run failed tenant=%s schedule=%s", schedule.tenant, schedule.name)
            # Its transaction is undone. Without the next time it would be tried again every second.
            text = error.message if isinstance(error, StentorError) else "The task could not be submitted; see the log."
            await self._write(schedule, lambda tx: _record_failure(tx, schedule, occurrence, text))
        return True

    async def _pause_without_key(self, schedule: Schedule, now: int) -> bool:
        """Pause a schedule whose key is not valid; return False while it may only be unknown here.

        A key that was made or changed at another process a moment ago is not known here yet, and one of the environment
        may be known only to other gateways.
        """
        is_known = self._roles.is_known(schedule.tenant, schedule.runs_as)
        patience = STALE_KEY_US if is_known else UNKNOWN_KEY_US
        # `next_at` stays, so the run is made up as soon as the key is known.
        if schedule.next_at is None or now - schedule.next_at < patience:
            return False
        reason = f"It runs as the key {schedule.runs_as!r}, which is invalid or lacks the permission write."
        await self._write(schedule, lambda tx: self._pause(tx, schedule, reason))
        return True

    async def _write(self, schedule: Schedule, work: Write) -> None:
        """Do it unless another process has, or somebody has changed the schedule in the meantime."""

        def write(tx: Tx) -> None:
            if schedule.is_same(store.find(tx, schedule.tenant, schedule.name)):
                work(tx)

        await self._db.write(write, (locks.schedule_lock(schedule.tenant, schedule.name),))

    async def _prepare(
        self, schedule: Schedule, occurrence: Occurrence, principal: Principal, held: AsyncExitStack
    ) -> Write:
        """Route the task now, and return the write of all that is done for the occurrence. Close `held` after it."""
        task_id, due_at = ids.new_id(), occurrence.due_at
        submit = None
        if due_at is not None:
            draft = msgspec.structs.replace(task_of(schedule), id=task_id)
            # Outside the transaction: routing takes time, and the writer serves everybody.
            submit = await held.enter_async_context(self._submission.prepare_submit(principal, draft))

        def write(tx: Tx) -> None:
            if occurrence.given_up is not None:
                _record(tx, schedule, occurrence.given_up, "skipped", None, "Missed: no service ran at this time.")
            submitted = None
            if submit is not None and due_at is not None and due_at not in store.list_done(tx, schedule, due_at):
                if schedule.overlap == "skip" and (running := _find_running(tx, schedule)):
                    text = f"The task of the previous run, {running}, has not ended."
                    _record(tx, schedule, due_at, "skipped", None, text)
                else:
                    response, submitted = submit(tx), task_id
                    reason = None if response.status_code == 202 else response.body["message"]
                    _record(tx, schedule, due_at, "denied" if reason else "submitted", task_id, reason)
            # In the transaction of the task: neither can exist without the other, so no crash repeats or loses a run.
            _advance(tx, schedule, occurrence, submitted)

        return write

    def _pause(self, tx: Tx, schedule: Schedule, reason: str) -> None:
        fields = {"paused": True, "paused_reason": reason, "next_at": None, "updated_at": tx.now}
        paused = msgspec.structs.replace(schedule, **fields, version=schedule.version + 1)
        store.update(tx, paused)
        record_change(tx, self._runlog, paused, "paused", "scheduler")


def _bring_back(tx: Tx, *, schedule: Schedule) -> None:
    # By the time of this transaction: a process that looked earlier would bring back what another one has done since.
    next_at = model.find_next(schedule, tx.now, store.list_done(tx, schedule, tx.now))
    if schedule.next_at is not None and next_at < schedule.next_at:
        log.warning("schedules: the clock was set back tenant=%s schedule=%s", schedule.tenant, schedule.name)
        store.advance(tx, schedule, next_at, None)


def _advance(tx: Tx, schedule: Schedule, occurrence: Occurrence, submitted: str | None) -> None:
    """Store the next time for which nothing was done before the clock was set back."""
    next_at = occurrence.next_at
    done = store.list_done(tx, schedule, next_at)
    store.advance(tx, schedule, model.find_next(schedule, next_at, done) if next_at in done else next_at, submitted)


def _record_failure(tx: Tx, schedule: Schedule, occurrence: Occurrence, text: str) -> None:
    _advance(tx, schedule, occurrence, None)
    _record(tx, schedule, occurrence.due_at or occurrence.next_at, "denied", None, text)


def _find_running(tx: Tx, schedule: Schedule) -> str | None:
    """Return the last task of a schedule if it has not ended."""
    if schedule.last_task_id is None:
        return None
    ref = schedule.tenant, schedule.last_task_id
    task = tasks.find_all(tx, [ref]).get(ref)
    return None if task is None or task.status in TERMINAL_STATUSES else task.task_id


def _record(
    tx: Tx, schedule: Schedule, due_at: int, outcome: RunOutcome, task_id: str | None, reason: str | None
) -> None:
    store.insert_run(tx, schedule, ScheduleRun(ids.new_id(), due_at, tx.now, outcome, task_id, reason))
