"""Operations on schedules. Source: docs/schedules.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints

from stentor.core.clock import Clock
from stentor.core.errors import InvalidRequest
from stentor.domains.schedules.model import CronTimes, Missed, Overlap, RunOutcome, Schedule, ScheduleRun
from stentor.domains.schedules.service import ScheduleDraft, ScheduleService
from stentor.domains.tasks import events
from stentor.domains.tasks.wire import SubmittedOut, TaskTemplate
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, Name, ResponseModel, StructFields, Timestamp

NEXT_TIMES = 5
ScheduleName = Annotated[str, Path(description="The schedule's name."), AfterValidator(decode_path_segment)]
CronText = Annotated[
    Name,
    StringConstraints(max_length=200),
    Field(description="Minute, hour, day of the month, month, day of the week; or @hourly, @daily, @weekly, @monthly."),
]
ZoneName = Annotated[
    Name, StringConstraints(max_length=100), Field(description="The time zone of the expression, such as Europe/Rome.")
]
MissedChoice = Annotated[
    Missed, Field(description="What happens to runs of a time at which no service ran: no run, one for all, or each.")
]
OverlapChoice = Annotated[
    Overlap, Field(description="Whether a run is skipped while the task of the run before has not ended.")
]
_EXAMPLE_TASK = {"type": "summarize", "input": {"text": "The news of the day."}, "required_capabilities": ["summarize"]}


FindCapabilityProblem = Callable[[str, tuple[str, ...]], str | None]
"""(tenant, capabilities) -> why no agent can do a task that needs them; None if one can."""


class ScheduleIn(RequestModel):
    model_config = example_config(
        name="morning-report", cron="30 6 * * MON-FRI", timezone="Europe/Rome", task=_EXAMPLE_TASK
    )

    name: Annotated[Name, StringConstraints(max_length=63)]
    cron: CronText
    timezone: ZoneName = "UTC"
    missed: MissedChoice = "one"
    overlap: OverlapChoice = "allow"
    paused: bool = False
    task: TaskTemplate


class ScheduleChange(RequestModel):
    """Omitted fields stay unchanged. Who changes the task is whose task it becomes."""

    model_config = example_config(paused=True)

    cron: CronText | None = None
    timezone: ZoneName | None = None
    missed: MissedChoice | None = None
    overlap: OverlapChoice | None = None
    paused: bool | None = None
    task: TaskTemplate | None = None


class ScheduleRunOut(ResponseModel):
    """What was done for a time. `reason` says why no task was submitted, or why it was denied."""

    due_at: Timestamp
    happened_at: Timestamp
    outcome: RunOutcome
    task_id: str | None
    reason: str | None


class ScheduleRuns(ResponseModel):
    runs: list[ScheduleRunOut]
    limit: int


class ScheduledTaskOut(ResponseModel):
    """The task that is submitted each time."""

    type: str
    input: Any
    required_capabilities: list[str]
    timeout_seconds: int
    queue_timeout_seconds: int | None
    agent_preference: str | None
    title: str | None
    metadata: StructFields


class ScheduleRow(ResponseModel):
    """`description` says the expression in words. `runs_as` is the key whose task it becomes."""

    name: str
    cron: str
    description: str
    timezone: str
    missed: Missed
    overlap: Overlap
    paused: bool
    paused_reason: str | None
    next_at: Timestamp | None
    type: str
    created_by: str
    runs_as: str
    created_at: Timestamp
    updated_at: Timestamp


class ListedSchedule(ScheduleRow):
    last_run: ScheduleRunOut | None


class ScheduleList(ResponseModel):
    schedules: list[ListedSchedule]
    total: int


class ScheduleOut(ScheduleRow):
    """`next_times` are the next times of the expression, none while it is paused. `notice` says
    that no agent can do the task now.
    """

    next_times: list[Timestamp]
    notice: str | None
    task: ScheduledTaskOut


class DeletedSchedule(ResponseModel):
    name: str
    deleted: bool


class ScheduleOperations:
    """Operations on schedules."""

    def __init__(
        self, schedules: ScheduleService, clock: Clock, find_capability_problem: FindCapabilityProblem
    ) -> None:
        self._schedules, self._clock = schedules, clock
        self._find_capability_problem = find_capability_problem

    @operation("schedules.create", "write", "POST /schedules", 201, (409,))
    async def create(self, caller: Caller, body: ScheduleIn) -> ScheduleOut:
        """Submit a task again and again, at the times of a cron expression in a time zone."""
        fields = {name: getattr(body, name) for name in ScheduleDraft.__struct_fields__ if name != "task"}
        return self._output(await self._schedules.create(caller, ScheduleDraft(**fields, task=body.task.to_draft())))

    @operation("schedules.list", "read", "GET /schedules")
    async def list_schedules(self, caller: Caller) -> ScheduleList:
        """List schedules by name, each with its last run. A key that is bound to agents sees only its own."""
        schedules = await self._schedules.list_schedules(caller)
        rows = [
            ListedSchedule.of(
                schedule,
                **_derived(schedule, _find_times(schedule)),
                last_run=None if run is None else ScheduleRunOut.of(run),
            )
            for schedule, run in schedules
        ]
        return ScheduleList(schedules=rows, total=len(rows))

    @operation("schedules.get", "read", "GET /schedules/{name}", errors=(404,))
    async def read(self, caller: Caller, name: ScheduleName) -> ScheduleOut:
        """Return a schedule with its task and its next times."""
        return self._output(await self._schedules.get(caller, name))

    @operation("schedules.change", "write", "PATCH /schedules/{name}", errors=(404,))
    async def change(self, caller: Caller, name: ScheduleName, body: ScheduleChange) -> ScheduleOut:
        """Change a schedule, pause or resume it. Times that pass while it is paused are skipped."""
        changes: dict[str, Any] = {
            field: getattr(body, field) for field in body.model_fields_set if getattr(body, field) is not None
        }
        if body.task is not None:
            changes["task"] = body.task.to_draft()
        return self._output(await self._schedules.change(caller, name, changes))

    @operation("schedules.delete", "delete", "DELETE /schedules/{name}", errors=(404,))
    async def delete(self, caller: Caller, name: ScheduleName) -> DeletedSchedule:
        """Delete a schedule with the list of its runs; its tasks stay."""
        await self._schedules.delete(caller, name)
        return DeletedSchedule(name=name, deleted=True)

    @operation("schedules.run", "write", "POST /schedules/{name}/run", 202, (404, 409, 422))
    async def run(self, caller: Caller, name: ScheduleName) -> SubmittedOut:
        """Submit the task of a schedule at once, as the caller's task; its next time stays."""
        result = await self._schedules.run_now(caller, name)
        return SubmittedOut.of(result, **events.build_envelope(result.provenance_id, result.priority))

    @operation("schedules.runs", "read", "GET /schedules/{name}/runs", errors=(404,))
    async def runs(
        self, caller: Caller, name: ScheduleName, limit: Annotated[int, Query(ge=1, le=200)] = 20
    ) -> ScheduleRuns:
        """List the last runs of a schedule and their results, newest first."""
        runs: list[ScheduleRun] = await self._schedules.list_runs(caller, name, limit)
        return ScheduleRuns(runs=[ScheduleRunOut.of(run) for run in runs], limit=limit)

    def _output(self, schedule: Schedule) -> ScheduleOut:
        times, following = _find_times(schedule), []
        if schedule.next_at is not None and isinstance(times, CronTimes):
            following = times.list_after(self._clock.now(), NEXT_TIMES)
        task = ScheduledTaskOut.of(schedule.task, title=schedule.task.metadata.title)
        notice = self._find_capability_problem(schedule.tenant, tuple(schedule.task.required_capabilities))
        return ScheduleOut.of(schedule, **_derived(schedule, times), next_times=following, notice=notice, task=task)


def _derived(schedule: Schedule, times: CronTimes | InvalidRequest) -> dict[str, str]:
    description = times.description if isinstance(times, CronTimes) else f"No times: {times.message}"
    return {"description": description, "type": schedule.task.type}


def _find_times(schedule: Schedule) -> CronTimes | InvalidRequest:
    """Return the times of a schedule, or why it has none: a system may lose a time zone that it had."""
    try:
        return CronTimes(schedule.cron, schedule.timezone)
    except InvalidRequest as error:
        return error
