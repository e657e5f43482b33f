"""The three services over gRPC, and the gate to all their methods. `bootstrap/surfaces/grpc.py` supplies the parts.

Their operations are those of the HTTP gateway; only the two streams (the events of a task, the next message of a
conversation) are written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from pydantic import TypeAdapter

from stentor.auth.api_keys import KeyRing
from stentor.core import jsontext
from stentor.core.errors import NotFound, ServiceUnavailable, StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.activity.operations import LastEventId
from stentor.domains.activity.service import NOT_VISIBLE_MESSAGE, ActivityService
from stentor.domains.llm.model import ReplyDelta, TokenUsage
from stentor.domains.llm.results import AnswerStream
from stentor.domains.llm.routes.chat_router import ChatRouter
from stentor.domains.llm.routes.streaming import stream_error_message
from stentor.domains.llm.wire import ChatBody
from stentor.domains.tasks.model import TaskStreamStep
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.gate import Gate
from stentor.surfaces.grpc.generated import atp_pb2, llm_pb2, tasks_pb2
from stentor.surfaces.grpc.methods import Method, ServerStreamMethod
from stentor.surfaces.grpc.operations import operation_methods, to_fields, to_message
from stentor.surfaces.grpc.standard import StandardServicer
from stentor.web.fast_routes import OptionalHeader, validate_value
from stentor.web.middleware import RateLimiter
from stentor.web.operations import Operation
from stentor.web.request_context import GrpcCallDurations
from stentor.web.sse import StreamLimit

TASK_SERVICE = tasks_pb2.DESCRIPTOR.services_by_name["TaskService"]
ATP_SERVICE = atp_pb2.DESCRIPTOR.services_by_name["AtpService"]
LLM_SERVICE = llm_pb2.DESCRIPTOR.services_by_name["LlmService"]
_LAST_EVENT_ID = OptionalHeader("last_event_id", LastEventId)
_CHAT_BODY = TypeAdapter(ChatBody)


def build_gate(
    tasks: TaskServicer,
    messages: Iterable[Operation],
    llm: LlmServicer,
    keys: KeyRing,
    rate: RateLimiter,
    streams: StreamLimit,
    ready: Callable[[], Awaitable[bool]],
    closing: asyncio.Event,
    durations: GrpcCallDurations,
) -> Gate:
    """Build the gate to all methods. Streams share the limit of the gateway, and end when `closing` is set."""
    methods = {**tasks.methods(streams), **operation_methods(ATP_SERVICE, messages), **llm.methods(streams)}
    services = sorted({name.split("/")[1] for name in methods})
    return Gate(keys, rate, {**methods, **StandardServicer(services, ready, closing).methods()}, durations, closing)


class TaskServicer:
    """TaskService: the operations on tasks, and a stream of the events of one task."""

    def __init__(self, operations: Iterable[Operation], activity: ActivityService) -> None:
        self._operations = operations
        self._activity = activity

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {
            **operation_methods(TASK_SERVICE, self._operations, {"GetTask": _set_result}),
            f"/{TASK_SERVICE.full_name}/WatchTask": ServerStreamMethod(
                "read", tasks_pb2.WatchTaskRequest, self.watch, streams
            ),
        }

    @asynccontextmanager
    async def watch(
        self, call: Call, request: tasks_pb2.WatchTaskRequest
    ) -> AsyncIterator[AsyncIterator[tasks_pb2.WatchTaskResponse]]:
        """Stream the events of a task, from the beginning or after `last_event_id`. Raises NotFound."""
        last_id = _LAST_EVENT_ID.check(request.last_event_id or None)
        await self._activity.require_visible(call.caller, request.task_id)
        async with aclosing(watch_responses(self._activity.follow(call.caller, request.task_id, last_id))) as responses:
            yield responses


def _set_result(task: Any, message: tasks_pb2.Task) -> None:
    # A completed task has a result even if it is null, and null would otherwise stay unset.
    if task.status == "completed":
        message.result_json = jsontext.dump(task.result)


async def watch_responses(events: AsyncIterator[TaskStreamStep]) -> AsyncGenerator[tasks_pb2.WatchTaskResponse, None]:
    """Convert stream events.

    Raises NotFound if the caller may no longer read the task, and ServiceUnavailable if the stream was closed early for
    another reason: it can be resumed by id.
    """
    async for event in events:
        # An error without a status is about the stream, not about the task.
        if event.kind == "error" and "status" not in event.data:
            message = event.data["error"]
            raise NotFound(message) if message == NOT_VISIBLE_MESSAGE else ServiceUnavailable(message)
        yield tasks_pb2.WatchTaskResponse(id=event.id or "", **_CONVERTERS[event.kind](event.data))


def _completed(data: JsonObject) -> tasks_pb2.TaskCompleted:
    message: tasks_pb2.TaskCompleted = to_message(data | {"learning_error": data["error"]}, tasks_pb2.TaskCompleted)
    message.result_json = jsontext.dump(data["result"])
    return message


_CONVERTERS: Mapping[str, Callable[[JsonObject], JsonObject]] = {
    "routing": lambda data: {"routing": to_message(data, tasks_pb2.RoutingDecided)},
    "activity": lambda data: {"activity": to_message(data, tasks_pb2.Activity)},
    "token": lambda data: {"token": to_message(data, tasks_pb2.Token)},
    "complete": lambda data: {"completed": _completed(data)},
    "error": lambda data: {"ended": to_message(data | {"message": data["error"]}, tasks_pb2.TaskEnded)},
}


class LlmServicer:
    """LlmService: streams the next message of a conversation. Models and agents are chosen by `domains/llm`."""

    def __init__(self, chat: ChatRouter) -> None:
        self._chat = chat

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {
            f"/{LLM_SERVICE.full_name}/StreamChat": ServerStreamMethod(
                "write", llm_pb2.StreamChatRequest, self.stream, streams
            )
        }

    @asynccontextmanager
    async def stream(
        self, call: Call, request: llm_pb2.StreamChatRequest
    ) -> AsyncIterator[AsyncIterator[llm_pb2.StreamChatResponse]]:
        """Open a stream of responses once a provider has begun to answer; closing it ends the provider's work."""
        chat_request = validate_value(_CHAT_BODY, to_fields(request, ChatBody)).to_request()
        answer = await self._chat.stream(call.caller, chat_request)
        try:
            yield _responses(answer)
        finally:
            await answer.close()


async def _responses(answer: AnswerStream) -> AsyncIterator[llm_pb2.StreamChatResponse]:
    """Yield the parts of an answer. Raises the provider's error with a message that is safe for callers."""
    task_id = answer.agent_task.task_id if answer.agent_task else None
    started = llm_pb2.ChatStarted(
        model=answer.name, provenance_id=answer.provenance_id, task_id=task_id, degraded=answer.degraded
    )
    yield llm_pb2.StreamChatResponse(started=started)
    try:
        async for delta in answer:
            if delta.content:
                yield llm_pb2.StreamChatResponse(delta=llm_pb2.ChatDelta(content=delta.content))
            if delta.is_last:
                yield llm_pb2.StreamChatResponse(finished=_finished(delta))
    except StentorError as error:
        error.message = stream_error_message(error)
        raise


def _finished(delta: ReplyDelta) -> llm_pb2.ChatFinished:
    usage = delta.usage or TokenUsage()
    return llm_pb2.ChatFinished(
        finish_reason=delta.finish or "stop",
        usage=llm_pb2.ChatUsage(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, estimated=usage.estimated
        ),
    )
