"""The loop of a model with tools: it is asked, its calls are made, and it gets the results, until it answers.

Each call of the model and of a tool is a step of the task's journal, so that an attempt after a crash goes on where the
last one ended: nothing is paid for twice, and a call that must not be repeated is not. A step has only what was new in
it, so a long run stores each message once.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from stentor.core import json_schema, jsontext
from stentor.core.errors import InvalidRequest, LeaseLost, StentorError, StoreUnavailable, Timeout
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.journal import AttemptJournal, EffectUnknown
from stentor.domains.execution.model import AgentFailed, AttemptOutcome
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.llm.call_guard import LlmCaller
from stentor.domains.llm.model import (
    ChatRequest,
    FinishReason,
    LlmMessage,
    ReplyBuilder,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolDefinition,
    usage_or_estimate,
    with_reasoning_fallback,
)
from stentor.domains.llm.service import LlmGateway
from stentor.domains.registry.model import LlmOptions
from stentor.domains.sandbox.broker.model import SandboxRun, ToolInterrupted, ToolRequest
from stentor.domains.sandbox.broker.service import ToolDispatcher

MAX_RESULT_CHARACTERS = 100_000
"""Characters of a tool's result that the model gets."""
MAX_CORRECTIONS = 2
"""How often an answer that does not match the schema is asked for again."""


class Turn(msgspec.Struct, frozen=True):
    """One reply of a model. `cost` in US dollars, None if the model has no price."""

    content: str
    tool_calls: tuple[ToolCall, ...]
    finish: FinishReason
    model: str
    usage: TokenUsage
    cost: float | None
    degraded: bool

    @property
    def message(self) -> LlmMessage:
        return LlmMessage("assistant", (TextPart(self.content),) if self.content else (), self.tool_calls)


