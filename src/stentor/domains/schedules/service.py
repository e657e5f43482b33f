"""Makes, changes and deletes schedules, and runs one at once. `scheduler` runs them at their times."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.auth.principal import IsActive, Principal, require_active
from stentor.core import ids
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import Conflict, InvalidRequest, NotFound, RoutingDenied
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.validation import text_checks
from stentor.domains.schedules import model, store
from stentor.domains.schedules.model import CronTimes, Schedule, ScheduleRun
from stentor.domains.tasks.model import SubmitResult, TaskDraft
from stentor.domains.tasks.submission.service import SubmissionService


class ScheduleDraft(msgspec.Struct, frozen=True):
    """A schedule to be made."""

    name: str
    cron: str
    timezone: str
    missed: model.Missed
    overlap: model.Overlap
    paused: bool
    task: TaskDraft


class ScheduleService:
    """The use cases of schedules. A schedule that the caller may not see is NotFound."""

    def __init__(self, db: Database, runlog: RunLog, submission: SubmissionService, is_active: IsActive) -> None:
        self._db, self._runlog, self._submission, self._is_active = db, runlog, submission, is_active

    async def create(self, caller: Principal, draft: ScheduleDraft) -> Schedule:
        """Create a schedule.

        Raises InvalidRequest, Conflict for a name that is taken and for too many, and Forbidden for the key of stopped
        agents.
        """
        require_active(caller, self._is_active, "create schedules")
        text_checks.check_name(draft.name)
        times = CronTimes(draft.cron, draft.timezone)

        def work(tx: Tx) -> Schedule:
            if store.find(tx, caller.tenant, draft.name) is not None:
                raise Conflict(f"A schedule named {draft.name!r} exists already: choose another name.")
            if store.count(tx, caller.tenant, caller.name) >= model.MAX_SCHEDULES:
                raise Conflict(f"This key has {model.MAX_SCHEDULES} schedules, which is the most allowed: delete one.")
            fields = {name: getattr(draft, name) for name in draft.__struct_fields__}
            schedule = Schedule(
                tenant=caller.tenant,
                **fields,
                paused_reason=None,
                next_at=None if draft.paused else times.after(tx.now),
                created_by=caller.name,
                runs_as=caller.name,
                created_at=tx.now,
                updated_at=tx.now,
            )
            store.insert(tx, schedule)
            record_change(tx, self._runlog, schedule, "created", caller.name)
            return schedule

        return await self._db.write(work)

    async def list_schedules(self, caller: Principal) -> list[tuple[Schedule, ScheduleRun | None]]:
        """Return the schedules that the caller may see, by name, each with its last run."""
        creator = caller.name if caller.is_bound_agent else None

        def work(tx: Tx) -> list[tuple[Schedule, ScheduleRun | None]]:
            runs = store.list_last_runs(tx, caller.tenant)
            return [(each, runs.get(each.name)) for each in store.list_schedules(tx, caller.tenant, creator)]

        return await self._db.read(work)

    async def get(self, caller: Principal, name: str) -> Schedule:
        """Return a schedule. Raises NotFound."""
        return await self._db.read(lambda tx: _require(tx, caller, name))

    async def list_runs(self, caller: Principal, name: str, limit: int) -> list[ScheduleRun]:
        """Return what was done at the last times of a schedule, the latest first. Raises NotFound."""
        return await self._db.read(lambda tx: store.list_runs(tx, _require(tx, caller, name), limit))

    async def change(self, caller: Principal, name: str, changes: dict[str, Any]) -> Schedule:
        """Change any of cron, timezone, missed, overlap, paused and task.

        A schedule runs as the key that last changed its task, so that nobody submits with the key of another. A new
        task, expression or zone resumes a schedule that the service has paused, because its reason tells users to set
        them. Raises InvalidRequest, NotFound, and Forbidden for the key of stopped agents, unless it pauses the
        schedule.
        """
        if not changes:
            raise InvalidRequest("The request changes nothing. Set cron, timezone, missed, overlap, paused or task.")
        self._require_active(caller, changes)

        def work(tx: Tx) -> Schedule:
            schedule = _require(tx, caller, name)
            if "task" not in changes:
                _refuse_malformed(schedule)
            updated = msgspec.structs.replace(schedule, **changes, updated_at=tx.now, version=schedule.version + 1)
            is_retimed = (schedule.cron, schedule.timezone) != (updated.cron, updated.timezone)
            if schedule.paused_reason is not None and "paused" not in changes and (is_retimed or "task" in changes):
                updated = msgspec.structs.replace(updated, paused=False)
            fields: dict[str, Any] = {"paused_reason": None} if "paused" in changes or not updated.paused else {}
            # A schedule whose zone the system has lost can still be paused, and changed while it is.
            if is_retimed or not updated.paused:
                times = CronTimes(updated.cron, updated.timezone)
                # Resuming counts from now on: times during the pause do not count as missed.
                if is_retimed or schedule.paused:
                    fields["next_at"] = times.after(tx.now)
            if updated.paused:
                fields["next_at"] = None
            if "task" in changes:
                fields["runs_as"] = caller.name
            updated = msgspec.structs.replace(updated, **fields)
            store.update(tx, updated)
            what = "changed"
            if updated.paused != schedule.paused:
                what = "paused" if updated.paused else "resumed"
            record_change(tx, self._runlog, updated, what, caller.name)
            return updated

        return await self._db.write(work, (locks.schedule_lock(caller.tenant, name),))

    def _require_active(self, caller: Principal, changes: dict[str, Any]) -> None:
        if changes != {"paused": True}:
            require_active(caller, self._is_active, "change schedules, except to pause them")

    async def delete(self, caller: Principal, name: str) -> None:
        """Delete a schedule and the list of its runs; its tasks stay. Raises NotFound."""

        def work(tx: Tx) -> None:
            schedule = _require(tx, caller, name)
            store.delete(tx, caller.tenant, name)
            record_change(tx, self._runlog, schedule, "deleted", caller.name)

        await self._db.write(work, (locks.schedule_lock(caller.tenant, name),))

    async def run_now(self, caller: Principal, name: str) -> SubmitResult:
        """Submit the task of a schedule at once, as the caller's, also of a paused one.

        Raises NotFound, and RoutingDenied after storing the task as failed.
        """
        schedule = await self.get(caller, name)
        _refuse_malformed(schedule)
        task_id = ids.new_id()
        draft = msgspec.structs.replace(task_of(schedule), id=task_id)
        try:
            result = await self._submission.submit(caller, draft)
        except RoutingDenied as denial:
            # The denied task is stored as failed and can be looked up by this id.
            await self._record_run(schedule, "denied", task_id, denial.message)
            raise
        await self._record_run(schedule, "submitted", task_id, None)
        return result

    async def _record_run(
        self, schedule: Schedule, outcome: model.RunOutcome, task_id: str, reason: str | None
    ) -> None:
        def work(tx: Tx) -> None:
            # It may have been deleted since; its task runs all the same.
            if store.find(tx, schedule.tenant, schedule.name) is not None:
                store.insert_run(tx, schedule, ScheduleRun(ids.new_id(), tx.now, tx.now, outcome, task_id, reason))

        await self._db.write(work, (locks.schedule_lock(schedule.tenant, schedule.name),))


def task_of(schedule: Schedule) -> TaskDraft:
    """Return the task that a schedule submits; its metadata names the schedule."""
    metadata = msgspec.structs.replace(schedule.task.metadata, schedule=schedule.name)
    return msgspec.structs.replace(schedule.task, metadata=metadata)


def record_change(tx: Tx, runlog: RunLog, schedule: Schedule, change: str, by: str) -> None:
    """Append the run log event of a change."""
    meta = {"name": schedule.name, "change": change, "cron": schedule.cron, "timezone": schedule.timezone}
    meta |= {"type": schedule.task.type, "runs_as": schedule.runs_as, "by": by}
    if schedule.paused_reason is not None:
        meta["reason"] = schedule.paused_reason
    text = f"Schedule {schedule.name} ({schedule.cron}) {change}."
    runlog.append(tx, schedule.tenant, [EventDraft("schedule_changed", "schedules", text, meta)])


def _refuse_malformed(schedule: Schedule) -> None:
    if schedule.task is model.MALFORMED_TASK:
        raise Conflict("The stored task of the schedule is malformed. Set its task, or delete the schedule.")


def _require(tx: Tx, caller: Principal, name: str) -> Schedule:
    schedule = store.find(tx, caller.tenant, name)
    if schedule is None or not schedule.is_visible_to(caller):
        raise NotFound(f"There is no schedule {name!r}.")
    return schedule
