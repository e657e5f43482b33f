"""A request to `agent:<capability>`: routed, run, learned from and recorded as any task, and streamed as an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from stentor.auth.principal import Principal
from stentor.core.errors import AgentFault, ApprovalPending, Conflict, ServiceUnavailable, StentorError
from stentor.core.live import Hub
from stentor.domains.conversation import model
from stentor.domains.llm.model import ChatReply, ChatRequest, ReplyDelta, usage_or_estimate
from stentor.domains.llm.service import AGENT_PREFIX, AgentTaskRef, ChatResult
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import Task, TaskStream, TaskStreamStep
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService


class AgentAnswerStream:
    """The answer of an agent, to be read once. `close` before its end cancels the task."""

    degraded = False
    choice = None

    def __init__(
        self,
        principal: Principal,
        request: ChatRequest,
        task: Task,
        agent: Agent | None,
        steps: Callable[[str | None], AsyncIterator[TaskStreamStep]],
        tasks: TaskService,
        closing: asyncio.Event,
    ) -> None:
        self._principal, self._request, self._task, self._agent = principal, request, task, agent
        self._steps, self._tasks, self._closing = steps, tasks, closing
        self._ended = self._hole = False
        self.name = request.model
        self.provenance_id = task.provenance_id
        self.agent_task = AgentTaskRef(task.task_id, task.assigned_agent or "", agent.name if agent else "")
        self.reply: ChatReply | None = None
        """The whole of it, once it is read to its end."""

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Raises AgentFault, ProviderError or Timeout for a task that did not complete."""
        said: list[str] = []
        async for step in self._resumed():
            if step.kind == "token" and step.data["text"]:
                said.append(step.data["text"])
                yield ReplyDelta(content=step.data["text"])
            elif step.kind == "complete":
                self._ended = True
                answer = self.reply = self._reply(step.data)
                if not said or self._hole:
                    yield ReplyDelta(content=model.remaining_text(self._task.task_id, answer.content, "".join(said)))
                yield ReplyDelta(finish=answer.finish, usage=usage_or_estimate(self._request, answer), is_last=True)
            elif step.kind == "error":
                self._ended = True
                raise model.error_for_task(self._task.task_id, step.data.get("status", ""), step.data.get("code"))

    async def _resumed(self) -> AsyncIterator[TaskStreamStep]:
        """All steps. A stream that was cut because tokens came faster than they were read goes on where it was; there
        is a hole until the next token is the one that was missed first.
        """
        event, token, cut = "", list[str](), True
        while cut:
            cut = False
            async for step in self._steps(":".join([event, *token]) or None):
                if step.kind == "error" and "status" not in step.data:
                    cut = self._hole = True
                    continue
                event, *place = (step.id or event).split(":")
                if place:
                    self._hole = self._hole and not _follows(token, place)
                    token = place
                yield step

    def _reply(self, data: dict[str, Any]) -> ChatReply:
        by_model = self._agent is not None and self._agent.runtime.kind == "llm"
        degraded = data["outcome_class"] == "degraded_success"
        return model.build_reply(self.name, data["result"], by_model=by_model, degraded=degraded)

    async def close(self) -> None:
        """A caller who left gets no answer, so nobody works on one; a service that leaves only lets the task wait."""
        if self._ended or self._closing.is_set():
            return
        self._ended = True
        with suppress(Conflict):  # it ended meanwhile
            await asyncio.shield(asyncio.ensure_future(self._tasks.cancel(self._principal, self._task.task_id)))


class AgentChat:
    """Implements the port `Agents` of the gateway."""

    def __init__(
        self, submission: SubmissionService, tasks: TaskService, snapshot: AgentCache, hub: Hub, of_task: TaskStream
    ) -> None:
        self._submission = submission
        self._tasks = tasks
        self._snapshot = snapshot
        self._hub = hub
        self._of_task = of_task
        self._closing: set[asyncio.Future[None]] = set()

    def capabilities(self, tenant: str) -> list[str]:
        """Of the agents that may be asked now."""
        agents = self._snapshot.list_of_tenant(tenant)
        return sorted({name for agent in agents if agent.status == "active" for name in agent.capabilities})

    async def stream(self, principal: Principal, request: ChatRequest) -> AgentAnswerStream:
        """Returns when the task is stored. A caller that leaves before leaves no task behind.

        Raises RoutingDenied, ApprovalPending, InvalidRequest.
        """
        opening = asyncio.ensure_future(self._open(principal, request))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._nobody_reads)
            raise

    def _nobody_reads(self, opening: asyncio.Future[AgentAnswerStream]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            closing = asyncio.ensure_future(opening.result().close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _open(self, principal: Principal, request: ChatRequest) -> AgentAnswerStream:
        submitted = await self._submission.submit(
            principal, model.build_task_draft(request.model[len(AGENT_PREFIX) :], request)
        )
        task = await self._tasks.get(principal, submitted.task_id)
        if submitted.status == "pending_approval":
            raise ApprovalPending(
                f"Task {task.task_id} waits for the approval of an admin; its answer will be at "
                f"/api/v1/tasks/{task.task_id}.",
                {"task_id": task.task_id},
            )
        agent = self._snapshot.get(principal.tenant, task.assigned_agent or "")
        steps = partial(self._of_task, principal.tenant, task.task_id)
        return AgentAnswerStream(principal, request, task, agent, steps, self._tasks, self._hub.closing)

    async def chat(self, principal: Principal, request: ChatRequest) -> ChatResult:
        """The whole answer. A caller that leaves cancels the task. Raises as the stream does."""
        stream = await self.stream(principal, request)
        try:
            answer = await self._while_open(_whole(stream))
        finally:
            await stream.close()
        return ChatResult(
            answer, usage_or_estimate(request, answer), stream.name, stream.provenance_id, stream.agent_task
        )

    async def _while_open(self, work: Any) -> ChatReply:
        """Nobody waits for an answer of a service that leaves. Raises ServiceUnavailable."""
        answer = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._hub.closing.wait())
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()  # type: ignore[no-any-return]
            raise ServiceUnavailable("The service is stopping; the task goes on when it is back.")
        finally:
            leaving.cancel()
            answer.cancel()


def _follows(last: list[str], token: list[str]) -> bool:
    """Whether a token, as `[attempt, n]`, comes right after the last one that was read."""
    attempt, n = token
    return [attempt, str(int(n) - 1)] == last if last else n == "1"


async def _whole(stream: AgentAnswerStream) -> ChatReply:
    try:
        async for _ in stream:
            pass
    except AgentFault:
        if stream.reply is None:
            raise  # else tokens were lost, and the whole answer is there
    if stream.reply is None:
        raise StentorError("The task's stream ended without an end.")
    return stream.reply
