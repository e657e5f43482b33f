"""TaskService: the operations on tasks, and a stream of the events of one task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from stentor.core import jsontext
from stentor.core.errors import ServiceUnavailable
from stentor.domains.activity.operations import LastEventId
from stentor.domains.activity.service import ActivityService, StreamStep
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from stentor.surfaces.grpc.methods import Method, ServerStreamMethod
from stentor.surfaces.grpc.operations import operation_methods, to_message
from stentor.web.fast_routes import OptionalHeader
from stentor.web.operations import Operation
from stentor.web.sse import StreamLimit

SERVICE = pb.DESCRIPTOR.services_by_name["TaskService"]
_LAST_EVENT_ID = OptionalHeader("last_event_id", LastEventId)


class TaskServicer:
    """The methods of TaskService."""

    def __init__(self, operations: Iterable[Operation], activity: ActivityService) -> None:
        self._operations = operations
        self._activity = activity

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {
            **operation_methods(SERVICE, self._operations, {"GetTask": _set_result}),
            f"/{SERVICE.full_name}/WatchTask": ServerStreamMethod("read", pb.WatchTaskRequest, self.watch, streams),
        }

    @asynccontextmanager
    async def watch(
        self, call: Call, request: pb.WatchTaskRequest
    ) -> AsyncIterator[AsyncIterator[pb.WatchTaskResponse]]:
        """Stream the events of a task, from the beginning or after `last_event_id`. Raises NotFound."""
        last_id = _LAST_EVENT_ID.check(request.last_event_id or None)
        await self._activity.require_visible(call.caller, request.task_id)
        async with aclosing(
            watch_responses(self._activity.stream(call.caller.tenant, request.task_id, last_id))
        ) as responses:
            yield responses


def _set_result(task: Any, message: pb.Task) -> None:
    # A completed task has a result even if it is null, and null would otherwise stay unset.
    if task.status == "completed":
        message.result_json = jsontext.dump(task.result)


async def watch_responses(events: AsyncIterator[StreamStep]) -> AsyncGenerator[pb.WatchTaskResponse, None]:
    """Convert stream events. Raises ServiceUnavailable if the stream was closed early: it can be resumed by id."""
    async for event in events:
        # An error without a status is about the stream, not about the task.
        if event.kind == "error" and "status" not in event.data:
            raise ServiceUnavailable(event.data["error"])
        yield pb.WatchTaskResponse(id=event.id or "", **_CONVERTERS[event.kind](event.data))


def _completed(data: dict[str, Any]) -> pb.TaskCompleted:
    message: pb.TaskCompleted = to_message(data | {"learning_error": data["error"]}, pb.TaskCompleted)
    message.result_json = jsontext.dump(data["result"])
    return message


_CONVERTERS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "routing": lambda data: {"routing": to_message(data, pb.RoutingDecided)},
    "activity": lambda data: {"activity": to_message(data, pb.Activity)},
    "token": lambda data: {"token": to_message(data, pb.Token)},
    "complete": lambda data: {"completed": _completed(data)},
    "error": lambda data: {"ended": to_message(data | {"message": data["error"]}, pb.TaskEnded)},
}
