"""Routes of activity: the trail and the live stream of a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from stentor.domains.activity import model
from stentor.domains.activity.service import MAX_EVENTS, Activity
from stentor.domains.tasks.api import shown
from stentor.domains.tasks.model import Task
from stentor.web.sse import EventStream, Frame, StreamLimit
from stentor.web.wire import Answer, Caller, Json, TaskId, Timestamp, api_router, errors

# The service checks the range, because a limit out of it is told before a task that is unknown.
Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_EVENTS})]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=200)]


class EventOut(Answer):
    event_id: str
    timestamp: Timestamp
    event_type: str
    component: str
    message: str
    metadata: dict[str, Any]
    duration_ms: int | None
    provenance_id: str
    parent_provenance_id: str | None


class Trail(Answer):
    task_id: str
    task: dict[str, Any] | None
    status: str
    provenance_id: str | None
    agent_name: str | None
    capability: str | None
    routing: dict[str, Any] | None
    provider: str | None
    outcome_class: str | None
    learning_eligible: bool | None
    reports: list[dict[str, Any]]
    events: list[EventOut]


NoticeOf = Callable[[Task], str | None]
"""What a caller should know of a task that waits."""


def router(activity: Activity, streams: StreamLimit, notice_of: NoticeOf) -> APIRouter:
    api = api_router("/tasks", tags=["tasks"])

    @api.get("/{task_id}/activity", response_model=Trail, responses=errors(404, 500))
    async def trail(caller: Caller, task_id: TaskId, limit: Limit = 200) -> Json:
        """What happened to a task and why: its routing, its events, its outcome."""
        history = await activity.of(caller.tenant, task_id, limit)
        task = shown(history.task, notice_of(history.task)) if history.task else None
        return Json(model.trail(task_id, task, history.first[:limit], [*history.first, *history.last]))

    @api.get(
        "/{task_id}/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Events"}, **errors(404)},
    )
    async def stream(caller: Caller, task_id: TaskId, last_event_id: LastEventId = None) -> StreamingResponse:
        """Server-sent events: routing, activity, token, and one terminal complete or error."""
        await activity.require(caller.tenant, task_id)
        steps = activity.stream(caller.tenant, task_id, last_event_id)

        async def frames() -> AsyncIterator[Frame]:
            async for step in steps:
                yield Frame(step.kind, step.data, step.id)

        return EventStream(frames(), streams, f"{caller.tenant}/{caller.name}")

    return api
