"""The results of gateway calls: complete replies, embeddings, and open streams.

`service` returns them; a stream records its call in `call_guard` when it ends. The stream of an agent, and
the sessions that a chat may continue, are in `domains/conversation`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec

from stentor.auth.principal import Principal
from stentor.domains.llm import model, token_estimates
from stentor.domains.llm.calls.call_guard import LlmCall
from stentor.domains.llm.costs import NANOS_PER_DOLLAR
from stentor.domains.llm.model import ChatReply, ChatRequest, EmbeddingReply, ReplyDelta, TokenUsage
from stentor.domains.llm.providers.backends import DeltaSource
from stentor.domains.llm.streamed import ReplyBuilder


class AgentTaskRef(msgspec.Struct, frozen=True):
    """The task and agent that produced the reply to a request for `agent:<capability>`."""

    task_id: str
    agent_id: str
    agent_name: str


class ModelChoice(msgspec.Struct, frozen=True):
    """Why `auto` chose the model that replied; the event `decision_id` of the run log has the whole decision."""

    kind: str
    prefer: str
    why: str
    decision_id: str


class ChatResult(msgspec.Struct, frozen=True):
    """A complete reply. `provenance_id` is the event of the call, or the first event of an agent's task."""

    reply: ChatReply
    usage: TokenUsage
    name: str
    provenance_id: str
    agent_task: AgentTaskRef | None = None
    choice: ModelChoice | None = None


class EmbeddingResult(msgspec.Struct, frozen=True):
    """The vectors of an embedding call, with its usage and event."""

    reply: EmbeddingReply
    usage: TokenUsage
    provenance_id: str


class AnswerStream(Protocol):
    """The open stream of a model or an agent; can be read once. Its last delta has the usage; `close` cancels it."""

    @property
    def name(self) -> str: ...
    @property
    def provenance_id(self) -> str: ...
    @property
    def degraded(self) -> bool: ...
    @property
    def agent_task(self) -> AgentTaskRef | None: ...
    @property
    def choice(self) -> ModelChoice | None: ...
    def __aiter__(self) -> AsyncIterator[ReplyDelta]: ...
    async def close(self) -> None: ...


StreamEndHook = Callable[[BaseException | None, TokenUsage], Awaitable[None]]
"""Called once when a stream ends: before its last delta is yielded, or with the error that interrupted it."""


class ChatStream:
    """The open stream of a model; can be read once, and its last delta has the usage. `close` cancels it."""

    choice: ModelChoice | None = None
    on_end: StreamEndHook | None = None
    require_allowed: Callable[[], None] | None = None
    """Called for each delta; raises an error, with which the stream ends, when its caller may call models no more."""

    def __init__(self, request: ChatRequest, call: LlmCall, source: DeltaSource, *, degraded: bool) -> None:
        self._request, self._call, self._source = request, call, source
        self._builder = ReplyBuilder()
        self._ended = False
        self.name = call.target.name
        self.agent_task: AgentTaskRef | None = None
        self.provenance_id = call.evidence.call_id
        self.degraded = degraded

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Yield the deltas. Raises ProviderFault, and StoreUnavailable at the end if the call cannot be recorded."""
        try:
            async for delta in self._source:
                self._builder.add(delta)
                if self.require_allowed is not None:
                    self.require_allowed()
                # Finish and usage follow in the last delta, once the call is recorded.
                is_raw = delta.extra or delta.logprobs or delta.anthropic_event
                if delta.content or delta.reasoning or delta.tool_calls or is_raw:
                    yield msgspec.structs.replace(delta, finish=None, usage=None, is_last=False)
        except BaseException as error:
            await self._interrupt(error)
            raise
        # Before the record: an error in it must not be recorded as an interruption as well.
        self._ended = True
        self._source.close()
        reply = self._builder.build(self.name)
        usage = token_estimates.usage_or_estimate(self._request, reply)
        self._call.evidence.keep_reply(reply)
        try:
            # Before the last delta: a reply that cannot be recorded must not end as if it were complete.
            await self._call.complete(usage)
        except BaseException as error:
            await self._notify_end(error, usage)
            raise
        await self._notify_end(None, usage)
        if (noted := model.with_reasoning_fallback(reply)) is not reply:
            yield ReplyDelta(content=noted.content)
        yield ReplyDelta(finish=reply.finish, usage=usage, id=reply.id, is_last=True)

    async def read_reply(self, on_content: Callable[[str], None]) -> ChatReply:
        """Read the stream to its end and return the whole reply, with its usage; `on_content` gets each piece of text.

        Raises like the iteration; closes the stream whatever happens.
        """
        builder = ReplyBuilder()
        try:
            async for delta in self:
                builder.add(delta)
                if delta.content:
                    on_content(delta.content)
        finally:
            await self.close()
        return builder.build(self.name)

    @property
    def cost(self) -> float | None:
        """What the call cost in US dollars, known once the stream has ended; None if the price is unknown."""
        return None if self._call.cost is None else self._call.cost / NANOS_PER_DOLLAR

    async def close(self) -> None:
        """Cancel the stream; does nothing after its end."""
        # GeneratorExit counts as a cancellation, so the record does not delay the caller of `close`.
        await self._interrupt(GeneratorExit())

    async def _interrupt(self, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            self._source.close()
            # The provider bills the tokens so far, so an interrupted call counts against budgets too.
            reply = self._builder.build(self.name)
            usage = token_estimates.usage_or_estimate(self._request, reply)
            if not usage.output_tokens and not self._call.evidence.may_be_billed(error):
                usage = TokenUsage()
            self._call.evidence.keep_reply(reply)
            await self._call.fail(error, usage)
            await self._notify_end(error, usage)

    async def _notify_end(self, error: BaseException | None, usage: TokenUsage) -> None:
        if self.on_end is not None:
            await self.on_end(error, usage)


class SessionTurn(Protocol):
    """A question to a session and its answer. `request` is the question with the conversation before it."""

    @property
    def request(self) -> ChatRequest: ...

    async def keep(self, reply: ChatReply) -> None:
        """Append question and answer. Raises Conflict if the session has changed since the question."""
        ...


class SessionPort(Protocol):
    """The sessions, as seen by the gateway."""

    async def begin_turn(
        self, principal: Principal, session_id: str, request: ChatRequest, task_id: str | None
    ) -> SessionTurn:
        """Begin a turn, for a task if one is named. Raises NotFound, InvalidRequest, and Conflict for one in use."""
        ...


class SessionStream:
    """A stream whose turn is kept before its last delta: one that is interrupted adds nothing to the session."""

    def __init__(self, stream: AnswerStream, turn: SessionTurn) -> None:
        self._stream, self._turn = stream, turn
        self.name, self.provenance_id, self.degraded = stream.name, stream.provenance_id, stream.degraded
        self.agent_task: AgentTaskRef | None = stream.agent_task
        self.choice: ModelChoice | None = stream.choice

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Yield the deltas. Raises like the stream, and like `keep` in place of the last delta."""
        builder = ReplyBuilder()
        async for delta in self._stream:
            builder.add(delta)
            if delta.is_last:
                await self._turn.keep(builder.build(self.name))
            yield delta

    async def close(self) -> None:
        await self._stream.close()
