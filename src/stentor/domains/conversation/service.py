"""Runs a chat request to `agent:<capability>` as a task and streams its output as the reply.

The task is routed, executed, recorded and learned from like any other. `SessionTurns` reads and extends the sessions of
chat requests. Both implement ports of the LLM gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from stentor.auth.principal import Principal
from stentor.core.errors import (
    AgentFault,
    ApprovalPending,
    Conflict,
    InvalidRequest,
    RoutingDenied,
    ServiceUnavailable,
    StentorError,
)
from stentor.core.fanout.live import Hub
from stentor.core.jsontext import JsonObject
from stentor.domains.conversation import model
from stentor.domains.execution.model import AgentFailed
from stentor.domains.execution.runtimes.session_messages import read_item
from stentor.domains.llm.model import ChatReply, ChatRequest, LlmMessage, ReplyDelta, TextPart, ToolCall
from stentor.domains.llm.results import AgentTaskRef, ChatResult
from stentor.domains.llm.routes.chat_router import is_agent_model
from stentor.domains.llm.service import AGENT_PREFIX
from stentor.domains.llm.token_estimates import usage_or_estimate
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.sessions.model import Item, ItemDraft
from stentor.domains.sessions.service import SessionService
from stentor.domains.tasks.model import Task, TaskStreamStep, TenantTaskStream
from stentor.domains.tasks.reading.reader import TaskReader
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission.drafts import with_parent_task
from stentor.domains.tasks.submission.service import SubmissionService


class AgentAnswerStream:
    """The reply of an agent as a stream that can be read once. `close` before its end cancels the task."""

    degraded = False
    choice: None = None

    def __init__(
        self,
        principal: Principal,
        request: ChatRequest,
        task: Task,
        agent: Agent | None,
        steps: Callable[[str | None], AsyncIterator[TaskStreamStep]],
        tasks: TaskService,
        service_closing: asyncio.Event,
    ) -> None:
        self._principal, self._request, self._task, self._agent = principal, request, task, agent
        self._steps, self._tasks, self._service_closing = steps, tasks, service_closing
        self._ended = self._has_gap = False
        self.name = request.model
        self.provenance_id = task.provenance_id
        self.agent_task = AgentTaskRef(task.task_id, task.assigned_agent or "", agent.name if agent else "")
        self.reply: ChatReply | None = None
        """The complete reply, after the stream was read to its end."""

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Yield the reply. Raises AgentFault, ProviderError, Timeout, Conflict or BudgetExceeded if the task fails."""
        streamed: list[str] = []
        async for step in self._read_steps():
            if step.kind == "token" and step.data["text"]:
                streamed.append(step.data["text"])
                yield ReplyDelta(content=step.data["text"])
            elif step.kind == "complete":
                self._ended = True
                # Only a model of the gateway reports token counts that can be trusted.
                by_model = self._agent is not None and self._agent.runtime.kind == "llm"
                degraded = step.data["outcome_class"] == "degraded_success"
                reply = self.reply = model.build_reply(
                    self.name, step.data["result"], by_model=by_model, degraded=degraded
                )
                # Otherwise what was streamed is the reply: an agent may end with a result that is not its text.
                if not streamed or self._has_gap:
                    rest = model.remaining_text(self._task.task_id, reply.content, "".join(streamed))
                    yield ReplyDelta(content=rest)
                yield ReplyDelta(finish=reply.finish, usage=usage_or_estimate(self._request, reply), is_last=True)
            elif step.kind == "error":
                self._ended = True
                raise model.error_for_task(self._task.task_id, step.data.get("status", ""), step.data.get("code"))

    async def _read_steps(self) -> AsyncIterator[TaskStreamStep]:
        """Yield all events of the task's stream; reconnect if it was closed because tokens were read too slowly.

        Tokens are missing then, unless the next token is the one after the last that was read.
        """
        event, token, is_cut = "", list[str](), True
        while is_cut:
            is_cut = False
            async for step in self._steps(":".join([event, *token]) or None):
                # Of the two kinds of errors, only the one that ends a task has a status.
                if step.kind == "error" and "status" not in step.data:
                    is_cut = self._has_gap = True
                    continue
                event, *position = (step.id or event).split(":")
                if position:
                    self._has_gap = self._has_gap and not _follows(token, position)
                    token = position
                yield step

    async def close(self) -> None:
        """Cancel the task if its caller has left before the end; a stop of the service leaves it to the next start."""
        if self._ended or self._service_closing.is_set():
            return
        self._ended = True
        with suppress(Conflict):  # the task ended in the meantime
            # Shielded: the disconnect that brings us here also cancels this coroutine.
            await asyncio.shield(asyncio.ensure_future(self._tasks.cancel(self._principal, self._task.task_id)))


