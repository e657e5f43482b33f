"""Durable runs of Pydantic AI agents: `pip install stentor-worker[pydantic-ai]`.

Each request to the model and each call of a tool is a step of the task, so that a later attempt does neither again.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolReturn, ToolReturnContent
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from stentor_worker.scope import Scope, current_scope
from stentor_worker.task import Task

Json = Any
"""What a step records."""
_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
# Lists, as pydantic takes no config for the dataclass itself.
_CONTENT: TypeAdapter[list[Any]] = TypeAdapter(list[ToolReturnContent], config=_BASE64)
_TOOL_RETURN: TypeAdapter[list[Any]] = TypeAdapter(list[ToolReturn], config=_BASE64)
_WITH_MESSAGE = {"model-retry": ModelRetry, "tool-failed": ToolFailed}
_WITH_METADATA = {"call-deferred": CallDeferred, "approval-required": ApprovalRequired}
_runs: WeakKeyDictionary[Task | Scope, dict[str, _Runs]] = WeakKeyDictionary()
"""The runs of each name, in a task or in the step in which they run."""


class TaskSteps(AbstractCapability[AgentDepsT]):
    """Makes a run durable: `await agent.run(task.input, capabilities=[TaskSteps(task)])`.

    The steps are named after the agent, or after `name`: "editor: model 1", "editor: tool search 1". A second run in a
    task is "editor 2"; runs side by side need names of their own. An error of the model or of a tool is recorded, and
    ends the run as StepFailed. What a tool returns comes back as JSON has it. Streaming raises UserError.
    """

    def __init__(self, task: Task, *, name: str | None = None) -> None:
        self._task, self._name = task, name
        # A run has its own asyncio task: only here is it visible in which step its caller is.
        self._place = _place()
        self._steps = _Steps(task)

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> TaskSteps[AgentDepsT]:
        bound = copy.copy(self)
        bound._steps = _Steps(self._task)
        return bound

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        name = self._name or (ctx.agent and ctx.agent.name) or "agent"
        # Grouped by the step around it, because names are unique only within that step.
        runs = _runs.setdefault(current_scope.get() or self._task, {}).setdefault(name, _Runs(self._place))
        with runs.begin(name, self._place) as self._steps.prefix:
            return await handler()

    def get_ordering(self) -> CapabilityOrdering:
        # Changes that other capabilities make to a request or a result wrap the step, and run in each attempt.
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT] | None:
        return StepToolset(toolset, self._steps)

    async def wrap_model_request(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        request_context.model = StepModel(request_context.model, self._steps)
        return await handler(request_context)


class StepModel(WrapperModel):
    """A model whose requests are steps."""

    def __init__(self, wrapped: Model, steps: _Steps) -> None:
        super().__init__(wrapped)
        self._steps = steps

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> Json:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return _dump(ModelMessagesTypeAdapter, response)

        recorded = await self._steps.run(self._steps.name_request(), ask)
        response: ModelResponse = _load(ModelMessagesTypeAdapter, recorded)
        self._steps.name_calls(response)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        raise UserError(
            "TaskSteps records whole responses: call agent.run() without event_stream_handler, not run_stream()."
        )
        yield


@dataclass
class StepToolset(WrapperToolset[AgentDepsT]):
    """Tools whose calls are steps."""

    wrapped: AbstractToolset[AgentDepsT]
    steps: _Steps

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        async def call() -> Json:
            return await _to_outcome(self.wrapped.call_tool(name, tool_args, ctx, tool))

        return _from_outcome(await self.steps.run(self.steps.name_call(name, ctx.tool_call_id or ""), call, tool=name))


class _Steps:
    """The steps of one run, and their names: the same in each attempt, though tools are called side by side."""

    def __init__(self, task: Task) -> None:
        self._task, self.prefix = task, ""
        self._requests = 0
        self._asked: Counter[str] = Counter()
        self._calls: dict[str, str] = {}
        self._begun: Counter[str] = Counter()

    async def run(self, name: str, function: Callable[[], Coroutine[Any, Any, Json]], tool: str | None = None) -> Json:
        name = f"{self.prefix}: {name}"
        return await (self._task.step(name, function) if tool is None else self._task.tool_step(tool, name, function))

    def name_request(self) -> str:
        self._requests += 1
        return f"model {self._requests}"

    def name_calls(self, response: ModelResponse) -> None:
        """Number the calls in the order in which the model asked for them: they may begin in another one."""
        for call in response.tool_calls:
            self._asked[call.tool_name] += 1
            self._calls[call.tool_call_id] = f"tool {call.tool_name} {self._asked[call.tool_name]}"

    def name_call(self, tool: str, call_id: str) -> str:
        # A call that the message history of the run brought along was not asked for here: its id is in the history.
        name = self._calls.get(call_id, f"tool {tool} {call_id}")
        self._begun[name] += 1
        # A tool that needs an approval is called again after it.
        return name if self._begun[name] == 1 else f"{name} ({self._begun[name]})"


def _place() -> object:
    try:
        return threading.current_thread(), asyncio.current_task()
    except RuntimeError:  # no event loop: run_sync makes one
        return threading.current_thread(), None


class _Runs:
    """The runs of one name. They must come one after another, or each could get the steps of another one."""

    def __init__(self, place: object) -> None:
        self._place, self._count, self._is_running = place, 0, False

    @contextmanager
    def begin(self, name: str, place: object) -> Iterator[str]:
        """Begin a run; give its name, with a number from the second one on. Raises UserError."""
        if self._is_running or place != self._place:
            raise UserError(
                f"Runs of {name!r} side by side could swap their steps in another attempt: give each a name of its "
                f"own, such as TaskSteps(task, name='{name} of order 7')."
            )
        self._is_running = True
        self._count += 1
        try:
            yield name if self._count == 1 else f"{name} {self._count}"
        finally:
            self._is_running = False


async def _to_outcome(call: Awaitable[Any]) -> Json:
    """Await a tool, and return its outcome as JSON; other errors than those that Pydantic AI knows are raised."""
    try:
        value = await call
    except (ModelRetry, ToolFailed) as error:
        kind = next(kind for kind, known in _WITH_MESSAGE.items() if isinstance(error, known))
        return {"kind": kind, "message": error.message}
    except (CallDeferred, ApprovalRequired) as error:
        kind = next(kind for kind, known in _WITH_METADATA.items() if isinstance(error, known))
        return {"kind": kind, "metadata": error.metadata}
    kind, adapter = ("tool-return", _TOOL_RETURN) if isinstance(value, ToolReturn) else ("value", _CONTENT)
    return {"kind": kind, "value": _dump(adapter, value)}


def _from_outcome(outcome: Json) -> Any:
    """Return what the tool returned, or raise what it raised."""
    kind = outcome["kind"]
    if kind in _WITH_MESSAGE:
        raise _WITH_MESSAGE[kind](outcome["message"])
    if kind in _WITH_METADATA:
        raise _WITH_METADATA[kind](outcome["metadata"])
    adapter = _TOOL_RETURN if kind == "tool-return" else _CONTENT
    return _load(adapter, outcome["value"])


def _dump(adapter: TypeAdapter[list[Any]], value: Any) -> Json:
    return json.loads(adapter.dump_json([value]))[0]


def _load(adapter: TypeAdapter[list[Any]], value: Json) -> Any:
    # Through JSON, because only its validation decodes what the dump encoded, such as bytes.
    return adapter.validate_json(json.dumps([value]))[0]