class ToolLoop:
    """One attempt of an agent with tools. `request` has the conversation so far."""

    def __init__(
        self,
        gateway: LlmGateway,
        tools: ToolDispatcher,
        journal: AttemptJournal,
        caller: LlmCaller,
        run: SandboxRun,
        options: LlmOptions,
        emit: EmitToken,
    ) -> None:
        self._gateway, self._tools, self._journal = gateway, tools, journal
        self._caller, self._run, self._options, self._emit = caller, run, options, emit
        self._turns: list[Turn] = []
        self._tool_calls = 0

    async def run(self, request: ChatRequest) -> AttemptOutcome:
        """Return the outcome with the model's answer. Raises AgentFailed, and StentorError of the gateway."""
        await self._journal.load()
        schema = self._options.output_schema
        request = msgspec.structs.replace(request, tools=self._definitions())
        if schema is not None:
            wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            request = msgspec.structs.replace(request, response_format=wrapped)
        messages, corrections = list(request.messages), 0
        while True:
            turn = await self._ask(msgspec.structs.replace(request, messages=tuple(messages)))
            messages.append(turn.message)
            for number, call in enumerate(turn.tool_calls, 1):
                text = await self._use(call, number)
                messages.append(LlmMessage("tool", (TextPart(text),), tool_call_id=call.id))
            if turn.tool_calls:
                continue
            if schema is None:
                return self._outcome(turn)
            try:
                # In a thread: the model may answer with a megabyte.
                output = await asyncio.to_thread(parse_output, turn.content, schema)
                return self._outcome(turn, output=output)
            except InvalidRequest as error:
                if corrections == MAX_CORRECTIONS:
                    raise AgentFailed(
                        "ANSWER_INVALID", f"The answer does not match the output schema: {error.message}"
                    ) from None
                corrections += 1
                text = f"This answer does not match the schema: {error.message} Answer again with nothing but the JSON."
                messages.append(LlmMessage("user", (TextPart(text),)))

    def _definitions(self) -> tuple[ToolDefinition, ...]:
        allowed = self._tools.list_tools(self._run)
        return tuple(ToolDefinition(tool["name"], tool["description"], tool["parameters"]) for tool in allowed)

    async def _ask(self, request: ChatRequest) -> Turn:
        self._check_limits()
        number = len(self._turns) + 1
        value = await self._journal.step(f"model {number}", f"model {number}", lambda: self._call_model(request))
        self._turns.append(msgspec.convert(value, Turn))
        return self._turns[-1]

    async def _call_model(self, request: ChatRequest) -> Any:
        stream = await self._gateway.stream(self._caller, request)
        builder = ReplyBuilder()
        try:
            async for delta in stream:
                builder.add(delta)
                if delta.content:
                    self._emit(delta.content)
        finally:
            await stream.close()
        reply = with_reasoning_fallback(builder.build(stream.name))
        usage = usage_or_estimate(request, reply)
        turn = Turn(reply.content, reply.tool_calls, reply.finish, stream.name, usage, stream.cost, stream.degraded)
        return msgspec.to_builtins(turn)

    async def _use(self, call: ToolCall, number: int) -> str:
        """Make a call of a tool and return its result as the model gets it."""
        self._tool_calls += 1
        key = f"model {len(self._turns)}/tool {number}"
        try:
            arguments = jsontext.decode(call.arguments.encode()) if call.arguments.strip() else {}
            if not isinstance(arguments, dict):
                raise InvalidRequest("The arguments must be a JSON object.")
        except InvalidRequest as error:
            return _to_text({"error": {"code": error.code, "message": error.message}})
        request = ToolRequest(call.name, arguments=arguments)
        name = call.name[:255] or "tool"
        if self._tools.is_repeatable(request):
            value = await self._journal.step(key, name, lambda: self._call_tool(request))
        else:
            value = await self._journal.effect(key, name, lambda effect: self._send(request, name, effect))
        if self._run.revoked.is_set():
            raise AgentFailed("AGENT_QUARANTINED", "The agent was quarantined or suspended while it ran.")
        return _to_text(value)

    async def _call_tool(self, request: ToolRequest) -> JsonObject:
        """Return `{result}` or `{error}`, which the model gets too. Raises LeaseLost and StoreUnavailable."""
        try:
            return {"result": await self._tools.call(self._run, request)}
        except (LeaseLost, StoreUnavailable):
            raise
        except StentorError as error:
            return {"error": {"code": error.code, "message": error.message}}

    async def _send(self, request: ToolRequest, name: str, key: str) -> JsonObject:
        """Do the same with a call that must not be repeated. Raises EffectUnknown if it may have had its effect."""
        try:
            return {"result": await self._tools.call(self._run, self._tools.with_key(request, key))}
        except (Timeout, ToolInterrupted):
            raise EffectUnknown(name, key) from None
        except (LeaseLost, StoreUnavailable):
            raise
        except StentorError as error:
            return {"error": {"code": error.code, "message": error.message}}

    def _check_limits(self) -> None:
        options, tokens, cost = self._options, self._count_tokens(), self._cost or 0
        if len(self._turns) >= options.max_calls:
            reached = f"max_calls ({options.max_calls} calls of the model)"
        elif options.max_total_tokens is not None and tokens >= options.max_total_tokens:
            reached = f"max_total_tokens ({options.max_total_tokens}; it has used {tokens})"
        elif options.max_cost_usd is not None and cost >= options.max_cost_usd:
            reached = f"max_cost_usd ({options.max_cost_usd:g} US dollars; it has spent {cost:.4f})"
        else:
            return
        raise AgentFailed("LIMIT_REACHED", f"The agent reached its limit {reached} before it had an answer.")

    def _count_tokens(self) -> int:
        return sum(turn.usage.input_tokens + turn.usage.output_tokens for turn in self._turns)

    @property
    def _cost(self) -> float | None:
        costs = [turn.cost for turn in self._turns if turn.cost is not None]
        return sum(costs) if costs else None

    def _outcome(self, turn: Turn, **fields: Any) -> AttemptOutcome:
        usage = {
            "input_tokens": sum(each.usage.input_tokens for each in self._turns),
            "output_tokens": sum(each.usage.output_tokens for each in self._turns),
        }
        result: JsonObject = {"text": turn.content, "model": turn.model, "usage": usage, "finish_reason": turn.finish}
        result |= {"model_calls": len(self._turns), "tool_calls": self._tool_calls, **fields}
        kind = "degraded_success" if any(each.degraded for each in self._turns) else "success"
        return AttemptOutcome(kind, result, cost=self._cost)  # type: ignore[arg-type]


def parse_output(text: str, schema: JsonObject) -> Any:
    """Return the JSON of an answer. Raises InvalidRequest, with what is wrong with it."""
    value = jsontext.decode(_without_fence(text).encode())
    json_schema.check_value(value, schema)
    return value


def _without_fence(text: str) -> str:
    """Return JSON without the Markdown fence that models like to put around it."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```").strip()
    return text


def _to_text(value: Any) -> str:
    """Return the outcome of a tool for the model: `{"error": ...}`, or its result, which a person may have given."""
    content = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    text = content if isinstance(content, str) else jsontext.dump(content)
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return f"{text[:MAX_RESULT_CHARACTERS]}\n[The first {MAX_RESULT_CHARACTERS:,} of {len(text):,} characters.]"