class AgentChat:
    """Runs chat requests as tasks; the LLM gateway calls it for models whose name begins with `agent:`."""

    def __init__(
        self,
        submission: SubmissionService,
        tasks: TaskService,
        reader: TaskReader,
        agents: AgentCache,
        hub: Hub,
        stream_task: TenantTaskStream,
    ) -> None:
        self._submission = submission
        self._tasks = tasks
        self._reader = reader
        self._agents = agents
        self._hub = hub
        self._stream_task = stream_task
        self._pending_closes: set[asyncio.Future[None]] = set()

    def capabilities(self, tenant: str) -> list[str]:
        """Return the capabilities of the active agents, sorted."""
        agents = self._agents.list_by_tenant(tenant)
        return sorted({name for agent in agents if agent.status == "active" for name in agent.capabilities})

    async def stream(
        self, principal: Principal, request: ChatRequest, parent_task_id: str | None = None
    ) -> AgentAnswerStream:
        """Submit the task, as a subtask of `parent_task_id`, and return its stream.

        Raises RoutingDenied, ApprovalPending, InvalidRequest.

        If the caller disconnects before the task is stored, the task is cancelled.
        """
        opening = asyncio.ensure_future(self._open(principal, request, parent_task_id))
        try:
            # Continues after a cancellation, because the task may already be stored; `_close_unread` then cancels the
            # task.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unread)
            raise

    def _close_unread(self, opening: asyncio.Future[AgentAnswerStream]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            closing = asyncio.ensure_future(opening.result().close())
            self._pending_closes.add(closing)
            closing.add_done_callback(self._pending_closes.discard)

    async def _open(self, principal: Principal, request: ChatRequest, parent_task_id: str | None) -> AgentAnswerStream:
        draft = model.build_task_draft(request.model[len(AGENT_PREFIX) :], request)
        with not_repeatable(RoutingDenied):
            submitted = await self._submission.submit(principal, with_parent_task(draft, parent_task_id))
        with not_repeatable():
            task = await self._reader.get(principal, submitted.task_id)
            # The client might wait for days; the task stays and can be read later.
            if submitted.status == "pending_approval":
                raise ApprovalPending(
                    f"Task {task.task_id} waits for the approval of an administrator; its result will be at "
                    f"/api/v1/tasks/{task.task_id}.",
                    {"task_id": task.task_id},
                )
        agent = self._agents.get(principal.tenant, task.assigned_agent or "")
        steps = partial(self._stream_task, principal.tenant, task.task_id)
        return AgentAnswerStream(principal, request, task, agent, steps, self._tasks, self._hub.closing)

    async def chat(self, principal: Principal, request: ChatRequest, parent_task_id: str | None = None) -> ChatResult:
        """Return the complete reply. A disconnect cancels the task. Raises like the stream."""
        stream = await self.stream(principal, request, parent_task_id)
        try:
            with not_repeatable():
                reply = await self._until_stopping(_read_reply(stream))
        finally:
            await stream.close()
        return ChatResult(
            reply, usage_or_estimate(request, reply), stream.name, stream.provenance_id, stream.agent_task
        )

    async def _until_stopping(self, work: Coroutine[None, None, ChatReply]) -> ChatReply:
        """Return the reply. Raises ServiceUnavailable when the service stops, so that no caller delays the stop."""
        reply = asyncio.create_task(work)
        stopping = asyncio.ensure_future(self._hub.closing.wait())
        try:
            await asyncio.wait({reply, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
            raise ServiceUnavailable("The service is stopping; the task continues after its next start.")
        finally:
            # Both in every case: one of them is still waiting.
            stopping.cancel()
            reply.cancel()


@contextmanager
def not_repeatable(kind: type[StentorError] = StentorError) -> Iterator[None]:
    """Mark errors of a kind that come after work was done: if the request is sent again, it is done twice."""
    try:
        yield
    except kind as error:
        error.is_repeatable = False
        raise


def _follows(last: list[str], token: list[str]) -> bool:
    """Return whether a token, as `[attempt, n]`, comes right after the last one that was read."""
    attempt, n = token
    return [attempt, str(int(n) - 1)] == last if last else n == "1"


async def _read_reply(stream: AgentAnswerStream) -> ChatReply:
    try:
        async for _ in stream:
            pass
    except AgentFault:
        if stream.reply is None:
            raise  # otherwise tokens were lost, but the reply is complete
    if stream.reply is None:
        raise StentorError("The task's stream ended without a terminal event.")
    return stream.reply


class StoredTurn:
    """A turn of a session. `last_position` is the position of its last item at the question; 0 for an empty session."""

    def __init__(
        self,
        sessions: SessionService,
        principal: Principal,
        session_id: str,
        question: tuple[LlmMessage, ...],
        request: ChatRequest,
        last_position: int,
    ) -> None:
        self._sessions, self._principal, self._session_id = sessions, principal, session_id
        self._question, self._last_position = question, last_position
        self.request = request

    async def keep(self, reply: ChatReply) -> None:
        """Append question and answer. Raises Conflict if the session has changed since, NotFound if it was deleted."""
        content = (TextPart(reply.content),) if reply.content else ()
        answer = LlmMessage("assistant", content, reply.tool_calls, reasoning=reply.reasoning)
        drafts = [ItemDraft(_to_item(message)) for message in (*self._question, answer)]
        with not_repeatable():
            await self._sessions.append_turn(self._principal, self._session_id, drafts, self._last_position)


class SessionTurns:
    """Begins turns."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def begin_turn(
        self, principal: Principal, session_id: str, request: ChatRequest, task_id: str | None
    ) -> StoredTurn:
        """Return the turn of a request; its system messages come first and are not kept.

        Raises NotFound, Conflict while a task continues the session, and InvalidRequest for messages that a session
        cannot keep, and for a session with items that are not messages.
        """
        system = tuple(message for message in request.messages if message.role == "system")
        question = tuple(message for message in request.messages if message.role != "system")
        if any(not isinstance(part, TextPart) for message in question for part in message.content):
            raise InvalidRequest("messages: a session keeps texts only; send images in a request without a session.")
        # Its items have OpenAI's format.
        request.require_neutral("A session", "openai")
        items = await self._sessions.begin_turn(principal, session_id, task_id)
        history = [_read_item(item) for item in items]
        messages = (*system, *(_texts(history) if is_agent_model(request) else history), *question)
        # Drops the client's original request, which lacks the earlier conversation.
        whole = msgspec.structs.replace(request, messages=messages, anthropic=None)
        last_position = items[-1].position if items else 0
        return StoredTurn(self._sessions, principal, session_id, question, whole, last_position)


def _texts(history: list[LlmMessage]) -> list[LlmMessage]:
    """Return what was said, which is all that the task of an agent takes, without calls of tools and their results."""
    said = (message for message in history if message.role != "tool" and message.content)
    return [msgspec.structs.replace(message, tool_calls=(), reasoning="") for message in said]


def _read_item(item: Item) -> LlmMessage:
    try:
        return read_item(item)
    except AgentFailed as failure:
        raise InvalidRequest(str((failure.outcome.error or {}).get("message", "The session is unreadable."))) from None


def _to_item(message: LlmMessage) -> JsonObject:
    """Return a message as the sessions have it: as OpenAI's chat API."""
    item: JsonObject = {"role": message.role, "content": message.text if message.content else None}
    if message.tool_calls:
        item["tool_calls"] = [_to_call(call) for call in message.tool_calls]
        item |= {"reasoning_content": message.reasoning} if message.reasoning else {}
    if message.tool_call_id:
        item["tool_call_id"] = message.tool_call_id
    return item


def _to_call(call: ToolCall) -> JsonObject:
    signature = {"signature": call.signature} if call.signature else {}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        **signature,
    }
