"""Run the tool-calling loop of an `llm` agent: call the model, execute its tool calls, return their results to it.

Each model call and tool call is a step of the task's journal, so an attempt after a crash resumes where the last one
stopped: a recorded call is neither paid for nor executed again. A step stores only the messages that are new in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, LeaseLost, StentorError, StoreUnavailable, Timeout
from stentor.core.jsontext import JsonObject
from stentor.core.validation import json_schema
from stentor.domains.execution.journal import EffectUnknown, StepJournal
from stentor.domains.execution.model import AgentFailed, AttemptOutcome
from stentor.domains.execution.runtimes import EmitToken, llm_request
from stentor.domains.execution.runtimes.session_messages import read_item, summary_message
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.model import (
    ChatRequest,
    FinishReason,
    LlmMessage,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolDefinition,
)
from stentor.domains.llm.service import LlmGateway
from stentor.domains.llm.token_estimates import estimate_tokens
from stentor.domains.registry.model import LlmOptions
from stentor.domains.sandbox.broker.model import SandboxRun, ToolInterrupted, ToolRequest
from stentor.domains.sandbox.broker.service import ToolDispatcher
from stentor.domains.sessions.model import Item, ItemDraft, describe_outcome

MAX_TOOL_CALLS = 100
"""Calls of tools in one reply."""
MAX_ANSWER_CHARACTERS = 200_000
"""Characters of an answer that has a schema."""
MAX_CORRECTIONS = 2
"""How often an answer that does not match the schema is asked for again."""
MIN_SUMMARY_TOKENS = 4_096
"""Smallest `max_tokens` of the agent that applies to summaries too: reasoning tokens count against it."""

SUMMARY_REQUEST = (
    "The conversation above is getting long. Write a summary that stands in its place: what was asked, decided and "
    "found out, with names, numbers and ids as they are, what is open, and the last request word for word unless it "
    "is done. Answer with nothing but the summary."
)


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reply of a model. `cost` in US dollars, None if the model has no price.

    `problem` says why an answer does not match the schema. `reasoning` is kept only with calls of tools, which some
    providers refuse without it. For a summary, `position` is the session's last item that it covers.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: FinishReason = "stop"
    model: str = ""
    usage: TokenUsage = TokenUsage()
    cost: float | None = None
    degraded: bool = False
    problem: str | None = None
    reasoning: str = ""
    position: int = 0

    @property
    def message(self) -> LlmMessage:
        content = (TextPart(self.content),) if self.content else ()
        return LlmMessage("assistant", content, self.tool_calls, reasoning=self.reasoning)


class ToolLoop:
    """One attempt of an agent with tools. `request` has the conversation so far."""

    def __init__(
        self,
        gateway: LlmGateway,
        tools: ToolDispatcher,
        journal: StepJournal,
        caller: LlmCaller,
        run: SandboxRun,
        options: LlmOptions,
        emit: EmitToken,
    ) -> None:
        self._gateway, self._tools, self._journal = gateway, tools, journal
        self._caller, self._run, self._options, self._emit = caller, run, options, emit
        self._turns: list[Turn] = []
        self._own_turns: list[Turn] = []
        """The turns that this task pays for: not those that a rerun took over from another task."""
        self._tool_calls = 0
        self._items: list[ItemDraft] = []
        self._history: Sequence[Item] = ()

    async def run(
        self, request: ChatRequest, new: int = 0, items: tuple[ItemDraft, ...] = (), history: Sequence[Item] = ()
    ) -> AttemptOutcome:
        """Return the outcome with the model's answer. Raises AgentFailed, and StentorError of the gateway.

        The last `new` messages are those of the task, as which `items` are appended to its session, if there are any.
        The messages before them are the system prompt and the session's `history`.
        """
        self._history = history
        await self._journal.load()
        schema = self._options.output_schema
        request = msgspec.structs.replace(request, tools=self._definitions())
        if schema is not None:
            wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            request = msgspec.structs.replace(request, response_format=wrapped)
        describe = partial(llm_request.describe, request)
        messages = await self._compact(request, request.messages[: len(request.messages) - new])
        messages += request.messages[len(request.messages) - new :]
        self._items += items
        while True:
            turn = await self._ask(msgspec.structs.replace(request, messages=tuple(messages)), describe)
            messages.append(turn.message)
            self._add_item({"role": "assistant"}, turn.content, f"model {len(self._turns)}")
            for number, call in enumerate(turn.tool_calls, 1):
                text, key = await self._execute_tool_call(call, number)
                messages.append(LlmMessage("tool", (TextPart(text),), tool_call_id=call.id))
                self._add_item({"role": "tool", "tool_call_id": call.id}, text, key)
            if turn.problem is not None:
                text = f"This answer does not match the schema: {turn.problem} Answer again with nothing but the JSON."
                messages.append(LlmMessage("user", (TextPart(text),)))
                self._add_item({"role": "user"}, text, None)
            elif not turn.tool_calls:
                outcome = self._outcome(turn)
                return msgspec.structs.replace(outcome, items=tuple(self._items)) if items else outcome
            messages = await self._compact(request, tuple(messages))

    def _add_item(self, frame: JsonObject, text: str, step_key: str | None) -> None:
        """Note an item of the session: it refers to a step of the journal, or has its own text."""
        if step_key is None:
            self._items.append(ItemDraft(frame | {"content": text}))
        else:
            self._items.append(ItemDraft(frame, "message", "step", step_key, len(text)))

    async def _compact(self, request: ChatRequest, messages: tuple[LlmMessage, ...]) -> list[LlmMessage]:
        """Return the messages, or if they are too long the summary that the model writes of them: a step of its own."""
        limit, key = self._options.compact_after_tokens, f"summary {len(self._turns) + 1}"
        is_long = limit is not None and _is_longer(messages, limit)
        # A recorded summary is used again whatever the limit is now: the steps after it were made with it.
        if not is_long and not self._journal.has(key):
            return list(messages)
        self._check_limits()
        value = await self._journal.step(key, key, lambda: self._summarize(request, messages))
        turn = self._read_turn(key, value)
        summary = summary_message(turn.content)
        # Others may have continued the session since it was made, such as between a failure and a retry.
        newer = [read_item(item) for item in self._history if item.position > turn.position]
        self._items.append(ItemDraft({"role": "user"}, "summary", "step", key, len(turn.content), covers=turn.position))
        system = [message for message in messages if message.role == "system"]
        others = [each for each in newer if each.role != "system" and each != summary]
        # In the middle of the loop the summary includes the last request, with which the model must continue.
        return [*system, *others, summary] if self._turns else [*system, summary, *others]

    async def _summarize(self, request: ChatRequest, messages: tuple[LlmMessage, ...]) -> JsonObject:
        limit = self._options.max_tokens or 0
        summary_request = msgspec.structs.replace(
            request,
            messages=(*messages, LlmMessage("user", (TextPart(SUMMARY_REQUEST),))),
            tool_choice="none" if request.tools else "",
            response_format=None,
            # A limit for answers would truncate the summary. A high one is kept: the provider's default may be lower.
            max_tokens=limit if limit >= MIN_SUMMARY_TOKENS else None,
            stop=(),
        )
        stream = await self._gateway.stream(self._caller, summary_request)
        reply = await stream.read_reply(lambda text: None)
        if reply.finish != "stop":
            raise AgentFailed(
                "SUMMARY_INCOMPLETE",
                f"The model did not finish its summary of the conversation (finish_reason {reply.finish}); see "
                "max_tokens and compact_after_tokens.",
            )
        if not reply.content.strip():
            raise AgentFailed(
                "SUMMARY_EMPTY", "The model gave no summary of the conversation; see compact_after_tokens."
            )
        usage, position = reply.usage or TokenUsage(), self._history[-1].position if self._history else 0
        return _turn_as_json(Turn(reply.content, (), reply.finish, stream.name, usage, stream.cost, position=position))

    def _list_tools(self) -> list[JsonObject]:
        return self._tools.list_tools(self._run)

    def _definitions(self) -> tuple[ToolDefinition, ...]:
        tools = self._list_tools()
        return tuple(ToolDefinition(tool["name"], tool["description"], tool["parameters"]) for tool in tools)

    async def _ask(self, request: ChatRequest, describe: Callable[[], JsonObject]) -> Turn:
        self._check_limits()
        key = f"model {len(self._turns) + 1}"
        value = await self._journal.step(key, key, lambda: self._call_model(request), describe)
        turn = self._read_turn(key, value)
        self._turns.append(turn)
        return turn

    def _read_turn(self, key: str, value: Any) -> Turn:
        """Return a recorded reply, and count what it cost this task."""
        try:
            turn = msgspec.convert(value, Turn)
        except msgspec.ValidationError:
            raise _mismatch(key) from None
        if not self._journal.is_taken_over(key):
            self._own_turns.append(turn)
        return turn

    async def _call_model(self, request: ChatRequest) -> Any:
        """Return a turn as JSON. Raises AgentFailed for the last answer that does not match the schema.

        That one is not recorded, so that a retry asks again.
        """
        stream = await self._gateway.stream(self._caller, request)
        reply = await stream.read_reply(self._emit)
        problem = None if reply.tool_calls else await self._judge(reply.content, self._turns)
        usage, cost, degraded = reply.usage or TokenUsage(), stream.cost, stream.degraded
        turn = Turn(reply.content, reply.tool_calls, reply.finish, stream.name, usage, cost, degraded, problem)
        return _turn_as_json(msgspec.structs.replace(turn, reasoning=reply.reasoning) if reply.tool_calls else turn)

    async def _judge(self, answer: str, earlier: list[Turn]) -> str | None:
        """Return why an answer does not match the schema. Raises AgentFailed for the last one that does not."""
        problem = await self._find_problem(answer)
        if problem is not None and sum(turn.problem is not None for turn in earlier) == MAX_CORRECTIONS:
            raise AgentFailed("ANSWER_INVALID", f"The answer does not match the output schema: {problem}")
        return problem

    async def _find_problem(self, answer: str) -> str | None:
        """Return why an answer does not match the schema. Raises AgentFailed if the schema is what is wrong."""
        schema = self._options.output_schema
        if schema is None:
            return None
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return f"It has more than {MAX_ANSWER_CHARACTERS:,} characters."
        try:
            # In a thread: an answer may be long.
            await asyncio.to_thread(lambda: json_schema.check_value(read_json(answer), schema))
        except json_schema.SchemaUnusable as error:
            raise AgentFailed("AGENT_MISCONFIGURED", f"output_schema: {error.message}") from None
        except InvalidRequest as error:
            return error.message
        return None

    async def _execute_tool_call(self, call: ToolCall, number: int) -> tuple[str, str | None]:
        """Execute a tool call; return the text for the model, and the journal key of its step (None if no tool ran)."""
        self._tool_calls += 1
        # By position and not by the model's own id of the call, which may differ in another attempt.
        reply = f"model {len(self._turns)}"
        key = f"{reply}/tool {number}"
        if self._journal.is_taken_over(key) and not self._journal.is_taken_over(reply):
            raise _mismatch(key)  # the outcome belongs to a call of another reply
        try:
            if number > MAX_TOOL_CALLS:
                raise InvalidRequest(f"One reply may call {MAX_TOOL_CALLS} tools; call the others later.")
            if not call.name or len(call.name) > 255 or "\0" in call.name:
                raise InvalidRequest("There is no tool with this name.")
            arguments = jsontext.decode(call.arguments.encode()) if call.arguments.strip() else {}
            if not isinstance(arguments, dict):
                raise InvalidRequest("The arguments must be a JSON object.")
        except InvalidRequest as error:
            return describe_outcome(_describe(error)), None
        request = ToolRequest(call.name, arguments=arguments)
        if self._tools.is_repeatable(request):
            value = await self._journal.step(key, call.name, lambda: self._call_tool(request))
        else:
            value = await self._journal.effect(key, call.name, lambda effect: self._call_tool(request, effect))
        if self._run.revoked.is_set():
            raise AgentFailed("AGENT_QUARANTINED", "The agent was quarantined or suspended while it ran.")
        return describe_outcome(value), key

    async def _call_tool(self, request: ToolRequest, effect: str | None = None) -> JsonObject:
        """Return `{result}` or `{error}`, which the model gets too.

        `effect` is the idempotency key of a call that must not be repeated. Raises EffectUnknown if that may have had
        its effect, LeaseLost and StoreUnavailable.
        """
        call = request if effect is None else self._tools.with_key(request, effect)
        try:
            return {"result": await self._tools.call(self._run, call)}
        except (LeaseLost, StoreUnavailable):
            raise
        except StentorError as error:
            # The effect may have happened even without a response.
            if effect is not None and isinstance(error, Timeout | ToolInterrupted):
                raise EffectUnknown(request.tool, effect, error.message) from None
            return _describe(error)

    def _check_limits(self) -> None:
        options, tokens, cost = self._options, self._count_tokens(), self._cost or 0
        unpriced = next((turn.model for turn in self._own_turns if turn.cost is None), None)
        if options.max_cost_usd is not None and unpriced is not None:
            raise AgentFailed(
                "PRICE_UNKNOWN",
                f"max_cost_usd needs a price of {unpriced}: set SERVICE_LLM_PRICES, or remove max_cost_usd.",
            )
        if len(self._own_turns) >= options.max_calls:
            reached = f"max_calls ({options.max_calls} calls of the model)"
        elif options.max_total_tokens is not None and tokens >= options.max_total_tokens:
            reached = f"max_total_tokens ({options.max_total_tokens}; it has used {tokens})"
        elif options.max_cost_usd is not None and cost >= options.max_cost_usd:
            reached = f"max_cost_usd ({options.max_cost_usd:g} US dollars; it has spent {cost:.4f})"
        else:
            return
        raise AgentFailed("LIMIT_REACHED", f"The agent reached its limit {reached} before it had an answer.")

    def _count_tokens(self) -> int:
        return sum(turn.usage.input_tokens + turn.usage.output_tokens for turn in self._own_turns)

    @property
    def _cost(self) -> float | None:
        costs = [turn.cost for turn in self._own_turns if turn.cost is not None]
        return sum(costs) if costs else None

    def _outcome(self, turn: Turn) -> AttemptOutcome:
        usage = {
            "input_tokens": sum(each.usage.input_tokens for each in self._own_turns),
            "output_tokens": sum(each.usage.output_tokens for each in self._own_turns),
        }
        result: JsonObject = {"text": turn.content, "model": turn.model, "usage": usage, "finish_reason": turn.finish}
        result |= {"model_calls": len(self._turns), "tool_calls": self._tool_calls}
        if self._options.output_schema is not None:
            result["output"] = read_json(turn.content)
        # Checks all turns, including those taken over: an answer of a weaker model may be part of this result.
        kind = "degraded_success" if any(each.degraded for each in self._turns) else "success"
        return AttemptOutcome(kind, result, cost=self._cost)


def read_json(answer: str) -> Any:
    """Return the JSON of an answer. Raises InvalidRequest with a sentence about `it`, the answer."""
    try:
        return jsontext.decode(_without_fence(answer).encode())
    except InvalidRequest as error:
        # The model does not know the word "body".
        raise InvalidRequest(error.message.replace("The body", "It", 1)) from None


def _without_fence(text: str) -> str:
    """Return JSON without the Markdown fence that models like to put around it."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```").strip()
    return text


def _mismatch(key: str) -> AgentFailed:
    text = f"The journal has another program's step {key!r}: run the task again from the start."
    return AgentFailed("STEP_MISMATCH", text)


def _describe(error: StentorError) -> JsonObject:
    return {"error": {"code": error.code, "message": error.message}}


def _is_longer(messages: tuple[LlmMessage, ...], limit: int) -> bool:
    """Return whether the conversation has more than `limit` tokens (estimated) and more than one message."""
    # No summary shortens a system prompt.
    others = [message for message in messages if message.role != "system"]
    texts = sum(estimate_tokens(message.text) for message in others)
    calls = sum(estimate_tokens(call.arguments) for message in others for call in message.tool_calls)
    return len(others) > 1 and texts + calls > limit


def _turn_as_json(turn: Turn) -> JsonObject:
    """Return the turn as the journal stores it: without counts that are zero."""
    value: JsonObject = msgspec.to_builtins(turn)
    value["usage"] = {name: count for name, count in value.get("usage", {}).items() if count}
    return value
