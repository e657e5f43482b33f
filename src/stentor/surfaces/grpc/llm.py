"""LlmService: a conversation's next message as a stream."""

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
from stentor.surfaces.grpc.methods import Method, Streaming
from stentor.surfaces.grpc.operations import to_fields
from stentor.web.fast_routes import validate_value
from stentor.web.sse import StreamLimit

SERVICE = pb.DESCRIPTOR.services_by_name["LlmService"].full_name
_CHAT = TypeAdapter(ChatBody)


class LlmService:
    def __init__(self, talk: ChatRouter) -> None:
        self._talk = talk

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {f"/{SERVICE}/StreamChat": Streaming("write", pb.StreamChatRequest, self.stream, streams)}

    @asynccontextmanager
    async def stream(
        self, call: Call, request: pb.StreamChatRequest
    ) -> AsyncIterator[AsyncIterator[pb.StreamChatResponse]]:
        """Entered once somebody has begun to answer; left, that work ends."""
        found = await self._talk.stream(call.caller, validate_value(_CHAT, to_fields(request, ChatBody)).to_request())
        try:
            yield _parts(found)
        finally:
            await found.close()


async def _parts(found: AnswerStream) -> AsyncIterator[pb.StreamChatResponse]:
    """Raises what the provider failed with, in words that are for callers."""
    task_id = found.agent_task.task_id if found.agent_task else None
    started = pb.ChatStarted(
        model=found.name, provenance_id=found.provenance_id, task_id=task_id, degraded=found.degraded
    )
    yield pb.StreamChatResponse(started=started)
    try:
        async for delta in found:
            if delta.content:
                yield pb.StreamChatResponse(delta=pb.ChatDelta(content=delta.content))
            if delta.is_last:
                yield pb.StreamChatResponse(finished=_finished(delta))
    except StentorError as error:
        error.message = stream_error_message(error)
        raise


def _finished(delta: ReplyDelta) -> pb.ChatFinished:
    count = delta.usage or TokenUsage()
    usage = pb.ChatUsage(input_tokens=count.input_tokens, output_tokens=count.output_tokens, estimated=count.estimated)
    return pb.ChatFinished(finish_reason=delta.finish or "stop", usage=usage)
