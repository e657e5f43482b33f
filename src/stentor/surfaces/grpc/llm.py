"""LlmService: streams the next message of a conversation. Models and agents are chosen by `domains/llm`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pydantic import TypeAdapter

from stentor.core.errors import StentorError
from stentor.domains.llm.model import ReplyDelta, TokenUsage
from stentor.domains.llm.service import AnswerStream, ChatRouter
from stentor.domains.llm.streaming import stream_error_message
from stentor.domains.llm.wire import ChatBody
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.generated import llm_pb2 as pb
from stentor.surfaces.grpc.methods import Method, ServerStreamMethod
from stentor.surfaces.grpc.operations import to_fields
from stentor.web.fast_routes import validate_value
from stentor.web.sse import StreamLimit

SERVICE = pb.DESCRIPTOR.services_by_name["LlmService"].full_name
_CHAT_BODY = TypeAdapter(ChatBody)


class LlmServicer:
    """The methods of LlmService."""

    def __init__(self, chat: ChatRouter) -> None:
        self._chat = chat

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {f"/{SERVICE}/StreamChat": ServerStreamMethod("write", pb.StreamChatRequest, self.stream, streams)}

    @asynccontextmanager
    async def stream(
        self, call: Call, request: pb.StreamChatRequest
    ) -> AsyncIterator[AsyncIterator[pb.StreamChatResponse]]:
        """Open a stream of responses once a provider has begun to answer; closing it ends the provider's work."""
        chat_request = validate_value(_CHAT_BODY, to_fields(request, ChatBody)).to_request()
        answer = await self._chat.stream(call.caller, chat_request)
        try:
            yield _responses(answer)
        finally:
            await answer.close()


async def _responses(answer: AnswerStream) -> AsyncIterator[pb.StreamChatResponse]:
    """Yield the parts of an answer. Raises the provider's error with a message that is safe for callers."""
    task_id = answer.agent_task.task_id if answer.agent_task else None
    started = pb.ChatStarted(
        model=answer.name, provenance_id=answer.provenance_id, task_id=task_id, degraded=answer.degraded
    )
    yield pb.StreamChatResponse(started=started)
    try:
        async for delta in answer:
            if delta.content:
                yield pb.StreamChatResponse(delta=pb.ChatDelta(content=delta.content))
            if delta.is_last:
                yield pb.StreamChatResponse(finished=_finished(delta))
    except StentorError as error:
        error.message = stream_error_message(error)
        raise


def _finished(delta: ReplyDelta) -> pb.ChatFinished:
    usage = delta.usage or TokenUsage()
    return pb.ChatFinished(
        finish_reason=delta.finish or "stop",
        usage=pb.ChatUsage(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, estimated=usage.estimated
        ),
    )
