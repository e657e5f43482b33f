"""TaskService: the operations on tasks, and a stream of what happens to one."""

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
from stentor.surfaces.grpc.methods import Method, Streaming
from stentor.surfaces.grpc.operations import operation_methods, to_message
from stentor.web.fast_routes import OptionalHeader
from stentor.web.operations import Operation
from stentor.web.sse import StreamLimit

SERVICE = pb.DESCRIPTOR.services_by_name["TaskService"]
_LAST_EVENT_ID = OptionalHeader("last_event_id", LastEventId)


class TaskServicer:
    def __init__(self, operations: Iterable[Operation], activity: ActivityService) -> None:
        self._operations, self._activity = operations, activity

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {
            **operation_methods(SERVICE, self._operations, {"GetTask": _show_result}),
            f"/{SERVICE.full_name}/WatchTask": Streaming("read", pb.WatchTaskRequest, self.watch, streams),
        }

    @asynccontextmanager
    async def watch(
        self, call: Call, request: pb.WatchTaskRequest
    ) -> AsyncIterator[AsyncIterator[pb.WatchTaskResponse]]:
        last = _LAST_EVENT_ID.check(request.last_event_id or None)
        await self._activity.require_visible(call.caller, request.task_id)
        async with aclosing(
            watch_responses(self._activity.stream(call.caller.tenant, request.task_id, last))
        ) as answers:
            yield answers


def _show_result(task: Any, message: pb.Task) -> None:
    """A completed task has a result, also when that is null."""
    if task.status == "completed":
        message.result_json = jsontext.dump(task.result)


async def watch_responses(steps: AsyncIterator[StreamStep]) -> AsyncGenerator[pb.WatchTaskResponse, None]:
    """Raises ServiceUnavailable where the stream was cut: the client may come back with the last id."""
    async for step in steps:
        if step.kind == "error" and "status" not in step.data:
            raise ServiceUnavailable(step.data["error"])
        yield pb.WatchTaskResponse(id=step.id or "", **_STEPS[step.kind](step.data))


def _completed(data: dict[str, Any]) -> pb.TaskCompleted:
    message: pb.TaskCompleted = to_message(data | {"learning_error": data["error"]}, pb.TaskCompleted)
    message.result_json = jsontext.dump(data["result"])
    return message


_STEPS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "routing": lambda data: {"routing": to_message(data, pb.RoutingDecided)},
    "activity": lambda data: {"activity": to_message(data, pb.Activity)},
    "token": lambda data: {"token": to_message(data, pb.Token)},
    "complete": lambda data: {"completed": _completed(data)},
    "error": lambda data: {"ended": to_message(data | {"message": data["error"]}, pb.TaskEnded)},
}
