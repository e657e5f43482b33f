"""The driver of agents that are a system prompt and a model; calls go through the LLM gateway and its budgets."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import (
    BudgetExceeded,
    Conflict,
    InvalidRequest,
    LeaseLost,
    ModelNotFound,
    NotFound,
    ProviderFault,
    StentorError,
    StoreUnavailable,
)
from stentor.domains.execution.journal import AttemptJournal
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken, lease_check, session_messages
from stentor.domains.execution.runtimes.llm_loop import ToolLoop
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.model import ChatRequest, ChatRole, LlmMessage, TextPart
from stentor.domains.llm.service import MODELS_HINT, LlmGateway
from stentor.domains.registry.model import Agent, LlmOptions
from stentor.domains.sandbox.broker.model import SandboxRun
from stentor.domains.sandbox.broker.service import ToolDispatcher
from stentor.domains.sessions.model import Item, ItemDraft
from stentor.domains.sessions.service import SessionService
from stentor.domains.steps.service import StepService
from stentor.domains.tasks.model import OutcomeClass, TaskClaim

ROLES: dict[str, ChatRole] = {"system": "system", "user": "user", "assistant": "assistant"}


class LlmDriver:
    """Runs a task as one chat completion; with tools in the agent's allow-list, or an output schema, as a loop.

    Input: a string, `{messages [{role, content}]}`, `{text}`, or any JSON, which the model reads as JSON. Result:
    `{text, model, usage {input_tokens, output_tokens}, finish_reason}`, of a loop also `model_calls`, `tool_calls` and,
    with a schema, `output`. Every error of the gateway, also an exhausted
    budget, is a provider failure, so that it does not count against the agent.

    In a session the model gets the conversation so far before the input, and what was said is appended to it in the
    transaction that completes the task.
    """

    def __init__(
        self, gateway: LlmGateway, tools: ToolDispatcher, steps: StepService, sessions: SessionService
    ) -> None:
        self._gateway, self._tools, self._steps, self._sessions = gateway, tools, steps, sessions

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        options = parse_llm_options(agent)
        said = read_conversation(claim.input)
        request = build_request(claim.input, options, said)
        budgets = claim.metadata.budgets_of(claim.task_id)
        caller = LlmCaller(
            claim.tenant, claim.submitted_by, agent.agent_id, claim.task_id, claim.head_id, budgets=budgets
        )
        try:
            items: tuple[ItemDraft, ...] = ()
            history: list[Item] = []
            if claim.metadata.session is not None:
                history = await self._hold(claim, claim.metadata.session)
                request = session_messages.insert_history(request, history, len(said))
                items = session_messages.drafts_of_input(claim.input, said)
            needs_loop = agent.sandbox_whitelist.tools or options.output_schema or options.compact_after_tokens
            if not needs_loop:
                return await self._complete(caller, request, emit, items)
            run = SandboxRun(
                claim.tenant,
                agent.agent_id,
                agent.name,
                claim.task_id,
                claim.submitted_by,
                claim.head_id,
                None,
                lease_check(claim),
                budgets,
            )
            journal = AttemptJournal(self._steps, claim)
            return await ToolLoop(self._gateway, self._tools, journal, caller, run, options, emit).run(
                request, len(said), items, history
            )
        except (LeaseLost, StoreUnavailable):
            raise  # the attempt ends, not the task
        except StentorError as error:
            text = _describe_failure(error, options)
            raise ProviderFailed(error.code, text, is_outage=_is_outage(error)) from None

    async def _hold(self, claim: TaskClaim, session_id: str) -> list[Item]:
        """Let the task continue the session, and return its conversation. Raises ProviderFailed.

        A task that continues from a step gets the conversation that the steps which it takes over came from.
        """
        first = None
        if claim.metadata.rerun_from is not None:
            first = await self._steps.find_first_run(claim.tenant, claim.task_id)
        try:
            return await self._sessions.hold(claim.tenant, session_id, claim.task_id, claim.epoch, first)
        except Conflict as error:
            raise ProviderFailed("SESSION_BUSY", error.message, is_outage=False) from None

    async def _complete(
        self, caller: LlmCaller, request: ChatRequest, emit: EmitToken, items: tuple[ItemDraft, ...]
    ) -> AttemptOutcome:
        stream = await self._gateway.stream(caller, request)
        reply = await stream.read_reply(emit)
        usage = msgspec.to_builtins(reply.usage) if reply.usage else {}
        counts = {name: usage[name] for name in ("input_tokens", "output_tokens") if name in usage}
        result = {"text": reply.content, "model": stream.name, "usage": counts, "finish_reason": reply.finish}
        if items:
            items = (*items, ItemDraft({"role": "assistant"}, source="result", size=len(reply.content)))
        kind: OutcomeClass = "degraded_success" if stream.degraded else "success"
        return AttemptOutcome(kind, result, cost=stream.cost, items=items)


def _describe_failure(error: StentorError, options: LlmOptions) -> str:
    """Return the message of a failed call; of a provider that does not know the model with what to do."""
    if isinstance(error, ProviderFault) and error.upstream_status == HTTPStatus.NOT_FOUND and options.model:
        return f"The model {options.model!r} of the agent cannot be called: {error.message} {MODELS_HINT}"
    return error.message


def _is_outage(error: StentorError) -> bool:
    """Return whether the next task of another caller may fail too: not for the caller's own budget or session.

    A request that the provider rejects counts, because it may be the agent's options that it rejects.
    """
    if isinstance(error, BudgetExceeded):
        return error.is_outage
    return isinstance(error, ModelNotFound) or not isinstance(error, (InvalidRequest, NotFound, Conflict))


def parse_llm_options(agent: Agent) -> LlmOptions:
    """Return the options of the agent's runtime. Raises AgentFailed if they are invalid."""
    try:
        return msgspec.convert(agent.runtime.options, LlmOptions)
    except msgspec.ValidationError as error:
        raise AgentFailed("AGENT_MISCONFIGURED", f"The options of the agent's runtime are invalid: {error}.") from None


