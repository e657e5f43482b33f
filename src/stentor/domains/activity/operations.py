"""The activity of a task: the log as an operation, the live stream as a route.

Source: core contract, "Kernel (tasks)"; the shape of a report: second contract, "Dashboard service".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from stentor.core.jsontext import JsonObject
from stentor.domains.activity import model
from stentor.domains.activity.model import MAX_EVENTS, TaskEvents
from stentor.domains.activity.service import ActivityService
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.reading.progress import Notice, notice_fields
from stentor.domains.tasks.wire import TaskOut
from stentor.web.operations import operation
from stentor.web.sse import EventStreamResponse, SseEvent, StreamLimit
from stentor.web.wire import (
    Caller,
    ResponseModel,
    TaskId,
    Timestamp,
    api_router,
    decode_cursor,
    encode_cursor,
    error_responses,
)

# The service checks the range, so that every surface reports it before an unknown task.
Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_EVENTS})]
Cursor = Annotated[
    str | None, Query(max_length=1024, description="The `next_cursor` of the page before; the events after it follow.")
]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=200)]


class EventOut(ResponseModel):
    event_id: str
    timestamp: Timestamp
    event_type: str
    component: str
    message: str
    metadata: JsonObject
    duration_ms: int | None
    provenance_id: str
    parent_provenance_id: str | None


class ReportOut(ResponseModel):
    """The fields of a report's note; `modified_at` is the time of the file."""

    path: str
    title: str
    task_id: str | None
    agent_name: str | None
    created_at: str | None
    modified_at: Timestamp
    summary: str | None


class Trail(ResponseModel):
    task_id: str
    task: JsonObject | None
    status: str
    provenance_id: str | None
    agent_name: str | None
    capability: str | None
    routing: JsonObject | None
    provider: str | None
    outcome_class: str | None
    learning_eligible: bool | None
    reports: list[ReportOut]
    events: list[EventOut]
    next_cursor: str | None


def decode_event_cursor(cursor: str | None) -> str:
    """Return the id of the event after which a page begins. Raises InvalidRequest."""
    return "" if cursor is None else str(decode_cursor(cursor, str)[0])


def next_cursor_field(events: TaskEvents) -> dict[str, str | None]:
    """Return the field `next_cursor` of a page."""
    return {"next_cursor": None if events.next_after is None else encode_cursor(events.next_after)}


NoticeLookup = Callable[[Task], Notice | None]
"""Returns a notice about a waiting task, such as that its agent is offline; None if there is nothing to say."""


class ActivityOperations:
    """The operation that reads the activity log."""

    def __init__(self, activity: ActivityService, notice_of: NoticeLookup) -> None:
        self._activity, self._notice_of = activity, notice_of

    @operation("tasks.activity", "read", "GET /tasks/{task_id}/activity", errors=(404, 500))
    async def trail(self, caller: Caller, task_id: TaskId, limit: Limit = 200, cursor: Cursor = None) -> Trail:
        """Read the activity log of a task: its routing, its events oldest first, its outcome."""
        history = await self._activity.read_history(caller, task_id, limit, decode_event_cursor(cursor))
        task = None
        if history.task is not None:
            task = TaskOut.of(history.task, **notice_fields(self._notice_of(history.task))).model_dump()
        trail = model.build_trail(task_id, task, history.events, history.reports)
        return Trail.model_validate(trail | next_cursor_field(history.events))


def router(activity: ActivityService, streams: StreamLimit) -> APIRouter:
    """Return the route of the live stream."""
    api = api_router("/tasks", tags=["tasks"])

    @api.get(
        "/{task_id}/stream",
        operation_id="tasks_stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Events"}, **error_responses(404, 410)},
    )
    async def stream(caller: Caller, task_id: TaskId, last_event_id: LastEventId = None) -> StreamingResponse:
        """Stream a task as server-sent events: routing, activity, token, and one terminal complete or error.

        Each has `atp` and the `provenance_id` of its own event, or else of the task.
        """
        # Before the response begins: afterwards only an event could say that there is no such task.
        common = await activity.read_envelope(caller, task_id)
        events = activity.follow(caller, task_id, last_event_id)

        async def frames() -> AsyncIterator[SseEvent]:
            async for event in events:
                yield SseEvent(event.kind, event.data, event.id)

        return EventStreamResponse(frames(), streams, caller.stream_owner, common)

    return api