def build_request(task_input: Any, options: LlmOptions, messages: tuple[LlmMessage, ...]) -> ChatRequest:
    """Return the first request of a task: the agent's system prompt, then the conversation."""
    system = (LlmMessage("system", (TextPart(options.system_prompt),)),) if options.system_prompt else ()
    requested = task_input.get("options") if isinstance(task_input, dict) else None
    requested = requested if isinstance(requested, dict) else {}
    return ChatRequest(
        options.model or "",
        (*system, *messages),
        max_tokens=_limit(options.max_tokens, requested.get("max_tokens")),
        temperature=_number(options.temperature, requested.get("temperature"), 2),
        top_p=_number(options.top_p, requested.get("top_p"), 1),
        stop=options.stop,
        seed=options.seed,
    )


def read_conversation(task_input: Any) -> tuple[LlmMessage, ...]:
    """Return the messages of an input without a system prompt. Raises AgentFailed if there is no text."""
    if isinstance(task_input, dict) and isinstance(task_input.get("messages"), list) and task_input["messages"]:
        return tuple(_message(value) for value in task_input["messages"])
    is_text = isinstance(task_input, dict) and set(task_input) <= {"text", "options"}
    content = task_input.get("text") if is_text else task_input
    text = content if isinstance(content, str) else jsontext.dump(content)
    if not text.strip():
        raise AgentFailed("INPUT_INVALID", "The agent needs as input a string, or an object with 'text' or 'messages'.")
    return (LlmMessage("user", (TextPart(text),)),)


def _message(value: Any) -> LlmMessage:
    role = ROLES.get(str(value.get("role"))) if isinstance(value, dict) else None
    if role is None or not isinstance(value.get("content"), str):
        raise AgentFailed(
            "INPUT_INVALID", "Each of 'messages' needs a 'role' (system, user or assistant) and a text 'content'."
        )
    return LlmMessage(role, (TextPart(value["content"]),))


def _limit(configured: int | None, requested: Any) -> int | None:
    """Return the lower limit: a caller may ask for less than the agent's limit, not for more."""
    # Not isinstance: True is an int too.
    valid = requested if type(requested) is int and requested > 0 else None
    return min(configured, valid) if configured and valid else configured or valid


def _number(configured: float | None, requested: Any, maximum: float) -> float | None:
    """Return the agent's value, or the caller's if the agent's registration has none."""
    if configured is not None or not isinstance(requested, int | float) or isinstance(requested, bool):
        return configured
    return float(requested) if 0 <= requested <= maximum else None
